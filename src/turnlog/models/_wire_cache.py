"""The bytes of a request's messages, kept from call to call: a wire that only grows is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from turnlog.contract import Message

from ._history import complete_calls, settled

MAX_ENTRIES = 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_PIECES = 256

Digest: TypeAlias = Callable[[], str]
EncodeMessage: TypeAlias = Callable[[Message, Digest], bytes]
"""(a message, the digest of the wire before it) → its JSON objects joined by commas, or ``b""``.

It must depend on these two alone, and on what the cache's key and seed name.
"""


class Wire(NamedTuple):
    """Encoded messages in pieces that belong together with commas between, and the digest of them all."""

    pieces: tuple[bytes, ...]
    digest: str

    @property
    def data(self) -> bytes:
        return b",".join(self.pieces)


class _Kept(NamedTuple):
    seed: bytes
    messages: Sequence[Message]
    pieces: tuple[bytes, ...]
    size: int
    hasher: Any


class WireCache:
    """Encodes the messages of a call, comma-separated, and only those that are new since the last one.

    A key stands for one conversation in one form: the session's id and whatever of the configuration
    changes the form. ``seed`` is what precedes the messages (system prompt, tools) and goes into the
    digests; another seed encodes all anew.
    """

    __slots__ = ("_bytes", "_kept", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def encode(
        self, key: Hashable, messages: Sequence[Message], encode: EncodeMessage, seed: bytes = b""
    ) -> Wire:
        kept = self._kept.get(key)
        # Comparing tuples looks at identity first: for a history that grew this is a walk over pointers.
        if kept is not None and kept.seed == seed and kept.messages == messages[: len(kept.messages)]:
            self._kept.move_to_end(key)
        else:
            kept = _Kept(seed, (), (), 0, sha256(seed))
        start = len(kept.messages)
        border = start + settled(messages[start:])
        if border > start:
            kept = _extend(kept, messages, border, encode)
            self._keep(key, kept)
        whole = kept if border == len(messages) else _extend(kept, messages, len(messages), encode)
        return Wire(whole.pieces, _short(whole.hasher))

    def _keep(self, key: Hashable, entry: _Kept) -> None:
        old = self._kept.pop(key, None)
        self._bytes -= old.size if old else 0
        self._kept[key] = entry
        self._bytes += entry.size
        while self._bytes > self._max_bytes or len(self._kept) > MAX_ENTRIES:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= gone.size


def _extend(kept: _Kept, messages: Sequence[Message], end: int, encode: EncodeMessage) -> _Kept:
    """``kept`` and what follows it up to ``end``. Its bytes are not copied: a long history costs nothing."""
    hasher = kept.hasher.copy()
    fresh: list[bytes] = []
    hashed = 0

    def before() -> str:
        nonlocal hashed
        if hashed < len(fresh):
            hasher.update(b",".join(fresh[hashed:]))
            hasher.update(b",")
            hashed = len(fresh)
        return _short(hasher)

    for message in complete_calls(messages[len(kept.messages) : end]):
        piece = encode(message, before)
        if piece:
            fresh.append(piece)
    before()
    if not fresh:
        return _Kept(kept.seed, messages[:end], kept.pieces, kept.size, hasher)
    added = b",".join(fresh)
    pieces = (*kept.pieces, added) if len(kept.pieces) < MAX_PIECES else (b",".join((*kept.pieces, added)),)
    return _Kept(kept.seed, messages[:end], pieces, kept.size + len(added), hasher)


def _short(hasher: Any) -> str:
    return hasher.copy().hexdigest()[:24]
