"""An agent's configuration as data: serialisable, versioned, checked, readable from TOML."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from turnlog.context import ContextOptions
from turnlog.contract import (
    MASK,
    AgentError,
    ExecutionEnv,
    JsonObject,
    LoopLimits,
    ModelParams,
    RetryPolicy,
    ToolPolicy,
    Value,
    is_secret_name,
)
from turnlog.history import show_url
from turnlog.observe import show_logs
from turnlog.runtime import LocalRuntime, SandboxLevel

from ._lease import LEASE_TTL
from ._open_sessions import SessionOptions

CONFIG_VERSION = 1

V = TypeVar("V", bound=Value)


class ModelTable(Value, frozen=True, kw_only=True):
    """``name`` as ``load_model`` takes it; ``options`` configure it (``base_url``, …), ``params`` are sent
    with every call."""

    name: str
    options: JsonObject | None = None
    params: ModelParams | None = None

    def __repr__(self) -> str:
        options = self.options and {
            name: MASK if is_secret_name(name) or name == "extra_headers" else value
            for name, value in self.options.items()
        }
        return f"ModelTable(name={self.name!r}, options={options!r}, params={self.params!r})"


class RuntimeTable(Value, frozen=True, kw_only=True):
    """``data`` tells the model about its surroundings; it is stable for a session. With a ``workspace`` the
    agent has a ``LocalRuntime`` there, in the sandbox of ``level`` and under ``policy``."""

    data: JsonObject | None = None
    workspace: str | None = None
    level: SandboxLevel | Literal["auto"] = "auto"
    policy: ExecutionEnv = ExecutionEnv()

    def runtime(self) -> LocalRuntime | None:
        if self.workspace is None:
            return None
        return LocalRuntime(self.workspace, policy=self.policy, level=self.level)


class ToolsTable(ToolPolicy, frozen=True, kw_only=True):
    """The fields of ``ToolPolicy``, and which tool the model has to choose."""

    choice: str | None = None


class ContextTable(ContextOptions, frozen=True, kw_only=True):
    """The fields of ``ContextOptions``. ``recap``: true, or the name of the model that writes recaps."""

    recap: bool | str = False


class LoopTable(LoopLimits, frozen=True, kw_only=True):
    """The fields of ``LoopLimits``, how calls are retried, and how sessions are taken."""

    retry: RetryPolicy | None = None
    on_busy: Literal["refuse", "wait"] = "refuse"
    lease_ttl: float = LEASE_TTL
    warm_bytes: int = SessionOptions.warm_bytes
    snapshot_every: int = SessionOptions.snapshot_every


class ObservabilityTable(Value, frozen=True, kw_only=True):
    """``debug`` are categories of log lines to show: history, context, loop, …"""

    debug: list[str] = []


class AgentConfig(Value, frozen=True, kw_only=True):
    """Everything about an agent that is not an object: who it is, what it may do, how far it may go.

    Tools, hooks, widgets and other live parts are passed to :meth:`Agent.from_config` apart from it.
    """

    version: int = CONFIG_VERSION
    name: str = "agent"
    instructions: str | None = None
    store: str | None = None
    model: ModelTable | str | None = None
    runtime: RuntimeTable = RuntimeTable()
    tools: ToolsTable = ToolsTable()
    context: ContextTable = ContextTable()
    loop: LoopTable = LoopTable()
    observability: ObservabilityTable = ObservabilityTable()

    def __post_init__(self) -> None:
        if self.version > CONFIG_VERSION:
            raise AgentError(
                "ConfigInvalid",
                f"this configuration has version {self.version}, this turnlog knows up to {CONFIG_VERSION}; "
                "upgrade turnlog",
            )

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["store"] = self.store and show_url(self.store)
        return f"AgentConfig({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    def arguments(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of ``Agent`` that this configuration stands for; those in ``parts`` win."""
        model = ModelTable(name=self.model) if isinstance(self.model, str) else self.model
        if model is None and "model" not in parts:
            raise AgentError(
                "ConfigInvalid",
                'the configuration names no model; add one, as model = "anthropic:MODEL", or pass model=…',
            )
        show_logs(self.observability.debug)
        loop = self.loop
        found: dict[str, Any] = {
            "model": model.name if model is not None else None,
            "model_options": model.options if model is not None and "model" not in parts else None,
            "params": model.params if model is not None else None,
            "name": self.name,
            "instructions": self.instructions,
            "store": self.store,
            "runtime": self.runtime.runtime(),
            "runtime_data": self.runtime.data,
            "tool_policy": _only(self.tools, ToolPolicy),
            "tool_choice": self.tools.choice,
            "context": _only(self.context, ContextOptions),
            "recap": self.context.recap,
            "limits": _only(loop, LoopLimits),
            "retry": loop.retry,
            "sessions": SessionOptions(
                on_busy=loop.on_busy,
                lease_ttl=loop.lease_ttl,
                warm_bytes=loop.warm_bytes,
                snapshot_every=loop.snapshot_every,
            ),
        }
        return {**found, **parts}


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
        raise AgentError("ConfigInvalid", f"{path}: {_words(error)}", cause=error) from error


_UNKNOWN = re.compile(r"Object contains unknown field `(\w+)`(?: - at `\$\.([\w.]+)`)?")


def _words(error: msgspec.ValidationError) -> str:
    """What is wrong with a file; a field that does not exist is named as people write it, with the others."""
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return str(error)
    wrong, place = _as_snake(found[1]), (found[2] or "").split(".")
    known = _fields_at(inspect.type_info(AgentConfig), [name for name in place if name])
    near = difflib.get_close_matches(wrong, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    where = f"[{'.'.join(map(_as_snake, place))}]" if found[2] else "the file"
    return f"{where} has no field {wrong}{hint} Its fields: {', '.join(known)}"


def _fields_at(info: inspect.Type, place: Sequence[str]) -> list[str]:
    options = info.types if isinstance(info, inspect.UnionType) else (info,)
    for struct in options:
        if not isinstance(struct, inspect.StructType):
            continue
        if not place:
            return [_as_snake(field.encode_name) for field in struct.fields]
        for field in struct.fields:
            if field.encode_name == place[0]:
                return _fields_at(field.type, place[1:])
    return []


def _as_snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def _only(table: V, kind: type[V]) -> V:
    """The part of a table that is a value of its own."""
    return kind(**{name: getattr(table, name) for name in kind.__struct_fields__})


_AS_WRITTEN = ("model.options", "model.params.extra", "runtime.data", "runtime.policy.variables")
"""Tables whose keys are the user's own, or a provider's."""


def _camel(value: object, *, at: str = "") -> object:
    if not isinstance(value, dict):
        return value
    found: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
    if at in _AS_WRITTEN:
        return found
    return {_as_camel(key): _camel(item, at=f"{at}.{key}".lstrip(".")) for key, item in found.items()}


def _as_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
