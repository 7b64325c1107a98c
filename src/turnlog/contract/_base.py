"""The shape every value shares: frozen, keyword-only, camelCase on the wire, empty fields absent."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import inspect
from msgspec.structs import force_setattr

from .errors import AgentError

JsonValue: TypeAlias = Any
"""What JSON can hold. Spelled ``Any`` because recursive aliases cost msgspec its fast path."""

JsonObject: TypeAlias = dict[str, Any]

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq  # pyright: ignore[reportUnusedImport]
else:

    class Seq:
        """How a field of several values is read from JSON: as a tuple. A list may be given."""

        def __class_getitem__(cls, item: Any) -> Any:
            return tuple[item, ...]


P = TypeVar("P")
"""The payload of an envelope."""

FILLED_IN: Any = None
"""Default of a field that may be absent on the wire and never is in a value: its struct fills it in, and it
is always written."""

SCHEMA_VERSION = 1
"""Version of everything in this room: the closed sets of kinds and the fields of each."""

META_LIMIT = 2048
"""Bytes a ``meta`` map may take on the wire."""

MAX_DEPTH = 200
"""How deep JSON from outside may nest: far below the stack limit of any reader."""

_SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
_MAX_BITS = 13_000  # Python writes integers of at most 4,300 digits


class Value(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """Base of all wire values. They cannot form cycles, so the garbage collector need not look at them.

    Unknown fields are refused by the fast decoder; :func:`turnlog.contract.decode` then takes the slow
    path that keeps them (see ``_codec``), so a newer writer's fields survive a round trip.
    """


def payload_type(envelope: type[Any]) -> type[Any]:
    """What a kind's envelope holds: ``Fold`` for ``class FoldEntry(_Entry[Fold], ...)``."""
    return get_args(envelope.__orig_bases__[0])[0]


def find_unjson(value: object, depth: int = 0) -> str | None:
    """What in ``value`` JSON cannot carry back unchanged, in words, or None when all of it can."""
    if depth > MAX_DEPTH:
        return f"it nests deeper than {MAX_DEPTH} levels"
    if type(value) is str and value.isascii():  # nearly all of them
        return None
    match value:
        case None | bool():
            return None
        case str():
            return None if value.isascii() or _is_unicode(value) else "text holds an unpaired surrogate"
        case int():
            return None if value.bit_length() <= _MAX_BITS else "an integer has thousands of digits"
        case float():
            return None if math.isfinite(value) else f"the number {value} is not finite"
        case dict():
            for key, item in cast("dict[object, object]", value).items():
                if not isinstance(key, str):
                    return f"the key {key!r} is not text"
                if found := find_unjson(key) or find_unjson(item, depth + 1):
                    return f"{found} (under {key!r})" if depth == 0 else found
            return None
        case list() | tuple():
            for item in cast("list[object]", value):
                if found := find_unjson(item, depth + 1):
                    return found
            return None
        case _:
            return f"a {type(value).__name__} is not JSON"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_meta(meta: JsonObject | None, owner: str, code: str = "InvalidMessage") -> None:
    """Refuse a ``meta`` map that breaks M-5: snake_case keys, plain JSON, at most 2 KB encoded."""
    if not meta:
        return
    for key in meta:
        if not isinstance(key, str) or not _SNAKE_CASE.fullmatch(key):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError(code, f"{owner}: meta key {key!r} is not snake_case; use lower-case words and _")
    if found := find_unjson(meta):
        raise AgentError(code, f"{owner}: meta holds what JSON cannot carry: {found}")
    size = len(msgspec.json.encode(meta))
    if size > META_LIMIT:
        raise AgentError(
            "MetaTooLarge",
            f"{owner}: meta takes {size} bytes, the limit is {META_LIMIT}; "
            "put large data into a message part, an artifact or a custom entry and keep a reference here",
        )


# Values whose maps and lists can be read, copied and written as JSON, and not changed. A struct is frozen
# anyway; the maps and lists in it are not, since reading a long log would pay for that. They are frozen where
# an entry is made, and where a value leaves for code that is not ours.

T = TypeVar("T")


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this is part of a record and cannot be changed; turnlog.contract.thaw makes a copy")


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change. Its copies are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse  # pyright: ignore[reportAssignmentType]
    clear = pop = popitem = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


class FrozenList(list[Any]):
    """A list that refuses every change. Its copies are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # pyright: ignore[reportAssignmentType]
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse  # pyright: ignore[reportAssignmentType]

    def __deepcopy__(self, memo: object) -> list[Any]:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze, (thaw(self),))


def freeze(value: T) -> T:
    """``value``, in which no map or list can be changed any more, however deep.

    A struct is the same object afterwards, a dict or list another one. What is frozen already costs little.
    """
    return _freeze(value)


def _freeze(value: Any) -> Any:
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    names = _OPEN.get(kind)
    if names is not None:
        for name in names:
            item: Any = getattr(value, name)
            if type(item) not in _DONE and (frozen := _freeze(item)) is not item:
                force_setattr(value, name, frozen)
    elif kind is list:
        made = FrozenList(value)
        for at, item in enumerate(made):
            if type(item) not in _DONE and (frozen := _freeze(item)) is not item:
                list[Any].__setitem__(made, at, frozen)
        return made
    elif kind is dict:
        copy = FrozenDict(value)
        for key, item in copy.items():
            if type(item) not in _DONE and (frozen := _freeze(item)) is not item:
                dict[str, Any].__setitem__(copy, key, frozen)
        return copy
    elif issubclass(kind, msgspec.Struct):
        _OPEN[kind] = _open_fields(kind)
        return _freeze(value)
    return value


_OPEN: dict[type[Any], tuple[str, ...]] = {}
"""Of each class of structs seen so far, the fields below which there may be a map or a list."""
_DONE: frozenset[type[Any]] = frozenset({str, int, float, bool, type(None), tuple, FrozenDict, FrozenList})
_CLOSED = (
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.LiteralType,
)


@cache
def _open_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a struct below which there may be a map or a list."""
    info = cast("inspect.StructType", inspect.type_info(cls))
    return tuple(field.name for field in info.fields if _is_open(field.type))


def _is_open(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_is_open, info.types))
    if isinstance(info, inspect.StructType):
        return bool(_open_fields(info.cls))
    return not isinstance(info, _CLOSED)


def thaw(value: Any) -> Any:
    """A copy of JSON that may be changed."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [thaw(item) for item in cast("list[Any]", value)]
    return value
