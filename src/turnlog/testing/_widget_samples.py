"""What a widget is checked with: arguments for its tools, a session it lives through, an eye on what it
reaches for."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from types import FrameType
from typing import Any, cast

import msgspec

from turnlog.contract import (
    CompactionSummary,
    Entry,
    Fold,
    JsonObject,
    LoopLimits,
    Message,
    ModelCallStarted,
    ModelInvocationDescriptor,
    ModelOutput,
    RetryPolicy,
    RunEnded,
    RunStarted,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolPolicy,
    ToolResults,
    ToolStarted,
    WidgetEvent,
    encode,
    tool_result_part,
    user_message,
)
from turnlog.history import MemoryStore, Session
from turnlog.widgets import Widget, WidgetAnswer, WidgetHost

from ._time import FixedClock, FixedIds

SESSION = "widget-check"
_TARGET = ModelInvocationDescriptor(provider_id="scripted", specification="scripted", model="scripted")
_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "localtime"}
_FILES = {"open", "urandom", "listdir", "scandir", "stat", "getcwd", "getpid"}


# ── schemas ──


def check_parameters(schema: Any, where: str) -> None:
    """Raise ``AssertionError`` where ``schema`` is no JSON schema that a provider would take."""
    if not isinstance(schema, dict):
        raise AssertionError(f"{where} is {schema!r}, not a JSON schema")
    found = cast("JsonObject", schema)
    kinds = found.get("type", [])
    for kind in cast("list[Any]", kinds if isinstance(kinds, list) else [kinds]):
        if kind not in _TYPES:
            raise AssertionError(f"{where}: there is no type {kind!r}; types are {', '.join(sorted(_TYPES))}")
    properties = found.get("properties", {})
    required = found.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise AssertionError(f"{where}: properties is an object and required a list")
    for name in cast("list[Any]", required):
        if name not in properties:
            raise AssertionError(f"{where} requires {name!r}, which is none of its properties")
    for name, inner in cast("JsonObject", properties).items():
        check_parameters(inner, f"{where}.{name}")
    if "items" in found:
        check_parameters(found["items"], f"{where}[]")
    if "enum" in found and not found["enum"]:
        raise AssertionError(f"{where}: enum is empty, so nothing fits it")


def sample(schema: JsonObject, variant: int = 0) -> Any:
    """A value that fits ``schema``; another for another ``variant``."""
    if "enum" in schema:
        return schema["enum"][variant % len(schema["enum"])]
    kind: Any = schema.get("type", "string")
    if isinstance(kind, list):
        kind = cast("list[str]", kind)[0]
    match kind:
        case "object":
            properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
            return {name: sample(inner, variant) for name, inner in properties.items()}
        case "array":
            count = max(1, int(schema.get("minItems", 1)))
            return [sample(schema.get("items", {}), variant + at) for at in range(count)]
        case "integer" | "number":
            return max(1, int(schema.get("minimum", 1))) + (variant if "maximum" not in schema else 0)
        case "boolean":
            return variant % 2 == 0
        case "null":
            return None
        case _:
            return f"sample {variant + 1}"


# ── states ──


def picture(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """``value`` as plain data that can be compared, whatever it is made of."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if id(value) in seen:
        return "…"
    seen = (*seen, id(value))
    kind: str = type(value).__name__
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        pairs = [(picture(key, seen), picture(item, seen)) for key, item in items]
        return [kind, *sorted(pairs, key=repr)]
    if isinstance(value, AbstractSet):
        members = [picture(item, seen) for item in cast("AbstractSet[Any]", value)]
        return [kind, *sorted(members, key=repr)]
    if isinstance(value, Sequence):
        return [kind, *(picture(item, seen) for item in cast("Sequence[Any]", value))]
    return [kind, *((name, picture(getattr(value, name), seen)) for name in _names(value))]


def _names(value: Any) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*getattr(value, "__dict__", {}), *(name for name in slots if hasattr(value, name))})


def shuffled(value: Any) -> Any:
    """The same JSON with the keys of every object the other way round."""
    if isinstance(value, dict):
        items = list(cast("JsonObject", value).items())
        return {key: shuffled(item) for key, item in reversed(items)}
    if isinstance(value, list):
        return [shuffled(item) for item in cast("list[Any]", value)]
    return value


# ── purity ──


@contextmanager
def watch_outside() -> Generator[list[str]]:
    """What is called meanwhile that reads a clock, chance, the environment, files or the network."""
    found: list[str] = []
    before, collects = sys.getprofile(), gc.isenabled()

    def look(frame: FrameType, event: str, arg: Any) -> None:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module in ("logging", "importlib"):
            return
        reached = None
        if event == "c_call":
            reached = _outside(arg)
        elif event == "call" and module == "os" and frame.f_code.co_qualname.startswith("_Environ."):
            reached = "os.environ"
        if reached is not None and reached not in found:
            found.append(reached)

    gc.disable()  # callbacks of the collector look at clocks
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def _outside(function: Any) -> str | None:
    owner: Any = getattr(function, "__self__", None)
    name, module = str(getattr(function, "__name__", "")), str(getattr(function, "__module__", None) or "")
    if module == "time" and name in _CLOCKS:
        return f"time.{name}"
    if (owner is date or owner is datetime) and name in {"now", "utcnow", "today"}:
        return f"datetime.{name}"
    if isinstance(owner, random.Random) or module == "_random":
        return f"random.{name}"
    if (module in {"posix", "nt"} and name in _FILES) or (module in {"io", "_io"} and name == "open"):
        return f"os.{name}" if module in {"posix", "nt"} else "open"
    if type(owner).__module__ in {"socket", "_socket"}:
        return f"socket.{name}"
    return None


