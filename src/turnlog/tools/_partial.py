"""Values made of JSON that is not finished: no checks, no errors, as much as there is."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import pydantic
import pydantic_core

_PLAIN: tuple[Any, ...] = (str, int, float, bool, type(None), object)


def read_partial(text: str) -> Any:
    """The JSON value that ``text`` begins; None where there is none yet."""
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def build(hint: Any, data: Any) -> Any:
    """``data`` in the shape of a type, without checking it; None where that cannot be."""
    origin, arms = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return build(arms[0], data)
    if origin in (Union, types.UnionType):
        return _of_union(arms, data)
    if data is None or hint is Any or origin is Literal:
        return data
    if isinstance(data, list):
        inner = arms[0] if arms else Any
        return [build(inner, item) for item in cast("list[Any]", data)]
    if isinstance(data, dict):
        return _of_object(hint, origin, arms, cast("dict[str, Any]", data))
    return data if hint in _PLAIN else _leaf(hint, data)


def _of_union(arms: tuple[Any, ...], data: Any) -> Any:
    if not isinstance(data, dict):
        found = (build(arm, data) for arm in arms if arm is not type(None))
        return next((each for each in found if each is not None), None)
    found = cast("dict[str, Any]", data)
    for arm in arms:
        hints = _fields(get_origin(arm) or arm)
        if hints is not None and found.keys() <= hints.keys() and _agrees(hints, found):
            return build(arm, found)
    return found if dict in arms or any(get_origin(arm) is dict for arm in arms) else None


def _agrees(hints: Mapping[str, Any], data: dict[str, Any]) -> bool:
    """Whether fields that can have one of a few values, as a kind has, have one of them."""
    return all(
        get_origin(hint) is not Literal or name not in data or data[name] in get_args(hint)
        for name, hint in hints.items()
    )


def _of_object(hint: Any, origin: Any, arms: tuple[Any, ...], data: dict[str, Any]) -> Any:
    cls = origin or hint
    hints = _fields(cls)
    if hints is None:
        inner = arms[1] if len(arms) > 1 else Any
        return {key: build(inner, item) for key, item in data.items()}
    values = {name: build(hints[name], item) for name, item in data.items() if name in hints}
    if typing.is_typeddict(cls):
        return values
    missing = {name: None for name in hints if name not in values} | _defaults(cls, values)
    try:
        if issubclass(cls, pydantic.BaseModel):
            return cls.model_construct(set(values), **missing, **values)
        if issubclass(cls, msgspec.Struct):
            return cls(**missing, **values)
        made = object.__new__(cls)
        for name, value in (missing | values).items():
            object.__setattr__(made, name, value)
    except Exception:  # a class that looks at its fields as it is made
        return None
    return made


def _defaults(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if issubclass(cls, pydantic.BaseModel):
        for name, info in cls.model_fields.items():
            if name not in values and not info.is_required() and info.default_factory is None:
                found[name] = info.default
    elif issubclass(cls, msgspec.Struct):
        for field in msgspec.structs.fields(cls):
            if field.name not in values and field.default is not msgspec.NODEFAULT:
                found[field.name] = field.default
            elif field.name not in values and field.default_factory is not msgspec.NODEFAULT:
                found[field.name] = field.default_factory()
    else:
        for each in dataclasses.fields(cls):
            if each.name not in values and each.default is not dataclasses.MISSING:
                found[each.name] = each.default
            elif each.name not in values and each.default_factory is not dataclasses.MISSING:
                found[each.name] = each.default_factory()
    return found


@lru_cache(maxsize=256)
def _fields(cls: Any) -> Mapping[str, Any] | None:
    """The fields of a class with their types; None for a type without fields."""
    if typing.is_typeddict(cls):
        return get_type_hints(cls)
    if not isinstance(cls, type):
        return None
    found = cast("type[Any]", cls)
    if issubclass(found, pydantic.BaseModel):
        return {name: info.annotation for name, info in found.model_fields.items()}
    if issubclass(found, msgspec.Struct) or dataclasses.is_dataclass(found):
        hints = get_type_hints(found)
        names = (
            found.__struct_fields__
            if issubclass(found, msgspec.Struct)
            else [field.name for field in dataclasses.fields(found)]
        )
        return {name: hints[name] for name in names}
    return None


def _leaf(hint: Any, data: Any) -> Any:
    """A date, a number as text, an enum: the value once there is enough of it to be one."""
    try:
        return _adapter(hint).validate_python(data)
    except Exception:
        return None


@lru_cache(maxsize=256)
def _adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(hint)
