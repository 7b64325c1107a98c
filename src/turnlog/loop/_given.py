"""What people hand to an agent, checked where they hand it over: a mistake is named there and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from turnlog.contract import AgentError, RunInput, SpecificTool, TextPart, Value, decode, encode, find_unjson
from turnlog.history import Session
from turnlog.models import Model
from turnlog.widgets import Widget

T = TypeVar("T")
V = TypeVar("V", bound=Value)

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
    if not session.entries:
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
