"""Streams of JSON values without SSE: one per line, or the elements of one growing array."""

from __future__ import annotations

import re

from turnlog.contract import AgentError

from ._sse import MAX_EVENT, MAX_TOTAL

_MARK = re.compile(rb'["\\{}\[\]]')
_BETWEEN = b" \t\r\n,"


class JSONStreamReader:
    """``feed`` bytes, get the bytes of each whole JSON object at the top, or one level inside an array.

    Reads newline-separated objects and ``[{…},{…}]`` alike, cut anywhere. ``closed`` says whether the
    array was closed (always true for a stream that is not one); ``end`` gives what is left unfinished.
    """

    __slots__ = (
        "_array",
        "_buffer",
        "_depth",
        "_in_text",
        "_max_event",
        "_max_total",
        "_scan",
        "_total",
        "closed",
    )

    def __init__(self, *, max_event: int = MAX_EVENT, max_total: int = MAX_TOTAL) -> None:
        self._buffer = bytearray()
        self._scan = 0
        self._depth = 0
        self._in_text = False
        self._array: bool | None = None
        self._max_event = max_event
        self._max_total = max_total
        self._total = 0
        self.closed = True

    def feed(self, piece: bytes) -> list[bytes]:
        self._total += len(piece)
        if self._total > self._max_total:
            raise AgentError(
                "ModelProtocolError", f"the stream is larger than {self._max_total} bytes", retryable=False
            )
        self._buffer += piece
        found: list[bytes] = []
        while (value := self._next()) is not None:
            found.append(value)
        if len(self._buffer) > self._max_event:
            raise AgentError(
                "ModelProtocolError", f"one value is larger than {self._max_event} bytes", retryable=False
            )
        return found

    def end(self) -> bytes:
        """What is left when the stream is over; not empty means it was cut."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest.strip()

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if self._depth == 0 and not self._open_value():
            return None
        while True:
            mark = _MARK.search(buffer, self._scan)
            if mark is None:
                self._scan = len(buffer)
                return None
            at, sign = mark.start(), mark.group()
            if sign == b"\\":
                if at + 1 >= len(buffer):  # what it escapes has not come yet
                    self._scan = at
                    return None
                self._scan = at + (2 if self._in_text else 1)
                continue
            self._scan = at + 1
            if sign == b'"':
                self._in_text = not self._in_text
            elif not self._in_text:
                self._depth += 1 if sign in b"{[" else -1
                if self._depth == 0:
                    value = bytes(buffer[: self._scan])
                    del buffer[: self._scan]
                    self._scan = 0
                    return value

    def _open_value(self) -> bool:
        """Skip what lies between values; say whether one begins."""
        buffer = self._buffer
        while True:
            text = buffer.lstrip(_BETWEEN)
            del buffer[: len(buffer) - len(text)]
            if not buffer:
                return False
            first = bytes(buffer[:1])
            if self._array is None:
                self._array = first == b"["
                if self._array:
                    self.closed = False
                    del buffer[:1]
                    continue
            if first == b"{":
                self._scan = 0
                return True
            if first == b"]" and self._array and not self.closed:
                self.closed = True
                del buffer[:1]
                continue
            start = bytes(buffer[:60])
            raise AgentError("ModelProtocolError", f"expected a JSON object in the stream, found {start!r}")
