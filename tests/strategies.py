"""Hypothesis strategies for every value of the contract, read off its types.

`of(Message)` makes messages, `of(Fold)` folds; `entries()`, `events()`, `deltas()`, `messages()` make the
tagged unions. A struct with rules of its own is listed in `_SPECIAL`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast, get_args

from hypothesis import strategies as st
from msgspec import inspect

from turnlog import contract
from turnlog.contract import (
    ROLE_PARTS,
    Entry,
    EntryPayload,
    FileRef,
    Image,
    Message,
    MessageDelta,
    MessagePart,
)
from turnlog.contract.events import RunEvent as RunEvent

ALPHABET = st.characters(codec="utf-8")
TEXT = st.one_of(
    st.text(ALPHABET, max_size=12),
    st.sampled_from(["null", '{"a": 1}', "\u0000", "\u2028", "😀", "é", "e\u0301", "\r\n", "\\", '"', "NaN"]),
)
INTEGERS = st.one_of(st.integers(-1000, 1000), st.integers(-(2**80), 2**80))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(ALPHABET, max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
JSON_OBJECTS = st.dictionaries(st.text(ALPHABET, max_size=6), JSON, max_size=3)
SNAKE_CASE = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
META = st.dictionaries(SNAKE_CASE, JSON, max_size=2)


def messages(role: str | None = None) -> st.SearchStrategy[Message]:
    """Messages that keep the role rules."""
    roles = st.just(role) if role else st.sampled_from(sorted(ROLE_PARTS))
    return roles.flatmap(
        lambda chosen: st.builds(
            Message,
            run_id=TEXT,
            role=st.just(chosen),
            parts=st.lists(st.one_of([of(_PARTS[kind]) for kind in sorted(ROLE_PARTS[chosen])]), max_size=4),
            timestamp=TEXT,
            meta=st.none() | META,
        )
    )


def deltas() -> st.SearchStrategy[MessageDelta]:
    return _union(MessageDelta)


def events() -> st.SearchStrategy[RunEvent]:
    return _union(RunEvent)


def entries() -> st.SearchStrategy[Entry]:
    return _union(Entry)


def payloads() -> st.SearchStrategy[EntryPayload]:
    """What entries hold: for `seal`."""
    return _union(EntryPayload)


def _union(alias: Any) -> st.SearchStrategy[Any]:
    return st.one_of([of(cls) for cls in get_args(alias)])


@cache
def of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a struct: optional fields there or not, everything in them valid."""
    if cls in _SPECIAL:
        return _SPECIAL[cls]
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType), cls
    return st.builds(cls, **{field.name: _field(field) for field in info.fields})


def _field(field: inspect.Field) -> st.SearchStrategy[Any]:
    if field.name == "meta":
        return st.none() | META
    return _typed(field.type)


def _typed(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(0, 2**40)
        case inspect.FloatType():
            return FLOATS
        case inspect.StrType():
            return TEXT
        case inspect.AnyType():
            return JSON
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.ListType():
            return st.lists(_typed(info.item_type), max_size=2)
        case inspect.VarTupleType():
            return st.lists(_typed(info.item_type), max_size=2).map(tuple)
        case inspect.VarTupleType():
            return st.lists(_typed(info.item_type), max_size=2).map(tuple)
        case inspect.DictType() if isinstance(info.value_type, inspect.StrType):
            return st.dictionaries(st.text(ALPHABET, max_size=6), TEXT, max_size=3)
        case inspect.DictType():
            return JSON_OBJECTS
        case inspect.TupleType():
            return st.tuples(*(_typed(item) for item in info.item_types))
        case inspect.UnionType():
            return st.one_of([_typed(option) for option in info.types])
        case inspect.StructType():
            return of(cast("type[Any]", info.cls))
        case _:
            raise TypeError(f"no strategy for {info}")


_PARTS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(MessagePart)}
_SPECIAL: dict[type[Any], st.SearchStrategy[Any]] = {
    Message: st.deferred(messages),
    Image: st.one_of(
        st.builds(Image, mime_type=TEXT, data=TEXT, provider_data=st.none() | JSON_OBJECTS),
        st.builds(Image, mime_type=TEXT, url=TEXT, name=TEXT, provider_data=st.none() | JSON_OBJECTS),
    ),
    FileRef: st.one_of(
        st.builds(FileRef, path=TEXT, mime_type=st.none() | TEXT, data=st.none() | TEXT),
        st.builds(FileRef, path=TEXT, size=st.none() | st.integers(0, 2**40), url=TEXT),
    ),
}

STRUCTS: tuple[type[Any], ...] = tuple(
    value
    for value in vars(contract).values()
    if isinstance(value, type)
    and issubclass(value, contract.Value | contract.ErrorInfo)
    and value not in (contract.Value, contract.Envelope)
)
"""Every wire value the contract exports."""
