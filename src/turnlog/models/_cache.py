"""What was made of a conversation's messages, kept from call to call: only new messages are folded in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from turnlog.contract import Message

from .wire import complete_calls, settled

MAX_ENTRIES = 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_PIECES = 256


class Folded(Protocol):
    """A state that messages are added to, one by one, each call of it followed by its results."""

    def add(self, message: Message) -> None: ...

    def copy(self) -> Self:
        """A state of its own, at most at the price of copying memory."""
        ...

    @property
    def size(self) -> int:
        """Bytes it holds, roughly."""
        ...


S = TypeVar("S", bound=Folded)


class _Kept(NamedTuple, Generic[S]):
    seed: Hashable
    messages: Sequence[Message]
    state: S
    size: int


class FoldCache(Generic[S]):
    """``fold`` gives the state of a call's messages; the caller may change it, it is a copy.

    A key stands for one conversation in one form: the session's id, and whatever of the configuration
    changes how a message is written. Another ``seed`` (what precedes the messages) folds all anew. What
    ``empty`` makes may depend on nothing else.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: OrderedDict[Hashable, _Kept[S]] = OrderedDict()
        self._max_bytes = max_bytes
        self.size = 0
        """Bytes kept, roughly."""

    def fold(
        self, key: Hashable, messages: Sequence[Message], empty: Callable[[], S], seed: Hashable = None
    ) -> S:
        kept = self._kept.get(key)
        start = 0
        # Comparing tuples looks at identity first: for a history that grew this is a walk over pointers.
        if kept is not None and kept.seed == seed and kept.messages == messages[: len(kept.messages)]:
            start, state = len(kept.messages), kept.state
            self._kept.move_to_end(key)
        else:
            state = empty()
        border = start + settled(messages[start:])
        if border > start:
            self._forget(key)  # it is changed from here on
            for message in complete_calls(messages[start:border]):
                state.add(message)
            self._keep(key, _Kept(seed, messages[:border], state, state.size))
        copied = state.copy()
        for message in complete_calls(messages[border:]):
            copied.add(message)
        return copied

    def _keep(self, key: Hashable, entry: _Kept[S]) -> None:
        self._kept[key] = entry
        self.size += entry.size
        while self.size > self._max_bytes or len(self._kept) > MAX_ENTRIES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Hashable) -> None:
        gone = self._kept.pop(key, None)
        self.size -= gone.size if gone is not None else 0


Digest: TypeAlias = Callable[[], str]
EncodeMessage: TypeAlias = Callable[[Message, Digest], bytes]
"""(a message, the digest of the wire before it) → its JSON objects joined by commas, or ``b""``.

It must depend on these two alone, and on what the cache's key and seed name.
"""


class Wire:
    """Encoded messages in pieces that belong together with commas between; ``digest`` is of them all.

    For providers whose wire is one object after another. Copying it copies no bytes.
    """

    def __init__(self, encode: EncodeMessage, seed: bytes = b"") -> None:
        self._encode = encode
        self._pieces: tuple[bytes, ...] = ()
        self._fresh: list[bytes] = []
        self._hashed = 0
        self._hasher: Any = sha256(seed)
        self.size = 0

    def add(self, message: Message) -> None:
        piece = self._encode(message, self.digest)
        if piece:
            self._fresh.append(piece)
            self.size += len(piece) + 1

    def copy(self) -> Wire:
        self.digest()
        other = Wire.__new__(Wire)
        other.__dict__.update(self.__dict__, _pieces=self.pieces, _fresh=[], _hashed=0)
        other._hasher = self._hasher.copy()
        return other

    @property
    def pieces(self) -> tuple[bytes, ...]:
        if self._fresh:
            self.digest()
            whole = (*self._pieces, b",".join(self._fresh))
            self._pieces = whole if len(whole) <= MAX_PIECES else (b",".join(whole),)
            self._fresh, self._hashed = [], 0
        return self._pieces

    @property
    def data(self) -> bytes:
        return b",".join(self.pieces)

    def digest(self) -> str:
        """The digest of all that was added so far."""
        if self._hashed < len(self._fresh):
            self._hasher.update(b",".join(self._fresh[self._hashed :]))
            self._hasher.update(b",")
            self._hashed = len(self._fresh)
        return self._hasher.copy().hexdigest()[:24]
