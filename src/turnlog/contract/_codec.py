"""The wire JSON of every value: one pair of functions, fast where values are ours alone.

Unknown fields of a newer writer are kept: the value is decoded without them and then rebuilt as an
instance of a subclass that has them as fields, so that it encodes, nests and copies like any other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, TypeVar, cast, get_args, overload

import msgspec
from msgspec import inspect

from ._base import SCHEMA_VERSION, JsonObject, Value, find_unjson
from .deltas import DELTA_KINDS, MessageDelta
from .entries import ENTRY_KINDS
from .errors import AgentError
from .events import DELTA_EVENTS, EVENT_KINDS, DeltaEvent, Event, RunEvent
from .messages import PART_KINDS, MessageView
from .run import RunResult

T = TypeVar("T")
_UNKNOWN_FIELD = "Object contains unknown field "
_BAD_TAG = re.compile(r"Invalid value '(.*)' - at `\$(?:.*\.)?kind`$", re.DOTALL)


def _as_json(value: object) -> object:
    if isinstance(value, MessageView):
        return list(value)
    # A subclass of text or a number (markup, an enum, an array's scalar) is written by its value.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model: a run's structured output
        return dump(mode="json")
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode = msgspec.json.Encoder(enc_hook=_as_json).encode


def encode(value: object, *, finite: bool = False) -> bytes:
    """``value`` as wire JSON. Text that is not valid Unicode and numbers JSON lacks are refused. ``finite``
    promises that no such number is in it."""
    try:
        if (write := WRITERS.get(type(value))) is not None:
            value = write(value)
        data = _encode(value)
        # NaN and infinity are written as null, and almost no value of ours has a null in it.
        if not finite and b"null" in data and (problem := _find_unfinite(value)):
            raise OverflowError(problem)
    except (UnicodeEncodeError, OverflowError, ValueError, TypeError, RecursionError) as error:
        raise AgentError(
            "InvalidMessage", f"{type(value).__name__} cannot be written as JSON: {error}", cause=error
        ) from error
    return data


_FINITE = frozenset({str, int, bool, type(None)})


def _find_unfinite(value: object) -> str | None:
    if type(value) in _FINITE:
        return None
    match value:
        case float():
            return None if math.isfinite(value) else f"the number {value} is not finite"
        case msgspec.Struct():
            items: Iterable[object] = (getattr(value, name) for name in value.__struct_fields__)
        case dict():
            items = cast("dict[object, object]", value).values()
        case list() | tuple():
            items = cast("list[object]", value)
        case _:
            return None
    return next(filter(None, map(_find_unfinite, items)), None)


@overload
def decode(data: bytes | bytearray | memoryview | str, type: type[T]) -> T: ...
@overload
def decode(data: bytes | bytearray | memoryview | str, type: Any) -> Any: ...
def decode(data: bytes | bytearray | memoryview | str, type: Any) -> Any:
    """The value of ``type`` that ``data`` holds.

    Raises ``UnknownKind`` for a kind this version does not know, ``InvalidMessage`` for anything else
    that does not fit.
    """
    try:
        try:
            return _decoder(type)(data)
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN_FIELD):
                raise
        return _decode_newer(data, type)
    except msgspec.ValidationError as error:
        _refuse(error)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise AgentError("InvalidMessage", f"this is not JSON: {error}", cause=error) from error


@lru_cache(maxsize=256)
def _decoder(type: Any) -> Callable[[Any], Any]:
    if type == RunEvent:
        read_wire = msgspec.json.Decoder(wire_type()).decode
        return lambda data: read_event(read_wire(data))
    return msgspec.json.Decoder(type).decode


_KINDS = frozenset({*PART_KINDS, *DELTA_KINDS, *ENTRY_KINDS, *EVENT_KINDS})


def _refuse(error: msgspec.ValidationError) -> NoReturn:
    found = _BAD_TAG.match(str(error))
    if found and found.group(1) in _KINDS:
        place = str(error).rpartition("- at ")[2]
        raise AgentError(
            "InvalidMessage", f"a {found.group(1)!r} cannot stand here ({place})", cause=error
        ) from error
    if found:
        raise AgentError(
            "UnknownKind",
            f"kind {found.group(1)!r} is not known to schema version {SCHEMA_VERSION}; "
            "it was written by a newer version: upgrade turnlog to read it",
            cause=error,
        ) from error
    raise AgentError("InvalidMessage", f"this does not fit the schema: {error}", cause=error) from error


_OLDER_NAMES: dict[type[Any], dict[str, str]] = {RunResult: {"finalMessage": "finalAssistantMessage"}}
"""Struct → what a field was called on the wire, and what it is called now."""


class _Unknown(NamedTuple):
    """What a newer writer added at one place, and further down from it by wire name or index."""

    fields: JsonObject
    below: dict[str | int, _Unknown]


def _decode_newer(data: bytes | bytearray | memoryview | str, type: Any) -> Any:
    of_event = type == RunEvent
    wire = wire_type() if of_event else type
    plain, unknown = _part(msgspec.json.decode(data), _type_info(wire))
    found = _graft(msgspec.convert(plain, wire), unknown)
    return read_event(found) if of_event else found


@lru_cache(maxsize=256)
def _type_info(type: Any) -> inspect.Type:
    return inspect.type_info(type)


def _part(plain: Any, info: inspect.Type) -> tuple[Any, _Unknown | None]:
    """``plain`` without the fields that ``info`` does not have, and those fields."""
    if isinstance(plain, dict):
        given = cast("JsonObject", plain)
        struct = _struct_for(given, info)
        return (given, None) if struct is None else _part_fields(given, struct)
    if isinstance(plain, list):
        items = cast("list[Any]", plain)
        kept, below = list(items), dict[str | int, _Unknown]()
        for option in _options(info):
            if isinstance(option, inspect.ListType | inspect.VarTupleType):
                for index, item in enumerate(items):
                    kept[index], found = _part(item, option.item_type)
                    if found:
                        below[index] = found
        return kept, _Unknown({}, below) if below else None
    return plain, None


def _part_fields(plain: JsonObject, struct: inspect.StructType) -> tuple[Any, _Unknown | None]:
    known = {field.encode_name: field.type for field in struct.fields}
    older = _OLDER_NAMES.get(struct.cls, {})
    kept: JsonObject = {}
    fields: JsonObject = {}
    below: dict[str | int, _Unknown] = {}
    for key, item in plain.items():
        key = older.get(key, key)
        if key in known:
            kept[key], found = _part(item, known[key])
            if found:
                below[key] = found
        elif key == struct.tag_field:
            kept[key] = item
        else:
            fields[key] = item
    return kept, _Unknown(fields, below) if fields or below else None


def _struct_for(plain: JsonObject, info: inspect.Type) -> inspect.StructType | None:
    for option in _options(info):
        if isinstance(option, inspect.StructType) and (
            option.tag_field is None or plain.get(option.tag_field) == option.tag
        ):
            return option
    return None


def _options(info: inspect.Type) -> tuple[inspect.Type, ...]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _graft(value: Any, unknown: _Unknown | None) -> Any:
    """``value`` with the unknown fields put back where they were."""
    if unknown is None:
        return value
    if isinstance(value, list | tuple):
        items = list(cast("list[Any]", value))
        for index, found in unknown.below.items():
            items[cast("int", index)] = _graft(items[cast("int", index)], found)
        return tuple(items) if isinstance(value, tuple) else items
    changed: JsonObject = {}
    for wire_name, found in unknown.below.items():
        name = _field_of(value, cast("str", wire_name))
        changed[name] = _graft(getattr(value, name), found)
    if changed:
        value = msgspec.structs.replace(value, **changed)
    return _with_extra(value, unknown.fields) if unknown.fields else value


def _field_of(value: msgspec.Struct, wire_name: str) -> str:
    position = value.__struct_encode_fields__.index(wire_name)
    return value.__struct_fields__[position]


def _with_extra(value: msgspec.Struct, extra: JsonObject) -> Any:
    kept = {name: getattr(value, name) for name in value.__struct_fields__}
    cls = _extended(type(value), tuple(extra))
    return cls(**kept, **{f"unknown_{index}": item for index, item in enumerate(extra.values())})


@lru_cache(maxsize=256)
def _extended(cls: type[msgspec.Struct], keys: tuple[str, ...]) -> type[msgspec.Struct]:
    names = [f"unknown_{index}" for index in range(len(keys))]
    return msgspec.defstruct(
        cls.__name__,
        [(name, Any) for name in names],
        bases=(cls,),
        rename=dict(zip(names, keys, strict=True)),
        frozen=True,
        kw_only=True,
    )


class ParsedArguments(NamedTuple):
    """``arguments`` is None exactly when ``error`` says why."""

    arguments: JsonObject | None
    error: str | None = None
    warning: str | None = None


def parse_arguments(raw: str) -> ParsedArguments:
    """Read a tool call's arguments as strictly as what runs on them deserves."""
    if not raw.strip():
        return ParsedArguments({}, warning="no arguments were sent; taken as {}")
    try:
        found: object = _read_arguments(raw)
        if not isinstance(found, dict):
            return ParsedArguments(None, f"expected a JSON object, found {_json_name(found)}")
        value = cast("JsonObject", found)
        _encode(value)
        if problem := find_unjson(value):
            return ParsedArguments(None, problem)
    except RecursionError:
        return ParsedArguments(None, "nested too deeply")
    except UnicodeEncodeError:
        return ParsedArguments(None, "text holds an unpaired surrogate")
    except (ValueError, OverflowError) as error:
        return ParsedArguments(None, str(error))
    return ParsedArguments(value)


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    found: JsonObject = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_read_arguments = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).decode


