"""What Bedrock's Converse can be told beyond what every model understands."""

from __future__ import annotations

from turnlog.contract import AgentError, JsonObject

from .._config import ModelConfig


class BedrockConfig(ModelConfig, frozen=True, kw_only=True):
    """``additional_request_fields`` are the model's own (``{"thinking": {…}}`` for Claude, say);
    ``guardrail``, ``performance`` and ``service_tier`` go out as they are; ``system_tools`` names tools that
    run at the provider. ``region`` matters only when no client is handed in.

    Times are in seconds: until the first event, and between two of them.
    """

    region: str | None = None
    additional_request_fields: JsonObject | None = None
    additional_response_paths: list[str] | None = None
    guardrail: JsonObject | None = None
    performance: JsonObject | None = None
    service_tier: str | None = None
    effort: str | None = None
    system_tools: list[str] | None = None
    timeout_first_byte: float = 600.0
    timeout_silence: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout_first_byte", "timeout_silence"):
            if not getattr(self, name) > 0:
                raise AgentError(
                    "ConfigInvalid", f"{name} is {getattr(self, name)}; it must be more than 0 seconds"
                )
