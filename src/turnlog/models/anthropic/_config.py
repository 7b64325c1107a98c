"""What Anthropic's Messages API can be told beyond what every model understands."""

from __future__ import annotations

from typing import Literal

from turnlog.contract import AgentError, JsonObject

from .._http import HttpModelConfig

_SMALLEST_BUDGET = 1024
_THINKING = ("adaptive", "between_tools", "disabled")


class AnthropicConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``thinking`` is a budget in tokens, one of ``adaptive``, ``between_tools`` and ``disabled``, or the
    API's own object; ``effort`` how hard the model tries.

    ``platform`` is ``vertex`` for Google's address (``base_url`` up to the location), whose key is a bearer
    token; ``auth`` says how the key is sent elsewhere. ``server_tools`` are tools that run at Anthropic, in
    the API's own form. ``eager_tool_streaming`` lets arguments come as they are written, checked by nobody.
    ``unsigned_thinking`` sends thinking back that carries no signature: local servers want it, Anthropic
    refuses it.
    """

    thinking: int | str | JsonObject | None = None
    effort: str | None = None
    top_k: int | None = None
    parallel_tool_calls: bool | None = None
    server_tools: list[JsonObject] | None = None
    eager_tool_streaming: bool | None = None
    unsigned_thinking: bool = False
    betas: list[str] | None = None
    anthropic_version: str = "2023-06-01"
    platform: Literal["anthropic", "vertex"] = "anthropic"
    auth: Literal["api-key", "bearer"] | None = None
    container: str | None = None
    service_tier: str | None = None
    user_id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.thinking, str) and self.thinking not in _THINKING:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking!r}; expected a budget in tokens, {', '.join(_THINKING)}, "
                "or the API's own object",
            )
        if isinstance(self.thinking, bool):
            raise AgentError(
                "ConfigInvalid", "thinking is a yes or no; write 'adaptive', 'disabled' or a budget"
            )
        if isinstance(self.thinking, int):
            self._check_budget(self.thinking)

    def _check_budget(self, budget: int) -> None:
        if budget < _SMALLEST_BUDGET:
            raise AgentError(
                "ConfigInvalid", f"thinking is a budget of {budget} tokens; the least is {_SMALLEST_BUDGET}"
            )
        if self.max_tokens is not None and self.max_tokens <= budget:
            raise AgentError(
                "ConfigInvalid",
                f"max_tokens is {self.max_tokens} and the thinking budget {budget}; "
                "thinking counts as output, so max_tokens must be larger",
            )
        if self.temperature not in (None, 1):
            raise AgentError(
                "ConfigInvalid", f"temperature is {self.temperature}; with a thinking budget it can only be 1"
            )
