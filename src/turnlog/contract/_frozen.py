"""Values whose maps and lists can be read, copied and written as JSON, and not changed.

A struct is frozen anyway; the maps and lists in it are not, since reading a long log would pay for that. They
are frozen where an entry is made, and where a value leaves for code that is not ours.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import inspect
from msgspec.structs import force_setattr

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
        return FrozenList([item if type(item) in _DONE else _freeze(item) for item in value])
    elif kind is dict:
        return FrozenDict(
            [(key, item if type(item) in _DONE else _freeze(item)) for key, item in value.items()]
        )
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
