"""What was made of a conversation's messages, kept from call to call: only new messages are folded in.

For providers whose wire is more than messages one after another: turns that must alternate, marks that
move. A wire that is one object per message needs only ``WireCache``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from turnlog.contract import Message

from ._history import complete_calls, settled

MAX_ENTRIES = 64
MAX_BYTES = 64 * 1024 * 1024


class Folded(Protocol):
    """A state that messages are added to, one by one, each call of it followed by its results."""

    def add(self, message: Message) -> None: ...

    def copy(self) -> Self:
        """A state of its own, at the price of copying memory."""
        ...

    @property
    def size(self) -> int:
        """Bytes it holds, roughly."""
        ...


S = TypeVar("S", bound=Folded)


class FoldCache(Generic[S]):
    """``fold`` gives the state of a call's messages; the caller may change it, it is a copy.

    A key stands for one conversation in one form: the session's id, and whatever of the configuration
    changes how a message is written. What ``empty`` makes may depend on nothing else.
    """

    __slots__ = ("_kept", "_max_bytes", "size")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: OrderedDict[Hashable, tuple[Sequence[Message], S]] = OrderedDict()
        self.size = 0
        """Bytes kept, roughly."""
        self._max_bytes = max_bytes

    def fold(self, key: Hashable, messages: Sequence[Message], empty: Callable[[], S]) -> S:
        kept = self._kept.get(key)
        start = 0
        # Comparing tuples looks at identity first: for a history that grew this is a walk over pointers.
        if kept is not None and kept[0] == messages[: len(kept[0])]:
            start, state = len(kept[0]), kept[1]
        else:
            state = empty()
        border = start + settled(messages[start:])
        if border > start:
            if start:
                self._forget(key)
            for message in complete_calls(messages[start:border]):
                state.add(message)
            self._keep(key, messages[:border], state)
        copied = state.copy()
        for message in complete_calls(messages[border:]):
            copied.add(message)
        return copied

    def _keep(self, key: Hashable, messages: Sequence[Message], state: S) -> None:
        self._forget(key)
        self._kept[key] = (messages, state)
        self.size += state.size
        while self.size > self._max_bytes or len(self._kept) > MAX_ENTRIES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Hashable) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.size -= gone[1].size
