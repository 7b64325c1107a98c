"""Reading an answer's bytes as they come: server-sent events, compression, and a watch on silence.

Lines end with LF, CRLF or CR and with nothing else: U+2028 inside a text is text. Pieces may be cut
anywhere, inside a character and inside a CRLF too. Nearly all streams send ``data: {…}`` and a blank
line, some with an ``event:`` before it, so those shapes are cut out of the buffer with ``split``;
everything else takes the slow path.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import methodcaller

from turnlog.contract import AgentError

from .._answer import ServerEvent

MAX_EVENT = 32 * 1024 * 1024
MAX_TOTAL = 512 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_INFLATE_STEP = 256 * 1024
_GRACE = 0.02
_CR = ord("\r")


class SSEReader:
    """``feed`` bytes, get whole events; ``end`` gives what the last, unfinished one holds.

    A comment, an ``id`` and a ``retry`` field yield nothing, and neither does an event whose data is blank.
    A block of plain JSON between events, which is how some servers report an error, counts as data. Lines
    of data that are each an object are events of a server that leaves out the blank lines.
    Raises ``ModelProtocolError`` when one event or the whole stream outgrows its limit.
    """

    def __init__(self, *, max_event: int = MAX_EVENT, max_total: int = MAX_TOTAL) -> None:
        self._buffer = bytearray()
        self._begun = False
        self._after_cr = False
        self._total = 0
        self._max_event = max_event
        self._max_total = max_total

    def feed(self, piece: bytes) -> list[ServerEvent]:
        self._total += len(piece)
        if self._total > self._max_total:
            raise _too_large("the stream", self._max_total)
        if self._begun and not self._buffer and not self._after_cr and piece[-1:] == b"\n":
            found = _of_one_shape(piece)
            if found and len(piece) <= self._max_event:  # nearly every piece
                return found
        if self._after_cr or b"\r" in piece:
            piece = self._plain_lines(piece)
        buffer = self._buffer
        if not self._begun:
            buffer += piece
            if len(buffer) < 3 and _BOM.startswith(buffer):
                return []
            self._begun = True
            if buffer.startswith(_BOM):
                del buffer[:3]
            piece = bytes(buffer)
            buffer.clear()
        if not buffer:
            blocks = piece.split(b"\n\n")
        else:
            seen = len(buffer) - 1  # the blank line may straddle the two pieces
            buffer += piece
            if buffer.find(b"\n\n", seen) < 0:
                if len(buffer) > self._max_event:
                    raise _too_large("one event", self._max_event)
                return []
            blocks = bytes(buffer).split(b"\n\n")
            buffer.clear()
        rest = blocks.pop()
        if rest:
            if len(rest) > self._max_event:
                raise _too_large("one event", self._max_event)
            buffer += rest
        return self._events(blocks)

    @property
    def idle(self) -> bool:
        """Whether no event has begun that is still incomplete; a comment is none."""
        return not self._buffer or self._buffer.startswith(b":")

    def end(self) -> list[ServerEvent]:
        """The event that no blank line closed, if any. It may be cut: the reader must check."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return self._events([rest]) if rest else []

    def _events(self, blocks: list[bytes]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for block in blocks:
            if len(block) > self._max_event:
                raise _too_large("one event", self._max_event)
            if block[:7] == b"data: {" and b"\n" not in block:
                events.append(("", block[6:]))
                continue
            name, _, rest = block.partition(b"\n")
            if name[:7] == b"event: " and rest[:7] == b"data: {" and b"\n" not in rest:
                events.append((name[7:].decode("utf-8", "replace"), rest[6:]))
            elif block:
                events += _parse(block)
        return events

    def _plain_lines(self, piece: bytes) -> bytes:
        """CRLF and CR become LF; a CR that ends the piece counts at once, the LF after it is skipped."""
        if not piece:
            return piece
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        self._after_cr = piece[-1:] == b"\r"
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _of_one_shape(piece: bytes) -> list[ServerEvent] | None:
    """The events of a piece that holds whole ones of one shape and nothing else: they take up all its line
    feeds. None for any other piece."""
    if _CR in piece:
        piece = piece.replace(b"\r\n", b"\n")
    if piece[-2:] != b"\n\n" or _CR in piece:
        return None
    first, last = piece.find(b"\n"), len(piece) - 2
    if piece[:7] == b"data: {":
        if first == last:
            return [("", piece[6:-2])]
        found = piece[6:-2].split(b"\n\ndata: ")
        if piece.count(b"\n") == 2 * len(found):
            return [("", data) for data in found if data.strip()]
    elif piece[:7] == b"event: " and piece[first : first + 8] == b"\ndata: {":
        if piece.find(b"\n", first + 1) == last:
            return [(_name(piece[7:first]), piece[first + 7 : -2])]
        count = piece.count(b"\n\nevent: ") + 1
        lines = piece[7:-2].replace(b"\n\nevent: ", b"\ndata: ").split(b"\ndata: ")
        if piece.count(b"\n") == 3 * count and len(lines) == 2 * count:
            data = lines[1::2]
            if all(map(_OBJECT, data)):
                return list(zip(map(_name, lines[::2]), data, strict=True))
    return None


_OBJECT = methodcaller("startswith", b"{")


@lru_cache(maxsize=256)
def _name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _parse(block: bytes) -> list[ServerEvent]:
    bare = block.strip()
    if bare[:1] in (b"{", b"["):  # no field of SSE begins so: a server that fell back to plain JSON
        return [("", bare)]
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    if not any(map(bytes.strip, data)):
        return []
    called = name.decode("utf-8", "replace")
    if len(data) == 1:
        return [(called, data[0])]
    if all(map(_stands_alone, data)):
        return [("", line) for line in data]
    return [(called, b"\n".join(data))]


def _stands_alone(line: bytes) -> bool:
    """Several such lines cannot be one value: JSON ends where its object is closed."""
    return (line[:1] == b"{" and line.rstrip()[-1:] == b"}") or line.strip() == b"[DONE]"


def _too_large(what: str, limit: int) -> AgentError:
    return AgentError(
        "ModelProtocolError",
        f"{what} is larger than {limit} bytes; the server does not speak this protocol, or never stops",
        retryable=False,
    )


def inflater(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Undoes gzip or deflate in steps of bounded size, so that a bomb meets the reader's limits early.

    We ask for no compression; a proxy may compress all the same.
    """
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise AgentError(
            "ModelProtocolError",
            f"the answer is compressed with {encoding!r} although identity was asked for; "
            "configure the proxy in between to leave event streams alone",
            retryable=False,
        )
    unpack = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, found by their first bytes
    held = bytearray() if encoding == "deflate" else None  # it may lack zlib's header

    def feed(piece: bytes) -> Iterator[bytes]:
        nonlocal unpack, held
        if held is not None:
            held += piece
        pending = True
        while piece or pending:
            if unpack.eof:  # gzip may come in several members
                unpack = zlib.decompressobj(wbits=47)
            try:
                plain = unpack.decompress(piece, _INFLATE_STEP)
            except zlib.error as error:
                if not held:
                    raise AgentError(
                        "ModelProtocolError", f"the compressed answer is damaged: {error}", cause=error
                    ) from error
                unpack, piece, held = zlib.decompressobj(wbits=-15), bytes(held), None
                continue
            pending = len(plain) == _INFLATE_STEP and not unpack.eof
            piece = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
            if plain:
                held = None
                yield plain

    return feed


class SilenceWatch:
    """Breaks off a wait that lasts longer than ``limit`` seconds, like ``asyncio.timeout``.

    One timer serves a whole stream: a wait only writes down when it began, and the timer looks. Time
    that the consumer spends between two waits does not count.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._late_since: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._fired = False
        self._cancelling = 0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A wait begins now, in this task."""
        self._task = asyncio.current_task()
        self._since = time.monotonic()
        if self._handle is None:
            self._handle = self._loop.call_later(self.limit, self._look)

    def done(self) -> None:
        """What was waited for is here."""
        self._since = None

    def stop(self) -> None:
        self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def took_effect(self) -> bool:
        """After ``CancelledError``: was it ours alone? Then it is to be read as a timeout."""
        if not self._fired or self._task is None:
            return False
        self._fired = False
        return self._task.uncancel() <= self._cancelling

    def restart(self, limit: float) -> None:
        """Another limit from here on."""
        self.stop()
        self.limit = limit

    def _look(self) -> None:
        self._handle = None
        if self._since is None or self._task is None:
            return
        left = self._since + self.limit - time.monotonic()
        if left <= 0 and self._late_since != self._since:
            # The process may have been asleep: let the loop read what has come meanwhile, then look again.
            self._late_since = self._since
            left = _GRACE
        if left > 0:
            self._handle = self._loop.call_later(left, self._look)
            return
        self._since = None
        self._fired = True
        self._cancelling = self._task.cancelling()
        self._task.cancel()
