"""Which adapter reads which protocol of the recorded exchanges. A new adapter adds its lines here.

An adapter that is not there yet is left out, so the table may be ahead of the code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import httpx2

from turnlog.testing import FixedClock, FixedIds

if TYPE_CHECKING:
    from turnlog.models import Model

ADAPTERS: dict[str, str] = {
    "openai-chat": "turnlog.models.openai_chat:OpenAIChatModel",
    "mistral-chat": "turnlog.models.openai_chat:OpenAIChatModel",
    "anthropic-messages": "turnlog.models.anthropic:AnthropicModel",
    "openai-responses": "turnlog.models.openai_responses:OpenAIResponsesModel",
    "gemini": "turnlog.models.google:GoogleModel",
}
"""Protocol → ``module:class``. The class takes ``base_url``, ``api_key`` and ``client``."""

ENDS_IN_ERROR: dict[str, str] = {
    "anthropic.anthropic.vercelai.spliced-message-start.846500": "two answers were spliced into one stream",
    "gemini.google-vertex.pydantic-ai.test-google-model-armor-prompt-template-text.290880": "blocked",
    "gemini.google-vertex.vertexai-sdk-t.unary-failure-prompt-blocked-safety-with-mes.0a54ab": "blocked",
    "gemini.google-vertex.vertexai-sdk-t.streaming-failure-invalid-json.a90bf1": "no answer in it",
    "gemini.google.gemini-cli.context-compress-interactive-compress.1d1958": "the call it made is malformed",
}
"""Id of a recorded answer that is rightly refused → why, although the index calls it an answer."""

NOT_READ = frozenset(
    {
        "gemini.google.vercelai.google-stream-no-args-tool-call.e5d39f",
        "gemini.google.vercelai.google-stream-tool-call-arguments.108513",
    }
)
"""Arguments of calls in pieces, which the API sends only where it is asked to; we do not ask."""


def known_protocols() -> list[str]:
    return [protocol for protocol in ADAPTERS if _find(protocol) is not None]


def make_model(
    protocol: str,
    base_url: str = "http://127.0.0.1:1",
    client: httpx2.AsyncClient | None = None,
    **fields: Any,
) -> Model:
    """The adapter of ``protocol``, with a clock and ids that are the same on every run."""
    found = _find(protocol)
    assert found is not None, protocol
    return found(
        "recorded-model",
        base_url=base_url,
        api_key="sk-test-key-of-no-worth",
        client=client,
        clock=FixedClock(),
        ids=FixedIds(),
        **fields,
    )


def _find(protocol: str) -> Any:
    module, _, name = ADAPTERS[protocol].partition(":")
    try:
        return getattr(import_module(module), name, None)
    except ModuleNotFoundError:
        return None
