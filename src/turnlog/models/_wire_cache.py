"""The bytes of a request's messages, kept from call to call: a wire that only grows is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from turnlog.contract import Message

from ._history import complete_calls, settled

MAX_ENTRIES = 1024
MAX_BYTES = 64 * 1024 * 1024


class _Kept(NamedTuple):
    messages: tuple[Message, ...]
    wire: bytes


class WireCache:
    """Encodes the messages of a call, comma-separated, and only those that are new since the last one.

    ``encode`` turns one message of a completed history (see ``complete_calls``) into JSON objects joined
    by commas, or ``b""``; it must depend on nothing but the message and what ``key`` names. A key stands
    for one conversation in one form: the session's id and whatever of the configuration changes the form.
    """

    __slots__ = ("_bytes", "_kept", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def body(self, key: Hashable, messages: tuple[Message, ...], encode: Callable[[Message], bytes]) -> bytes:
        kept = self._kept.get(key)
        start, wire = 0, b""
        # Comparing tuples looks at identity first: for a history that grew this is a walk over pointers.
        if kept is not None and kept.messages == messages[: len(kept.messages)]:
            start, wire = len(kept.messages), kept.wire
            self._kept.move_to_end(key)
        border = start + settled(messages[start:])
        if border > start:
            wire = _join(wire, [encode(message) for message in complete_calls(messages[start:border])])
            self._keep(key, _Kept(messages[:border], wire))
        if border == len(messages):
            return wire
        return _join(wire, [encode(message) for message in complete_calls(messages[border:])])

    def _keep(self, key: Hashable, entry: _Kept) -> None:
        old = self._kept.pop(key, None)
        self._bytes -= len(old.wire) if old else 0
        self._kept[key] = entry
        self._bytes += len(entry.wire)
        while self._bytes > self._max_bytes or len(self._kept) > MAX_ENTRIES:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone.wire)


def _join(wire: bytes, pieces: list[bytes]) -> bytes:
    return b",".join([piece for piece in ([wire, *pieces] if wire else pieces) if piece])
