"""Compressed answers. We ask for none; a proxy may send one anyway."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from turnlog.contract import AgentError

_STEP = 256 * 1024


class Inflater:
    """Undoes gzip or deflate in steps of bounded size, so that a bomb meets the reader's limits early."""

    __slots__ = ("_stream",)

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise AgentError(
                "ModelProtocolError",
                f"the answer is compressed with {encoding!r} although identity was asked for; "
                "configure the proxy in between to leave event streams alone",
                retryable=False,
            )
        self._stream = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, found by their first bytes

    def feed(self, piece: bytes) -> Iterator[bytes]:
        try:
            while True:
                plain = self._stream.decompress(piece, _STEP)
                if plain:
                    yield plain
                piece = self._stream.unconsumed_tail
                if not piece and len(plain) < _STEP:
                    return
        except zlib.error as error:
            raise AgentError(
                "ModelProtocolError", f"the compressed answer is damaged: {error}", cause=error
            ) from error
