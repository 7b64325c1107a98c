"""What a Gemini model can be told beyond what every model understands."""

from __future__ import annotations

from typing import Literal

from turnlog.contract import AgentError, JsonObject

from .._http import HttpModelConfig

_LEVELS = ("minimal", "low", "medium", "high", "dynamic", "disabled")


class GoogleConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``thinking`` is a budget in tokens, one of ``minimal``, ``low``, ``medium``, ``high``, ``dynamic`` and
    ``disabled``, or the API's own object; ``include_thoughts`` shows what was thought (it does where
    ``thinking`` is set).

    ``platform`` is ``vertex`` for Google Cloud: with ``project`` and ``location``, or a ``base_url`` up to
    the location; there the key is an access token, sent as a bearer token, unless it looks like an API key
    or ``auth`` says otherwise. ``safety_settings`` are category → threshold. ``server_tools`` are tools that
    run at Google, in the API's own form (``{"codeExecution": {}}``). ``response_schema`` is a JSON schema
    that the answer's text must fit. ``tool_schema="openapi"`` is for servers that do not read JSON schemas.
    ``stream_arguments`` lets the arguments of calls come in pieces, where the server can.
    """

    thinking: int | str | JsonObject | None = None
    include_thoughts: bool | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_schema: JsonObject | None = None
    generation_config: JsonObject | None = None
    safety_settings: dict[str, str] | None = None
    server_tools: list[JsonObject] | None = None
    tool_schema: Literal["json", "openapi"] = "json"
    stream_arguments: bool | None = None
    cached_content: str | None = None
    service_tier: str | None = None
    labels: dict[str, str] | None = None
    platform: Literal["google", "vertex"] | None = None
    project: str | None = None
    location: str | None = None
    auth: Literal["api-key", "bearer"] | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.thinking, bool):
            raise AgentError(
                "ConfigInvalid", "thinking is a yes or no; write 'dynamic', 'disabled', a level or a budget"
            )
        if isinstance(self.thinking, str) and self.thinking not in _LEVELS:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking!r}; expected a budget in tokens, {', '.join(_LEVELS)}, "
                "or the API's own object",
            )
        if isinstance(self.thinking, int) and self.thinking < -1:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking}; a budget is 0 or more, -1 lets the model choose",
            )
        if self.platform == "google" and self.project:
            raise AgentError("ConfigInvalid", "project is set, which only platform 'vertex' has")
