"""What people hand to an agent and its runs: typed, the same wherever a run is started, and checked at the
call, so that a mistake is named there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, TypeAlias, TypedDict, cast

from typing_extensions import TypeVar

from turnlog.contract import (
    FINAL_ANSWER,
    AgentError,
    Feature,
    IdSource,
    Input,
    JsonObject,
    LoopLimits,
    Message,
    MessagePart,
    ModelParams,
    Rerun,
    RetryPolicy,
    RunInput,
    SpecificTool,
    TextPart,
    ToolChoice,
    ToolPolicy,
    Value,
    decode,
    encode,
    find_unjson,
    text_part,
    user_message,
)
from turnlog.files import File
from turnlog.history import Session
from turnlog.models import Model
from turnlog.tools import OutputType, check_deps
from turnlog.widgets import Widget

from ._budget import Budget
from ._output import choose_mode
from ._ports import Said
from ._rerun import Plan, Recording

T = TypeVar("T")
V = TypeVar("V", bound=Value)
Out = TypeVar("Out", default=Any)

OutputSpec: TypeAlias = type[Out] | OutputType[Out] | UnionType
"""What a run may be asked for: a type, a union of types, or an ``OutputType`` with a check of its own."""

_RESERVED = ("messages", "output_schema", "request_metadata", "system_prompt", "tool_choice", "tool_specs")
"""What a run puts into a model call itself."""

AnyInput: TypeAlias = str | Message | Input | Sequence[str | File | MessagePart]
"""What can be said to an agent: text, a message, a list of texts, files and parts, or an ``Input`` with
titled sections and levels of detail of its own."""


def said_by(given: AnyInput) -> Said:
    """An input as a run takes it; its files are read here. Raises ``InvalidMessage`` for what cannot be
    said."""
    if isinstance(given, Message):
        return Said(given)
    if not isinstance(given, Input):
        return Said(user_message(_read(given)))
    message = replace(given, text=_read(given.text)).message()
    return Said(message, summary=given.summary, gist=given.gist, sections=tuple(given.live_sections))


def _read(given: str | Sequence[Any]) -> str | Sequence[MessagePart]:
    if isinstance(given, str) or not isinstance(given, list | tuple):
        return given
    texts = {str: text_part, File: File.part}
    return [texts[type(one)](one) if type(one) in texts else one for one in given]


class RunOptions(TypedDict, total=False):
    """Options of one run; each overrides what its agent was given.

    ``deps`` is handed to tools as ``ctx.deps``. ``instructions`` replaces the agent's for this run.
    ``tool_choice`` is ``"auto"``, ``"none"``, ``"required"`` or a tool's name. ``title`` and ``metadata``
    name a session that this run makes; with ``auto_create=False`` the session must exist. ``runtime_data`` is
    stable for a session, ``runtime_hints`` may change with every run; the model sees both. ``role`` is for a
    router to choose by. ``trace_id`` is passed on to providers and tools, ``invocation_state`` to the model's
    adapter. ``system_prompt_content`` is the system prompt in parts, for providers that take it so.
    """

    run_id: str | None
    instructions: str | None
    deps: Any
    params: ModelParams | None
    limits: LoopLimits | None
    retry: RetryPolicy | None
    allowed_tools: Sequence[str] | None
    tool_order: Sequence[str] | None
    tool_policy: ToolPolicy | None
    tool_choice: ToolChoice | str | None
    role: str | None
    runtime_data: JsonObject | None
    runtime_hints: JsonObject | None
    auto_create: bool
    title: str | None
    metadata: JsonObject | None
    trace_id: str | None
    invocation_state: JsonObject | None
    system_prompt_content: Sequence[TextPart] | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recording that answers calls first, and what of it is changed."""

    recording: Recording
    plan: Plan
    change: Rerun


@dataclass(frozen=True, slots=True)
class RunObjects:
    """What a run is given that no log can hold: the deps of its tools, the type of its output, the budget and
    the call that it works under, and its ``invocation_state`` as it was given: in the log it is masked."""

    deps: Any = None
    output: OutputType[Any] | None = None
    under: tuple[Budget, str] | None = None
    invocation_state: JsonObject | None = None
    model: Model | None = None
    """Answers in place of the agent's."""
    what_if: WhatIf | None = None


NO_OBJECTS = RunObjects()


