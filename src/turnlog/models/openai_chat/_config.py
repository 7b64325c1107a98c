"""What a Chat Completions model can be told."""

from __future__ import annotations

from typing import Any, Literal

from turnlog.contract import AgentError, JsonObject

from .._http import HttpModelConfig
from ._quirks import ReasoningBack


class OpenAIChatConfig(HttpModelConfig, frozen=True, kw_only=True):
    """Fields of the protocol, and five that say how a server differs where its host does not tell.

    ``max_tokens_field`` names the limit's field; ``reasoning_back`` where earlier thoughts are sent back;
    ``think_tags`` takes ``<think>…</think>`` at the start of an answer apart as thinking; ``images``
    says whether the model sees; ``include_usage`` asks for token counts. ``api_version`` is Azure's;
    ``context_window`` and ``max_output_tokens`` say what a model takes that the table does not know.
    """

    reasoning_effort: str | None = None
    verbosity: str | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    service_tier: str | None = None
    user: str | None = None
    organization: str | None = None
    project: str | None = None
    api_version: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    reasoning_back: ReasoningBack | None = None
    think_tags: bool = False
    images: bool | None = None
    include_usage: bool | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("presence_penalty", "frequency_penalty"):
            value: Any = getattr(self, name)
            if value is not None and not -2 <= value <= 2:
                raise AgentError("ConfigInvalid", f"{name} is {value}; it must be -2 to 2")
