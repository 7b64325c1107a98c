"""An agent's configuration as data: serialisable, versioned, checked, readable from TOML."""

from __future__ import annotations

from pathlib import Path

import msgspec

from turnlog.context import ContextOptions
from turnlog.contract import AgentError, LoopLimits, RetryPolicy, ToolPolicy, Value, decode

CONFIG_VERSION = 1


class AgentConfig(Value, frozen=True, kw_only=True):
    """Everything about an agent that is not an object: who it is, what it may do, how far it may go.

    Models, stores, tools and other live parts are passed to :class:`Agent` apart from it.
    """

    version: int = CONFIG_VERSION
    name: str = "agent"
    instructions: str | None = None
    model: str | None = None
    store: str | None = None
    tool_policy: ToolPolicy = ToolPolicy()
    limits: LoopLimits = LoopLimits()
    retry: RetryPolicy = RetryPolicy()
    context: ContextOptions = ContextOptions()
    observability: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.version > CONFIG_VERSION:
            raise AgentError(
                "ConfigInvalid",
                f"this configuration has version {self.version}, this turnlog knows up to {CONFIG_VERSION}; "
                "upgrade turnlog",
            )


def load_config(path: str | Path) -> AgentConfig:
    """Read ``path`` (TOML, keys in camelCase or snake_case). Raises ``ConfigInvalid`` naming the field."""
    import tomllib  # most agents have no such file

    try:
        text = Path(path).read_bytes()
        plain = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot read {path}: {error.strerror}", cause=error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AgentError("ConfigInvalid", f"{path} is not TOML: {error}", cause=error) from error
    try:
        return msgspec.convert(_camel(plain), AgentConfig)
    except msgspec.ValidationError as error:
        raise AgentError("ConfigInvalid", f"{path}: {error}", cause=error) from error


def read_config(data: bytes) -> AgentConfig:
    return decode(data, AgentConfig)


def _camel(value: object) -> object:
    if isinstance(value, dict):
        return {msgspec_camel(str(key)): _camel(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def msgspec_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