@dataclass(frozen=True, kw_only=True)
class RunDefaults:
    """What every run of an agent starts from."""

    name: str
    tool_policy: ToolPolicy
    limits: LoopLimits
    retry: RetryPolicy
    instructions: str | None = None
    tool_choice: ToolChoice | None = None
    params: ModelParams | None = None
    runtime_data: JsonObject | None = None
    deps: Any = None
    deps_type: Any = None
    output: OutputType[Any] | None = None
    supports: Callable[[Feature], bool]
    parent: tuple[str, str] | None = None
    """The session and the call that a run of this agent answers."""
    under: tuple[Budget, str] | None = None
    tool_names: Callable[[], Sequence[str]] = tuple
    check_tools: Callable[[object], None] | None = None

    def prepare(
        self,
        session_id: str,
        message: Message,
        options: RunOptions,
        ids: IdSource,
        output: OutputType[Any] | None = None,
    ) -> RunInput:
        """The run as the loop takes it. Raises ``ConfigInvalid`` for an option that does not exist or is of
        the wrong type, and ``InvalidMessage`` for an input that cannot be said."""
        _check_names(options)
        title, metadata = options.get("title"), options.get("metadata")
        params = options.get("params") or self.params
        check_params(params)
        check_value("limits", options.get("limits"), LoopLimits)
        check_value("retry", options.get("retry"), RetryPolicy)
        check_value("tool_policy", options.get("tool_policy"), ToolPolicy)
        check_kind("auto_create", options.get("auto_create"), bool, "True or False")
        for name in ("run_id", "instructions", "role", "trace_id"):
            check_kind(name, options.get(name), str, "text")
        for name in ("allowed_tools", "tool_order"):
            check_names(name, options.get(name))
        choice = read_choice(options.get("tool_choice"), self.tool_names)
        run_id = options.get("run_id")
        if run_id == "":
            raise AgentError("ConfigInvalid", "run_id is empty; leave it out, or give the run a name")
        if session_id == "":
            raise AgentError("ConfigInvalid", "session is empty; leave it out, or give the session a name")
        mode = None if output is None else choose_mode(output, self.supports)
        if mode == "tool" and FINAL_ANSWER in self.tool_names():
            raise AgentError(
                "ConfigInvalid",
                f"this agent has a tool named {FINAL_ANSWER!r}, the name that a model without output schemas "
                "gives its structured output under; give your tool another",
            )
        schema = output.json_schema if output is not None and output.type is not str else None
        return RunInput(
            session_id=session_id,
            run_id=ids.run() if run_id is None else run_id,
            input_messages=[message],
            system_prompt_override=_prompt(options),
            allowed_tools=_listed(options.get("allowed_tools")),
            tool_order=_listed(options.get("tool_order")),
            tool_policy=options.get("tool_policy") or self.tool_policy,
            loop_limits=options.get("limits") or self.limits,
            retry=options.get("retry") or self.retry,
            tool_choice=self.tool_choice if choice is None else choice,
            auto_create_session=options.get("auto_create", True),
            runtime_init_data=check_kind(
                "runtime_data", options.get("runtime_data") or self.runtime_data, dict, "a dict"
            ),
            runtime_hints=check_kind("runtime_hints", options.get("runtime_hints"), dict, "a dict"),
            model_params=params.to_fields() or None if params is not None else None,
            role=options.get("role"),
            trace_id=options.get("trace_id"),
            invocation_state=check_kind("invocation_state", options.get("invocation_state"), dict, "a dict"),
            system_prompt_content=_listed(options.get("system_prompt_content")),
            agent_name=self.name,
            parent_session_id=self.parent[0] if self.parent is not None else None,
            parent_tool_call_id=self.parent[1] if self.parent is not None else None,
            output_schema=schema,
            output_mode=mode,
            output_field=output.field if output is not None and schema is not None else None,
            title=check_kind("title", title, str, "text"),
            session_metadata=check_kind("metadata", metadata, dict, "a dict"),
        )

    def check_deps(self, options: RunOptions) -> Any:
        """The deps of a run. Raises ``ConfigInvalid`` when they are not of the agent's ``deps_type``."""
        deps = options.get("deps")
        deps = self.deps if deps is None else deps
        if self.deps_type is not None:
            check_deps(deps, self.deps_type)
        if self.check_tools is not None:
            self.check_tools(deps)
        return deps


def read_choice(choice: ToolChoice | str | None, tools: Callable[[], Sequence[str]]) -> ToolChoice | None:
    """A choice as the log has it: the name of a tool stands for that tool."""
    if isinstance(choice, str) and choice not in ("auto", "required", "none"):
        if choice not in (known := tools()):
            raise AgentError(
                "ConfigInvalid",
                f"tool_choice is {choice!r}; pass 'auto', 'required', 'none' or the name of a tool: "
                f"{', '.join(known) or 'this agent has none'}",
            )
        return SpecificTool(name=choice)
    check_choice(choice)
    return choice


