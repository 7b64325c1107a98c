"""Which id a call goes by on the wire of a provider that wants ids to be unique in a request."""

from __future__ import annotations

from collections.abc import Set
from typing import Self

from ._history import safe_name


class CallIds:
    """The provider's own id where no call before it has it, else ours.

    A server may count its calls anew in every answer, or give one answer twice.
    """

    __slots__ = ("_earlier", "_newest", "_taken")

    def __init__(self) -> None:
        self._earlier: Set[str] = frozenset()
        self._taken: set[str] = set()
        self._newest: dict[str, str] = {}

    def copy(self) -> Self:
        """For a while: what the copy takes stays with it, and it costs nothing however many there are."""
        other = type(self)()
        other._earlier = self._earlier | self._taken if self._earlier else self._taken
        other._newest = dict(self._newest)
        return other

    def begin_answer(self) -> None:
        self._newest = {}

    def take(self, call_id: str, theirs: str) -> tuple[str, bool]:
        """The id of a call, and whether it is ``theirs``, which is empty when it cannot be used."""
        wired = safe_name(theirs) if theirs else ""
        is_theirs = bool(wired) and wired not in self._taken and wired not in self._earlier
        if not is_theirs:
            wired = safe_name(call_id)
        self._taken.add(wired)
        self._newest[call_id] = wired
        return wired, is_theirs

    def of(self, call_id: str) -> str:
        """The id that a call of the newest answer was given."""
        return self._newest.get(call_id) or safe_name(call_id)
