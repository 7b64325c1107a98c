"""The transport that all adapters behind HTTP share, for adapters of other packages too.

``HttpModel`` is the base of such an adapter, ``HttpModelConfig`` of its configuration, ``Exchange`` one
request with its answer. ``map_fault`` and ``map_stream_fault`` say what a refusal means, ``retry_after_of``
how long a provider asks to wait. ``SSEReader`` works on bytes alone.
"""

from .._faults import map_fault, map_stream_fault, retry_after_of
from ._exchange import Exchange
from ._model import HttpModel, HttpModelConfig
from ._read import ServerEvent, SSEReader

__all__ = [
    "Exchange",
    "HttpModel",
    "HttpModelConfig",
    "SSEReader",
    "ServerEvent",
    "map_fault",
    "map_stream_fault",
    "retry_after_of",
]
