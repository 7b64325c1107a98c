"""Text and JSON made fit for the log: valid Unicode, no NUL, finite numbers, no secrets."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import math
import os
import uuid
from collections import deque
from collections.abc import Mapping, Set
from typing import Any, cast

import msgspec

from turnlog.contract import conversation

_MAX_DEPTH = 100
_MAX_DIGITS = 4000  # CPython itself refuses to write longer integers


class Unserialisable(Exception):
    """A value that cannot be shown to a model. The message says where it is and what it is."""


def clean(text: str) -> str:
    """``text`` without secrets, unpaired surrogates (U+FFFD) and NUL (U+2400), which stores and providers
    refuse. A subclass of str (markup, an enum, an array's scalar) is taken by its value."""
    if type(text) is not str:
        text = str.__str__(text)
    if "\x00" in text:
        text = text.replace("\x00", "\u2400")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return conversation.get().scrub(text)


def clean_bytes(data: bytes) -> bytes:
    """``data`` without secrets. Latin-1 maps every byte to a character and back, so the rest is unchanged."""
    text = data.decode("latin-1")
    found = conversation.get().scrub(text)
    return data if found == text else found.encode("latin-1")


def clean_json(value: object) -> Any:
    """``value`` as plain JSON data; raises :class:`Unserialisable`."""
    return _plain(value, "result", 0)


def _plain(value: object, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Unserialisable(f"{where} is nested deeper than {_MAX_DEPTH} levels, or holds itself")
    match value:
        case enum.Enum():
            return _plain(value.value, where, depth + 1)
        case None | bool():
            return value
        case str():
            return clean(value)
        case int():
            return _integer(value)
        case float():
            # JSON has no word for these; text tells a model more than null does.
            return (
                float.__float__(value)
                if math.isfinite(value)
                else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
            )
        case _:
            return _container(value, where, depth)


def _integer(value: int) -> int | str:
    if -(2**63) <= value < 2**64:
        return int.__int__(value)
    # A JSON number of this size would not come back as it went.
    return str(value) if value.bit_length() < _MAX_DIGITS * 3 else hex(value)


def _container(value: object, where: str, depth: int) -> Any:
    match value:
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {_key(key, where): _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in items}
        case tuple() if hasattr(cast("Any", value), "_asdict"):
            return _plain(cast("Any", value)._asdict(), where, depth + 1)
        case list() | tuple() | deque():
            found = cast("list[object]", value)
            return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(found)]
        case Set():
            plain = [_plain(item, f"{where}{{…}}", depth + 1) for item in cast("Set[object]", value)]
            # Sets have no order of their own; the same set must give the same bytes.
            return sorted(plain, key=lambda item: msgspec.json.encode(item, order="sorted"))
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(cast("bytes", value))).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | decimal.Decimal() | uuid.UUID():
            return str(value)
        case os.PathLike():
            return clean(os.fsdecode(cast("os.PathLike[str]", value)))
        case _:
            return _object(value, where, depth)


def _object(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, type):
        raise Unserialisable(f"{where} is the class {value.__name__}, not a value")
    if isinstance(value, msgspec.Struct):
        return _plain(_struct_fields(value), where, depth + 1)
    if dataclasses.is_dataclass(value):
        found = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return _plain(found, where, depth + 1)
    # Duck typing: pydantic models, attrs classes, arrays and their scalars, without importing any of them.
    for method in ("model_dump", "tolist", "item"):
        convert = getattr(value, method, None)
        if not callable(convert):
            continue
        try:
            found = convert(mode="json") if method == "model_dump" else convert()
        except TypeError:
            continue  # another method of the same name
        return _plain(found, where, depth + 1)
    if hasattr(value, "__attrs_attrs__"):
        found = {each.name: getattr(value, each.name) for each in value.__attrs_attrs__}
        return _plain(found, where, depth + 1)
    raise Unserialisable(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; return text, numbers, lists, dicts, "
        "dataclasses, models, images or message parts"
    )


def _struct_fields(value: msgspec.Struct) -> dict[str, Any]:
    """The fields under their wire names, with the tag, as msgspec would write them."""
    config = value.__struct_config__
    found: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
    for name, wire_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        field = getattr(value, name)
        if field is not msgspec.UNSET:
            found[wire_name] = field
    return found


def _key(key: object, where: str) -> str:
    match key:
        case enum.Enum():
            return _key(key.value, where)
        case str():
            return clean(key)
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case int() | float() | datetime.date() | uuid.UUID() | os.PathLike() | decimal.Decimal() | bytes():
            plain = _plain(cast("object", key), where, 1)
            return plain if isinstance(plain, str) else str(plain)
        case _:
            raise Unserialisable(f"{where} has the key {key!r}; use text as keys")


def shorten(text: str, limit: int) -> str:
    """For messages: at most ``limit`` characters, and a sign that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
