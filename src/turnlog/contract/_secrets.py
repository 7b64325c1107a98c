"""Live secrets, kept so that every sink can cut them out of what it writes."""

from __future__ import annotations

import json

MASK = "[secret]"
_MIN_LENGTH = 8
_live: tuple[str, ...] = ()
"""What to look for, longest first: a key that holds another key is masked whole. Replaced, never changed:
threads read it while another adds to it."""


class Secret:
    """A value that shows itself only when asked: ``secret.reveal()``."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        guard(value)

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__


def guard(value: str) -> None:
    """Remember ``value`` as secret, also as JSON and URLs spell it. Short values are not: masking them
    would shred ordinary text."""
    global _live  # noqa: PLW0603
    if len(value) >= _MIN_LENGTH:
        from urllib.parse import quote  # only who has secrets pays for its import

        forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        forms |= {quote(value, errors="replace"), quote(value, safe="", errors="replace")}
        if not forms <= set(_live):
            _live = tuple(sorted({*_live, *forms}, key=lambda form: (-len(form), form)))


def has_secret(text: str) -> bool:
    return any(value in text for value in _live)


def scrub(text: str) -> str:
    """``text`` with every guarded value replaced by a mask."""
    for value in _live:
        if value in text:
            text = text.replace(value, MASK)
    return text
