"""The shape every value shares: frozen, keyword-only, camelCase on the wire, empty fields absent."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, cast

import msgspec

from ._errors import AgentError

JsonValue: TypeAlias = Any
"""What JSON can hold. Spelled ``Any`` because recursive aliases cost msgspec its fast path."""

JsonObject: TypeAlias = dict[str, Any]

SCHEMA_VERSION = 1
"""Version of everything in this room: the closed sets of kinds and the fields of each."""

META_LIMIT = 2048
"""Bytes a ``meta`` map may take on the wire."""


class Value(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Base of all wire values.

    Unknown fields are refused by the fast decoder; :func:`turnlog.contract.decode` then takes the slow
    path that keeps them (see ``_codec``), so a newer writer's fields survive a round trip.
    """


def find_unjson(value: object) -> str | None:
    """Say what in ``value`` JSON cannot carry back unchanged, or None when all of it can."""
    match value:
        case None | bool() | str():
            return None
        case int():
            return None if -(2**63) <= value < 2**64 else f"the integer {value} is beyond 64 bits"
        case float():
            return None if math.isfinite(value) else f"the number {value} is not finite"
        case dict():
            for key, item in cast("dict[object, object]", value).items():
                if not isinstance(key, str):
                    return f"the key {key!r} is not text"
                if found := find_unjson(item):
                    return f"{found} (under {key!r})"
            return None
        case list() | tuple():
            for item in cast("list[object]", value):
                if found := find_unjson(item):
                    return found
            return None
        case _:
            return f"a {type(value).__name__} is not JSON"


def check_meta(meta: JsonObject | None, owner: str) -> None:
    """Refuse a ``meta`` map that breaks M-5: snake_case keys, plain JSON, at most 2 KB encoded."""
    if not meta:
        return
    for key in meta:
        if not (
            key.isascii() and key.replace("_", "a").isalnum() and key == key.lower() and key[0].isalpha()
        ):
            raise AgentError(
                "InvalidMessage", f"{owner}: meta key {key!r} is not snake_case; use lower-case words and _"
            )
    if found := find_unjson(meta):
        raise AgentError("InvalidMessage", f"{owner}: meta holds what JSON cannot carry: {found}")
    size = len(msgspec.json.encode(meta))
    if size > META_LIMIT:
        raise AgentError(
            "MetaTooLarge",
            f"{owner}: meta takes {size} bytes, the limit is {META_LIMIT}; "
            "put large data into a message part, an artifact or a custom entry and keep a reference here",
        )