def _json_name(value: object) -> str:
    names: dict[type, str] = {
        list: "an array",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


# The wire form of events: flat as objects, on the wire ``{kind, seq, …, payload: {…}}``

_FLAT: dict[str, type[Any]] = {event.kind: event for event in get_args(RunEvent)}
_PLACE = Event.__struct_fields__
_place_of = attrgetter(*_PLACE)


class _Form(NamedTuple):
    """The two structs that one kind is written as, and what goes into the inner one."""

    envelope: type[Any]
    payload: type[Any]
    names: tuple[str, ...]
    content_of: Callable[[Any], tuple[Any, ...]]


@cache
def _form(kind: str) -> _Form:
    flat: Any = DeltaEvent[MessageDelta] if kind == DeltaEvent.kind else _FLAT[kind]
    fields = [field for field in msgspec.structs.fields(flat) if field.name not in _PLACE]
    names = tuple(field.name for field in fields)
    payload = msgspec.defstruct(
        flat.__name__,
        [(f.name, f.type) if f.required else (f.name, f.type, f.default) for f in fields],
        bases=(Value,),
        frozen=True,
    )
    place: list[Any] = [(field.name, field.type) for field in msgspec.structs.fields(Event)]
    envelope = msgspec.defstruct(
        kind, [*place, ("payload", payload)], bases=(Value,), frozen=True, tag_field="kind", tag=kind
    )
    return _Form(envelope, payload, names, _getter(names))


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda event: (getattr(event, names[0]),)  # attrgetter would give the value alone


def write_event(event: Any) -> Any:
    """The struct that is written for ``event``."""
    form = _form(event.kind)
    return form.envelope(*_place_of(event), form.payload(*form.content_of(event)))


def read_event(wire: Any) -> Any:
    """The event that ``wire``, an instance of ``wire_type()``, stands for."""
    kind = wire.__struct_config__.tag
    form = _form(kind)
    payload = wire.payload
    fields = dict(zip(_PLACE, _place_of(wire), strict=True))
    fields.update(zip(form.names, form.content_of(payload), strict=True))
    flat = DELTA_EVENTS[payload.delta.kind] if kind == DeltaEvent.kind else _FLAT[kind]
    if type(wire) is form.envelope and type(payload) is form.payload:
        return flat(**fields)
    return _newer(flat)(**fields, wire=wire)


def _write_newer(event: Any) -> Any:
    form = _form(event.kind)
    content = dict(zip(form.names, form.content_of(event), strict=True))
    payload = msgspec.structs.replace(event.wire.payload, **content)
    place = dict(zip(_PLACE, _place_of(event), strict=True))
    return msgspec.structs.replace(event.wire, **place, payload=payload)


@cache
def _newer(flat: type[Any]) -> type[Any]:
    """``flat`` for an event with fields of a newer writer: ``wire`` keeps them where they were."""
    found = msgspec.defstruct(flat.__name__, [("wire", Any)], bases=(flat,), frozen=True, kw_only=True)
    WRITERS[found] = _write_newer
    return found


@cache
def wire_type() -> Any:
    """The union of the structs that events are written as."""
    found: Any = _form(EVENT_KINDS[0]).envelope
    for kind in EVENT_KINDS[1:]:
        found = found | _form(kind).envelope
    return found


WRITERS: dict[type[Any], Callable[[Any], Any]] = dict.fromkeys(get_args(RunEvent), write_event)
"""Class of event → what makes the struct that is written for it."""
