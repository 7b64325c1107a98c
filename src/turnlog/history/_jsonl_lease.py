"""A session's lease in its lock file: two slots, written in turn, so that a torn write costs nothing.

A write that a crash or a full disk cut short was never acknowledged, and the other slot has what was true
before it.
"""

from __future__ import annotations

import os
import zlib

import msgspec

from ..contract import AgentError, encode

_SLOT = 1024


class LeaseRow(msgspec.Struct):
    epoch: int = 0
    owner: str | None = None
    until: float = 0.0
    turn: int = 0
    """Counts the writes; the first goes to the second slot."""


_decode = msgspec.json.Decoder(LeaseRow).decode


def read_lease(descriptor: int) -> LeaseRow:
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = os.read(descriptor, 2 * _SLOT)
    first, second = data[:_SLOT], data[_SLOT:]
    rows = [row for row in (_parse(first), _parse(second)) if row is not None]
    if rows:
        return max(rows, key=lambda row: row.turn)
    if not first.strip(b"\0"):
        return LeaseRow()  # there was none, or its very first write was cut short
    raise AgentError(
        "SessionCorrupt",
        "a session's .lock file, which holds its lease, cannot be read; make sure that no writer runs "
        "and delete it",
    )


def write_lease(descriptor: int, row: LeaseRow) -> None:
    row.turn = read_lease(descriptor).turn + 1
    line = encode(row)
    data = b"%08x %s\n" % (zlib.crc32(line), line)
    if len(data) > _SLOT:
        raise AgentError("InvalidEntry", f"a lease's owner may have {_SLOT - 128} bytes; found {row.owner!r}")
    os.lseek(descriptor, row.turn % 2 * _SLOT, os.SEEK_SET)
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _parse(slot: bytes) -> LeaseRow | None:
    checksum, _, line = slot.partition(b"\n")[0].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(line) or not line:
        return None
    return _decode(line)
