"""The file of one session: a header line, then batches of entry lines, each closed by a commit line.

A batch counts once its commit line is there: what a crash leaves behind after the last one is a torn tail
and is dropped. Bytes that cannot be the beginning of a batch are damage, which is never dropped silently.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ...contract import AgentError, StoredEntry, encode, expected_hash, read_envelope
from .._blank import title_of

FORMAT_VERSION = 1
_COMMIT = b'{"commit":'


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a forked log's past lies; ``hash`` is that of the last shared entry."""

    source: str
    at: int
    hash: str


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    turnlog: int
    session: str
    fork: ForkPoint | None = None


class _Seal(msgspec.Struct, frozen=True):
    """``crc`` is over the bytes of the batch before this line, the header line included in the first."""

    seq: int
    bytes: int
    crc: int


class _Commit(msgspec.Struct, frozen=True):
    commit: _Seal


_read_header = msgspec.json.Decoder(Header).decode
_read_commit = msgspec.json.Decoder(_Commit).decode


@dataclass(slots=True)
class LogFile:
    """What is known of a file: where its entries lie, up to the last complete batch."""

    path: str
    session_id: str
    inode: int = -1
    end: int = 0
    header: Header | None = None
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    batches: list[int] = field(default_factory=list[int])
    tail_id: str = ""
    tail_hash: str = ""
    created_at: str = ""
    updated_at: str = ""
    title: str | None = None

    @property
    def fork(self) -> ForkPoint | None:
        return self.header.fork if self.header else None

    @property
    def base(self) -> int:
        """Entries that lie in another file."""
        return self.fork.at if self.fork else 0

    @property
    def tail(self) -> int:
        return self.base + len(self.spans)

    @property
    def exists(self) -> bool:
        return bool(self.spans)

    def take_in(self, data: bytes) -> None:
        """Read what the file holds after ``end``; raises ``SessionCorrupt`` for what no crash explains."""
        start = position = 0
        header, lines = self.header, list[tuple[int, int]]()
        while (stop := data.find(b"\n", position)) >= 0:
            if data.startswith(_COMMIT, position):
                self._close_batch(data, start, position, stop, header, lines)
                header, lines = self.header, []
                start = stop + 1
            elif header is None:
                header = self._first_line(data[position:stop])
            else:
                lines.append((position, stop))
            position = stop + 1
        self._check_torn(data, lines, position, header)
        self.end += start

    def _first_line(self, line: bytes) -> Header:
        try:
            header = _read_header(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._damage("the first line is not a turnlog header", cause=error) from error
        if header.turnlog > FORMAT_VERSION:
            raise AgentError(
                "SessionMigrationFailed",
                f"{self.path} was made by a newer turnlog (store format {header.turnlog}, this one knows up "
                f"to {FORMAT_VERSION}); upgrade turnlog to use it (nothing was changed)",
                meta={"path": self.path, "found": header.turnlog, "supported": FORMAT_VERSION},
            )
        if header.session != self.session_id:
            raise self._damage(f"it holds session {header.session!r}, not {self.session_id!r}")
        return header

    def _close_batch(
        self,
        data: bytes,
        start: int,
        position: int,
        stop: int,
        header: Header | None,
        lines: list[tuple[int, int]],
    ) -> None:
        try:
            seal = _read_commit(data[position:stop]).commit
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._damage(f"the line that closes entry {self.tail + len(lines)} is broken") from error
        batch = data[start:position]
        if header is None or not lines:
            raise self._damage("a batch is closed that holds no entry")
        base = header.fork.at if header.fork else 0
        last = base + len(self.spans) + len(lines)
        if (seal.seq, seal.bytes, seal.crc) != (last, len(batch), zlib.crc32(batch)):
            first = last - len(lines) + 1
            words = f"the checksum of entries {first} to {last} does not fit"
            raise self._find_damage(data, lines, header) or self._damage(words, first)
        self._adopt(data, lines, header)

    def _adopt(self, data: bytes, lines: list[tuple[int, int]], header: Header) -> None:
        if not self.spans:
            first = data[slice(*lines[0])]
            self.header = header
            self.created_at = read_envelope(first).timestamp
            self.title = title_of(first)
        last = read_envelope(data[slice(*lines[-1])])
        self.tail_id, self.tail_hash, self.updated_at = last.id, last.hash, last.timestamp
        self.spans += [(self.end + start, self.end + stop) for start, stop in lines]
        self.batches.append(self.tail)

    def _check_torn(
        self, data: bytes, lines: list[tuple[int, int]], position: int, header: Header | None
    ) -> None:
        """What follows the last commit line must be the beginning of a batch, cut anywhere."""
        if damage := self._find_damage(data, lines, header):
            raise damage
        rest = data[position:].decode("utf-8", "replace")
        try:
            _, stop = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return  # cut in the middle of a line, as a crash does
        if stop != len(rest):
            raise self._damage(f"the last line, after entry {self.tail}, has more text after its end")

    def _find_damage(
        self, data: bytes, lines: list[tuple[int, int]], header: Header | None
    ) -> AgentError | None:
        """Say which of these lines is not the entry that was written, by what its hash says."""
        point = header.fork if header else None
        first = (point.at if point else 0) + len(self.spans) + 1
        previous = self.tail_hash or (point.hash if point else "")
        for seq, (start, stop) in enumerate(lines, first):
            try:
                envelope = read_envelope(data[start:stop])
            except AgentError:
                return self._damage(f"entry {seq} cannot be read", seq)
            if envelope.seq != seq or expected_hash(envelope, previous) != envelope.hash:
                return self._damage(f"entry {seq} ({envelope.id}) was changed", seq)
            previous = envelope.hash
        return None

    def _damage(self, what: str, seq: int | None = None, *, cause: BaseException | None = None) -> AgentError:
        meta = {"path": self.path, "session_id": self.session_id}
        return AgentError(
            "SessionCorrupt",
            f"{self.path} is damaged: {what}; restore the file from a backup",
            cause=cause,
            meta=meta | ({"seq": seq} if seq is not None else {}),
        )


def render_batch(bodies: Sequence[bytes], last_seq: int, header: Header | None = None) -> bytes:
    """The bytes of one batch: its lines and the commit line that makes it count."""
    lines = [encode(header)] if header else []
    batch = b"\n".join([*lines, *bodies]) + b"\n"
    seal = _Seal(seq=last_seq, bytes=len(batch), crc=zlib.crc32(batch))
    return batch + encode(_Commit(commit=seal)) + b"\n"


def check_lines(batch: Sequence[StoredEntry]) -> None:
    for stored in batch:
        if b"\n" in stored.body or stored.body.startswith(_COMMIT):
            raise AgentError(
                "InvalidEntry", f"the body of entry {stored.id!r} is not one line of compact JSON"
            )
