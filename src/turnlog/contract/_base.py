"""The shape every value shares: frozen, keyword-only, camelCase on the wire, empty fields absent."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args

import msgspec

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
    """Say what in ``value`` JSON cannot carry back unchanged, or None when all of it can."""
    if depth > MAX_DEPTH:
        return f"it nests deeper than {MAX_DEPTH} levels"
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
