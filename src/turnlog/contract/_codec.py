"""The wire JSON of every value: one pair of functions, fast where values are ours alone.

Unknown fields of a newer writer are kept: the value is decoded without them and then rebuilt as an
instance of a subclass that has them as fields, so that it encodes, nests and copies like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from ._base import SCHEMA_VERSION, JsonObject, find_unjson
from ._errors import AgentError

T = TypeVar("T")
_MAX_UNKNOWN = 64
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?$", re.DOTALL)
_BAD_TAG = re.compile(r"Invalid value '(.*)' - at `\$(.*)\.kind`$|Invalid value '(.*)' - at `\$\.kind`$")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]")

_encode = msgspec.json.Encoder().encode


def encode(value: object) -> bytes:
    """``value`` as wire JSON. Text that is not valid Unicode and numbers JSON lacks are refused."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.MsgspecError) as error:
        raise AgentError(
            "InvalidMessage", f"{type(value).__name__} cannot be written as JSON: {error}", cause=error
        ) from error


def decode(data: bytes | bytearray | memoryview | str, type: type[T] | Any) -> T:
    """The value of ``type`` that ``data`` holds.

    Raises ``UnknownKind`` for a kind this version does not know, ``InvalidMessage`` for anything else
    that does not fit.
    """
    try:
        return _decoder(type)(data)
    except msgspec.ValidationError as error:
        if _UNKNOWN_FIELD.match(str(error)):
            return _decode_newer(data, type)
        _refuse(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError("InvalidMessage", f"this is not JSON: {error}", cause=error) from error


@lru_cache(maxsize=256)
def _decoder(type: Any) -> Callable[[Any], Any]:
    return msgspec.json.Decoder(type).decode


def _refuse(error: msgspec.ValidationError) -> NoReturn:
    found = _BAD_TAG.match(str(error))
    if found:
        kind = found.group(1) or found.group(3)
        raise AgentError(
            "UnknownKind",
            f"kind {kind!r} is not known to schema version {SCHEMA_VERSION}; "
            "it was written by a newer version: upgrade turnlog to read it",
            cause=error,
        ) from error
    raise AgentError("InvalidMessage", f"this does not fit the schema: {error}", cause=error) from error


class _Unknown(NamedTuple):
    path: tuple[str | int, ...]
    key: str
    value: Any


def _decode_newer(data: bytes | bytearray | memoryview | str, type: Any) -> Any:
    plain = msgspec.json.decode(data)
    unknown: list[_Unknown] = []
    while True:
        try:
            value = msgspec.convert(plain, type)
            break
        except msgspec.ValidationError as error:
            found = _UNKNOWN_FIELD.match(str(error))
            if not found or len(unknown) >= _MAX_UNKNOWN:
                _refuse(error)
            key, path = found.group(1), _parse_path(found.group(2) or "")
            unknown.append(_Unknown(path, key, _walk(plain, path).pop(key)))
    # Deepest first: a rebuilt child must be in place before its parent is rebuilt around it.
    for owner in sorted({item.path for item in unknown}, key=len, reverse=True):
        extra = {item.key: item.value for item in unknown if item.path == owner}
        value = _replace_at(value, owner, extra)
    return value


def _parse_path(text: str) -> tuple[str | int, ...]:
    return tuple(name or int(index) for name, index in _STEP.findall(text))


def _walk(plain: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        plain = plain[step]
    return plain


def _replace_at(value: Any, path: tuple[str | int, ...], extra: JsonObject) -> Any:
    if not path:
        return _with_extra(value, extra)
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        items = list(cast("list[Any]", value))
        items[step] = _replace_at(items[step], rest, extra)
        return items
    name = _field_of(value, step)
    return msgspec.structs.replace(value, **{name: _replace_at(getattr(value, name), rest, extra)})


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
        found: object = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
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


def _json_name(value: object) -> str:
    names: dict[type, str] = {
        list: "an array",
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")
