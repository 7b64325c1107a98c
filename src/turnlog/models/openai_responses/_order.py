"""Events in the order of their numbers, when they have any that can be trusted."""

from __future__ import annotations

from typing import Any, TypeAlias

from ._events import Event

Numbered: TypeAlias = tuple[Event, bytes]
"""An event and the bytes it was read from."""

WINDOW = 8
"""So many events are held back while one is missing; then the numbers are given up."""

_REMEMBERED = 64


class EventOrder:
    """``admit`` says whether an event's turn is now; ``ready`` gives those whose turn came with it.

    A number that came before, with the same bytes, is the same event sent twice. A number that comes again
    with other bytes shows that the server does not count, and from there on events count as they come.
    """

    __slots__ = ("_first", "_next", "_recent", "_trusted", "intact", "waiting")

    def __init__(self) -> None:
        self._first: int | None = None
        self._next = 0
        self._recent: dict[int, bytes] = {}
        self.waiting: dict[int, Numbered] = {}
        self._trusted = True
        self.intact = True
        """Every event so far had its number, and none was missing."""

    def admit(self, event: Event, data: bytes) -> bool:
        number: Any = event.sequence_number
        if not self._trusted or type(number) is not int:
            self.intact = False
            return True
        if self._first is None:
            self._first = self._next = number
        if number == self._next:
            self._take(number, data)
            return True
        if number > self._next:
            if number not in self.waiting:
                self.waiting[number] = (event, data)
            return False
        if number < self._first:
            return True
        known = self._recent.get(number)
        if known is None or known == data:
            return False
        self._trusted = self.intact = False
        return True

    def ready(self) -> list[Numbered]:
        """Held events whose turn it is; all of them when too many wait, or numbers have no meaning."""
        if not self.waiting:
            return []
        if not self._trusted or len(self.waiting) > WINDOW:
            self._trusted = False
            return self.rest()
        found: list[Numbered] = []
        while (held := self.waiting.pop(self._next, None)) is not None:
            found.append(held)
            self._take(self._next, held[1])
        return found

    def rest(self) -> list[Numbered]:
        """All held events, in order, although some before them never came."""
        if self.waiting:
            self.intact = False
        found = [self.waiting[number] for number in sorted(self.waiting)]
        self.waiting.clear()
        return found

    def _take(self, number: int, data: bytes) -> None:
        self._next = number + 1
        self._recent[number] = data
        self._recent.pop(number - _REMEMBERED, None)