def _check_names(options: RunOptions) -> None:
    known = RunOptions.__annotations__
    for name in options:
        if name in known:
            continue
        near = difflib.get_close_matches(name, [*known, "session", "check", "output_type"], n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise AgentError(
            "ConfigInvalid",
            f"a run has no option {name!r}{hint} Its options: session, {', '.join(known)}. Model parameters "
            "go under params=ModelParams(…)",
        )


def check_params(params: object) -> None:
    """Raises ``ConfigInvalid`` for parameters of the wrong type, and for what a run sets itself."""
    check_kind("params", params, ModelParams, "ModelParams(temperature=…)")
    if not isinstance(params, ModelParams):
        return
    check_value("params", params, ModelParams)
    if taken := [name for name in _RESERVED if name in (params.extra or {})]:
        raise AgentError(
            "ConfigInvalid",
            f"params.extra may not hold {', '.join(taken)}: a run sets it itself; the text is the input, and "
            "instructions are the system prompt",
        )


def _prompt(options: RunOptions) -> str | None:
    content = options.get("system_prompt_content")
    if content is None:
        return options.get("instructions")
    if options.get("instructions") is not None:
        raise AgentError("ConfigInvalid", "give instructions, or system_prompt_content, not both")
    return joined(content)


def _listed(found: Sequence[T] | None) -> list[T] | None:
    return None if found is None else list(found)


# ── checks ──

_STORES = "memory:, jsonl:DIR, sqlite:FILE or postgresql://user@host/database"


def check_model(model: object, what: str = "model") -> None:
    if isinstance(model, Model):
        return
    if isinstance(model, type):
        name = getattr(model, "__name__", "")
        raise _wrong(f"{what} is the class {name}; pass an instance, as {name}(…)")
    raise _wrong(f"{what} is {_kind(model)}; pass a name as 'local' or 'anthropic:MODEL', or a Model")


def check_store(store: object) -> None:
    if isinstance(store, str) and store:
        return
    if isinstance(store, type):
        raise _wrong(f"store is the class {store.__name__}; pass an instance, as {store.__name__}()")
    if not all(hasattr(store, method) for method in ("append", "load", "tail", "claim")):
        raise _wrong(f"store is {_kind(store)}; pass {_STORES}, or a store")


def check_list(name: str, given: object) -> None:
    if not isinstance(given, list | tuple | set | frozenset):
        raise _wrong(f"{name} is {_kind(given)}; pass a list, also for one")  # pyright: ignore[reportUnknownArgumentType]


def check_names(name: str, given: object) -> None:
    if given is None:
        return
    if isinstance(given, str):
        raise _wrong(f"{name} is the text {given!r}; pass a list of tool names")
    check_list(name, given)
    for item in cast("Iterable[object]", given):
        check_kind(name, item, str, "a list of tool names")


def joined(parts: Iterable[TextPart]) -> str:
    """A system prompt that was given in parts, as one text."""
    return "\n\n".join(part.payload.text for part in parts)


def check_widgets(widgets: Iterable[Widget[Any]]) -> tuple[Widget[Any], ...]:
    check_list("widgets", widgets)
    for widget in widgets:
        if isinstance(widget, type) or not all(hasattr(widget, part) for part in ("name", "tools", "reduce")):
            raise _wrong(f"{_kind(widget)} is no widget; pass one as MemoryNotebookWidget()")
    return tuple(widgets)


def check_kind(
    name: str, given: T, kind: type[Any] | tuple[type[Any], ...], words: str, *, required: bool = False
) -> T:
    if (given is not None or required) and not isinstance(given, kind):
        raise _wrong(f"{name} is {_kind(given)}; pass {words}")
    return given


def check_value(name: str, given: V | None, kind: type[V]) -> None:
    """Structs do not look at what they are made of; the log would."""
    if given is None:
        return
    check_kind(name, given, kind, f"a {kind.__name__}")
    try:
        decode(encode(given), kind)
    except AgentError as error:
        raise _wrong(f"{name}: {error.message}") from error
    for field in given.__struct_fields__:
        amount = getattr(given, field)
        if isinstance(amount, int | float) and not amount >= 0:
            raise _wrong(f"{name}: {field} is {amount}; it must be 0 or more")


def check_choice(choice: object) -> None:
    if choice is not None and choice not in ("auto", "required", "none"):
        check_kind("tool_choice", choice, SpecificTool, "'auto', 'required', 'none' or SpecificTool(name=…)")


def check_duck(name: str, given: object, method: str, words: str) -> None:
    if given is not None and not callable(getattr(given, method, None)):
        raise _wrong(f"{name} is {_kind(given)}; pass {words}")


def check_named(session: Session, run: RunInput) -> None:
    """A session is named when it is made: a title that would not be kept is refused."""
    if session.tail_seq == 0:
        if found := find_unjson(run.session_metadata or {}):
            raise _wrong(f"metadata: {found}")
        return
    if run.title is not None and run.title != session.title:
        raise _wrong(
            f"session {session.session_id} is there already, "
            + (f"with the title {session.title!r}" if session.title else "without a title")
            + "; a title is given when a session is made: leave it out here"
        )
    if run.session_metadata and run.session_metadata != session.metadata:
        raise _wrong(
            f"session {session.session_id} is there already, with other metadata; it is given when a session "
            "is made: leave it out here"
        )


def _kind(given: object) -> str:
    if given is None or isinstance(given, str):
        return repr(given) if given is None or len(given) < 40 else "a long text"
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _wrong(message: str) -> AgentError:
    return AgentError("ConfigInvalid", message)
