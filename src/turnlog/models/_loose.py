"""JSON of a provider that does not keep its own types: what fits is taken, the rest left empty."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

from turnlog.contract import AgentError, JsonObject

S = TypeVar("S", bound=msgspec.Struct)


class _Field(NamedTuple):
    name: str
    type: Any
    struct: type[msgspec.Struct] | None
    """What it holds, or holds a list of."""
    many: bool


def fit(found: dict[str, Any], kind: type[S]) -> S:
    """``kind`` with those fields of ``found`` whose type fits."""
    taken: dict[str, Any] = {}
    fields = _fields(kind)
    for key, value in found.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        if field.struct is not None:
            _take_structs(taken, field.name, value, field.struct, field.many)
        elif field.type is msgspec.Raw:
            taken[field.name] = msgspec.Raw(json.dumps(value).encode())
        else:
            _take(taken, field.name, value, field.type)
    return kind(**taken)


def _take_structs(
    taken: dict[str, Any], name: str, value: Any, struct: type[msgspec.Struct], many: bool
) -> None:
    if many and isinstance(value, list):
        items = cast("list[Any]", value)
        taken[name] = [fit(cast("dict[str, Any]", item), struct) for item in items if type(item) is dict]
    elif not many and isinstance(value, dict):
        taken[name] = fit(cast("dict[str, Any]", value), struct)


def _take(taken: dict[str, Any], name: str, value: Any, type_: Any) -> None:
    try:
        taken[name] = msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError:
        if type_ in (str, str | None) and isinstance(value, int | float):
            taken[name] = str(value)  # an id as a number


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    """What stands in the JSON → the field of ``kind``."""
    return {
        field.encode_name: _Field(field.name, field.type, *_struct_in(field.type))
        for field in msgspec.structs.fields(kind)
    }


def _struct_in(type_: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    for one in get_args(type_) or (type_,):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one, False
        if get_origin(one) is list:
            (inner,) = get_args(one)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                return inner, True
    return None, False


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON may raise."""


class LooseDecoder(Generic[S]):
    """JSON objects as ``kind``: fast where they keep its types, else what fits of them.

    Half a surrogate pair, which only the standard library reads, is let through. ``server`` is what an error
    names; ``ModelProtocolError`` for what is no JSON object.
    """

    def __init__(self, kind: type[S], server: str) -> None:
        self._kind = kind
        self._server = server
        self._decode = msgspec.json.Decoder(kind, strict=False).decode

    def __call__(self, data: bytes) -> S:
        try:
            return self._decode(data)
        except UNREADABLE as error:
            found = self.plain(data, error)
        if not isinstance(found, dict):
            raise unreadable(data, TypeError("no JSON object"), self._server)
        return fit(cast("JsonObject", found), self._kind)

    def plain(self, data: bytes, error: Exception | None = None) -> Any:
        """The value as it is."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as failed:
            raise unreadable(data, error or failed, self._server) from failed


# ── single values ──


def as_object(value: Any) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def unreadable(data: bytes, error: Exception, server: str) -> AgentError:
    """What is no event of a stream: cut, or not the protocol of ``server`` at all."""
    start = data[:120].decode("utf-8", "replace")
    return AgentError(
        "ModelProtocolError",
        f"an event of the stream cannot be read ({error}): {start!r}; the answer was cut, "
        f"or base_url does not lead to a server of {server}",
        cause=error,
    )
