"""What the rules of all protocols share: a list of findings, and the small checks that fill it."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any, cast

from turnlog.contract import JsonObject

PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


class Findings:
    """``need`` writes down what does not hold; nothing stops at the first."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def need(self, holds: object, what: str) -> bool:
        if not holds:
            self.broken.append(what)
        return bool(holds)

    def known_keys(self, value: JsonObject, keys: frozenset[str], place: str) -> None:
        unknown = sorted(set(value) - keys)
        self.need(not unknown, f"{place} has the unknown field {', '.join(unknown)}")

    def text(self, value: Any, place: str) -> None:
        """Text that says something: providers refuse blank blocks."""
        if self.need(isinstance(value, str), f"{place} is no text"):
            self.need(value.strip(), f"{place} is blank")

    def name(self, value: Any, place: str, pattern: re.Pattern[str] = PLAIN_NAME) -> None:
        fits = isinstance(value, str) and pattern.fullmatch(value)
        self.need(fits, f"{place} is {value!r}, which does not fit {pattern.pattern}")

    def unique(self, values: Sequence[Any], place: str) -> None:
        again = sorted({str(value) for value in values if values.count(value) > 1})
        self.need(not again, f"{place}: {', '.join(again)} appears twice")

    def bytes_of(self, value: Any, place: str) -> None:
        """Base64 that decodes to something, or bytes themselves."""
        if isinstance(value, bytes):
            self.need(value, f"{place} is empty")
            return
        try:
            self.need(base64.b64decode(value, validate=True), f"{place} is empty")
        except (binascii.Error, TypeError, ValueError):
            self.need(False, f"{place} is not base64")

    def address(self, url: Any, place: str) -> None:
        """An address that a provider can fetch, or an image inside the request."""
        if not self.need(isinstance(url, str), f"{place} has no address"):
            return
        inline = _DATA_URL.fullmatch(url)
        if inline is not None:
            self.need(inline[1] in IMAGE_TYPES, f"{place} is of type {inline[1]}")
            self.bytes_of(inline[2], place)
        else:
            self.need(url.startswith(("http://", "https://")), f"{place} is at {url[:40]!r}")

    def object_schema(self, schema: Any, place: str) -> None:
        known = as_object(schema)
        self.need(known.get("type") == "object", f"{place} is no schema of an object")
        self.need(isinstance(known.get("properties", {}), dict), f"{place} has no properties")
        required = known.get("required", [])
        if self.need(isinstance(required, list), f"{place}: required is no list"):
            missing = set(cast("list[Any]", required)) - set(as_object(known.get("properties")))
            self.need(not missing, f"{place} requires {missing}, which it does not have")

    def arguments(self, text: Any, place: str) -> None:
        """JSON text of an object."""
        try:
            self.need(isinstance(json.loads(text), dict), f"{place} are no JSON object: {text!r}")
        except (TypeError, ValueError):
            self.need(False, f"{place} do not parse: {text!r}")

    def alternates(self, roles: Sequence[Any], allowed: tuple[str, str], place: str) -> None:
        """Turns of two sides, one after the other; the first and the last are the user's."""
        user, other = allowed
        if not self.need(roles, f"{place} is empty"):
            return
        for at, role in enumerate(roles):
            self.need(role in allowed, f"{place}[{at}] has the role {role!r}")
            if at and role == roles[at - 1]:
                self.need(False, f"{place}[{at - 1}] and the one after it are both {role}'s")
        self.need(roles[0] == user, f"{place} begins with the {other}")
        self.need(roles[-1] == user, f"{place} ends with the {other}")


def as_object(value: Any) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def objects(value: Any) -> list[JsonObject]:
    """The objects of a list; anything else has none."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [as_object(item) for item in items]
