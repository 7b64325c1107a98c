"""Configuration of a model, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

import msgspec

from turnlog.contract import (
    AgentError,
    Feature,
    JsonObject,
    Message,
    Prices,
    RequestMetadata,
    Secret,
    ToolChoice,
    ToolSpec,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # a default is what Python 3.13 brings

    C = TypeVar("C", bound="ModelConfig", default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C", bound="ModelConfig")


CAPABLE: frozenset[Feature] = frozenset(get_args(Feature))
"""What an adapter of a large provider can do."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """``auto`` sets cache marks on the stable prefix where the provider wants them."""

    strategy: Literal["auto", "off"] = "auto"
    ttl: str | None = None


class ModelConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What every model understands; each provider's subclass adds its own fields.

    ``context_window`` and ``max_output_tokens`` say what a model takes, and ``prices`` what it costs, where
    the table of models does not know it, or not rightly. ``include_raw`` puts what the provider sent into
    ``provider_raw`` of the deltas, for debugging.
    """

    model_id: str
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    tool_choice: ToolChoice | None = None
    cache_config: CacheConfig | None = None
    include_raw: bool = False
    context_window: int | None = None
    max_output_tokens: int | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if not self.model_id:
            raise AgentError("ConfigInvalid", "model_id is empty; name a model, for example 'openai:gpt-5.2'")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise AgentError("ConfigInvalid", f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise AgentError("ConfigInvalid", f"temperature is {self.temperature}; it must be 0 to 2")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise AgentError("ConfigInvalid", f"top_p is {self.top_p}; it must be above 0 and at most 1")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    provider_id: str
    specification: str
    model_id: str
    context_window: int | None = None
    max_output_tokens: int | None = None
    features: frozenset[Feature] = frozenset()


class PromptPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A piece of the system prompt; ``cache``: up to its end the prompt is the same in every call."""

    text: str
    cache: bool = False


class ModelRequest(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """One call as an adapter sees it: read-only, complete, with the configuration that holds for it.

    ``system_prompt`` is the whole prompt, also where it came in parts. Where ``raw`` is a list, an adapter
    appends each event it reads, as plain JSON; the next delta takes them along.
    """

    messages: Sequence[Message]
    tool_specs: tuple[ToolSpec, ...]
    system_prompt: str | None
    tool_choice: ToolChoice | None
    metadata: RequestMetadata
    config: C
    params: JsonObject
    raw: list[JsonObject] | None = None
    system_prompt_content: tuple[PromptPart, ...] = ()
    output_schema: JsonObject | None = None
    invocation_state: Mapping[str, Any] | None = None

    @property
    def prompt_parts(self) -> tuple[PromptPart, ...]:
        """The system prompt in parts: as it was given, or in one."""
        if self.system_prompt_content or not self.system_prompt:
            return self.system_prompt_content
        return (PromptPart(text=self.system_prompt),)


def build_config(cls: type[C], fields: dict[str, Any], base: C | None = None) -> C:
    """A config of ``cls`` from keyword arguments; what is wrong is said by field name."""
    known = cls.__struct_fields__
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise AgentError(
            "ConfigInvalid",
            f"{cls.__name__} has no field {', '.join(map(repr, unknown))}; it has {', '.join(known)}",
        )
    try:
        given = {} if base is None else {name: getattr(base, name) for name in known}
        plain = {cls.__struct_encode_fields__[known.index(k)]: v for k, v in {**given, **fields}.items()}
        return msgspec.convert(msgspec.to_builtins(plain, enc_hook=_open), cls, dec_hook=_close)
    except (msgspec.ValidationError, TypeError, NotImplementedError) as error:
        raise AgentError("ConfigInvalid", f"{cls.__name__}: {error}", cause=error) from error


def _open(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"a {type(value).__name__} is not configuration")


def _close(kind: type, value: Any) -> Any:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise NotImplementedError(f"expected a {kind.__name__}")
