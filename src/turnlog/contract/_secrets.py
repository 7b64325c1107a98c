"""Live secrets, kept so that every sink can cut them out of what it writes."""

from __future__ import annotations

MASK = "[secret]"
_MIN_LENGTH = 8
_live: set[str] = set()


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
    """Remember ``value`` as secret. Short values are not: masking them would shred ordinary text."""
    if len(value) >= _MIN_LENGTH:
        _live.add(value)


def has_secret(text: str) -> bool:
    return any(value in text for value in _live)


def scrub(text: str) -> str:
    """``text`` with every guarded value replaced by a mask."""
    for value in _live:
        if value in text:
            text = text.replace(value, MASK)
    return text
