"""The transport that all adapters behind HTTP share: addresses and keys, clients, limits, stream readers.

``HttpModel`` is the base of such an adapter, ``HttpModelConfig`` of its configuration, ``Exchange`` one
request with its answer. ``SSEReader`` works on bytes alone.
"""

from ._config import HttpModelConfig, check_url, find_key, find_url, is_loopback
from ._debug import debug_is_on, log_request, log_response, raw_event
from ._exchange import Exchange, explain_transport
from ._model import HttpModel
from ._sse import MAX_EVENT, MAX_TOTAL, ServerEvent, SSEReader

__all__ = [
    "MAX_EVENT",
    "MAX_TOTAL",
    "Exchange",
    "HttpModel",
    "HttpModelConfig",
    "SSEReader",
    "ServerEvent",
    "check_url",
    "debug_is_on",
    "explain_transport",
    "find_key",
    "find_url",
    "is_loopback",
    "log_request",
    "log_response",
    "raw_event",
]