# ── a session ──


@dataclass(frozen=True)
class ToolUse:
    """A call that was made of a tool, and what came of it."""

    name: str
    answer: WidgetAnswer
    before: Any
    after: Any


class Played:
    """A session of the widget's, from its header to the end of a run: every tool called, every event taken,
    and all other kinds of entries that a widget may meet."""

    def __init__(
        self,
        widget: Widget[Any],
        calls: Sequence[tuple[str, JsonObject]],
        events: Sequence[WidgetEvent],
        *,
        change: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.store = MemoryStore()
        self.widget = widget
        self.host = WidgetHost([widget])
        self.uses: list[ToolUse] = []
        self._calls = calls
        self._events = events
        self._change = change
        self._count = 0
        clock, ids = FixedClock(), FixedIds()
        self._session = Session(self.store, SESSION, [], clock=clock, ids=ids)

    async def play(self) -> list[Entry]:
        """The entries as the store has them."""
        session = self._session
        self._take(session.set_system_instruction("You keep a widget."))
        started = RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy())
        self._take(session.start_run("run_1", started))
        self._take(session.init_runtime({"cwd": "/work"}))
        self._take(session.append_model_input(user_message("Go on.")))
        for name, path in (("read_file", "src/a.py"), ("write_file", "src/b.py"), ("edit", "src/a.py")):
            self._call(name, {"path": path}, lambda: WidgetAnswer("done"))
        for round in range(2):
            for name, arguments in self._calls:
                self._call(name, arguments, None)
            for event in self._events:
                data = self._change(event.data)
                self._take(session.append_widget_event(msgspec.structs.replace(event, data=data)))
            self._take(session.append_widget_event(_foreign(round)))
        noted = self._take(session.append_custom("note", {"n": 1}))
        self._take(session.append_compaction(CompactionSummary(first_kept_entry_id=noted.id, summary="So.")))
        fold = Fold(reason="manual", tokens_before=2, tokens_after=1, items=[], screen=self.host.screen())
        self._take(session.append_fold(fold))
        await session.commit()
        self._take(session.redact([noted.id], "a check", "the kit"))
        self._take(session.end_run(RunEnded(status="completed")))
        await session.commit()
        return await self.store.load(SESSION)

    def _take(self, entry: Entry) -> Entry:
        self.host.step(entry)
        return entry

    def _call(self, name: str, arguments: JsonObject, run: Callable[[], WidgetAnswer] | None) -> None:
        session = self._session
        self._count += 1
        call_id = f"call_{self._count}"
        arguments = self._change(arguments)
        call = ToolCall(
            tool_call_id=call_id,
            tool_name=name,
            arguments=arguments,
            raw_args_text=encode(arguments).decode(),
        )
        message = Message(run_id="", role="assistant", parts=[ToolCallPart(payload=call)], timestamp="")
        self._take(session.start_model_call(_model_call(self._count)))
        self._take(
            session.append_model_output(
                ModelOutput(
                    message=message,
                    invocation=_TARGET,
                    model_call_index=self._count,
                    attempt=1,
                    finish_reason="tool_calls",
                )
            )
        )
        started = ToolStarted(tool_call_id=call_id, tool_name=name, idempotency_key=call_id, args_digest="")
        self._take(session.start_tool(started))
        answer = run() if run is not None else self._use(name, arguments, call_id)
        for event in answer.events if not answer.is_error else ():
            self._take(session.append_widget_event(event))
        self._take(session.append_tool_results(_results(call_id, name, answer)))

    def _use(self, name: str, arguments: JsonObject, call_id: str) -> WidgetAnswer:
        before = picture(self.host.state(self.widget.name))
        answer: Any = self.host.execute(self.widget, name, arguments, call_id)
        self.uses.append(ToolUse(name, answer, before, picture(self.host.state(self.widget.name))))
        return answer if isinstance(answer, WidgetAnswer) else WidgetAnswer("", is_error=True)


def _foreign(number: int) -> WidgetEvent:
    return WidgetEvent(widget="some other widget", event="changed", data={"number": number})


def _model_call(index: int) -> ModelCallStarted:
    return ModelCallStarted(
        model_call_index=index, attempt=1, context_hash="", target=_TARGET, message_count=index
    )


def _results(call_id: str, name: str, answer: WidgetAnswer) -> ToolResults:
    text = answer.text if isinstance(answer.text, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    part = tool_result_part(call_id, text, is_error=answer.is_error)
    outcome = ToolOutcome(
        tool_call_id=call_id, tool_name=name, status="failed" if answer.is_error else "success"
    )
    return ToolResults(
        message=Message(run_id="", role="tool", parts=[part], timestamp=""), outcomes=[outcome]
    )
