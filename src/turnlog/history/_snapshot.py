"""A snapshot of what is folded from a log, kept beside it: a cache that spares reading the log again, and
never the truth. It may be dropped at any time; without one that fits, the log is read whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from ..contract import SCHEMA_VERSION, AgentError, Entry, StoredEntry, digest
from ._state import SessionState
from ._upcast import Loaded, decode_bodies
from ._views import HIDING

FORMAT = "turnlog 0.1.0 / 1"
"""The code whose folds these are. Whatever changes what a fold keeps, or how, raises the last number."""

_GAP = 8
"""Entries that nobody asked for are read along when there are no more than these between two that are."""


@runtime_checkable
class SnapshotStore(Protocol):
    """A store that can keep a snapshot beside each log; ``StoreBase`` gives the third method."""

    async def read_snapshot(self, session_id: str) -> bytes | None:
        """What was last written, or None. May raise ``AgentError``, which means the same."""
        ...

    async def write_snapshot(self, session_id: str, seq: int, hash: str, data: bytes) -> None:
        """Keep ``data`` in the place of what was there, if the log still ends with this entry. It is dropped
        with the session, and in the transaction that redacts, purges or erases something of it."""
        ...

    async def read_spans(self, session_id: str, spans: Sequence[tuple[int, int]]) -> list[StoredEntry]:
        """``read`` for several stretches, each from its first entry to its last; 0 is the end of the log."""
        ...


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """``seq``, ``id`` and ``hash`` are those of the last entry covered, ``key`` tells what else the folds
    were made with, ``seqs`` are the entries that the context refers to."""

    format: str
    key: str
    seq: int
    id: str
    hash: str
    seqs: list[int]
    run_ids: str
    call_ids: str
    state: bytes
    context: bytes
    widgets: bytes


class Opened(NamedTuple):
    """A snapshot that fits its log, the state that it holds, the entries that it refers to by their seq, and
    what the log has from its last entry on."""

    snapshot: Snapshot
    state: SessionState
    entries: Mapping[int, Entry]
    tail: Loaded


_encode = msgspec.msgpack.Encoder().encode


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """With its digest in front: a part of the file that was lost or changed is noticed."""
    data = _encode(snapshot)
    return digest(data).encode() + data


def decode_snapshot(data: bytes) -> Snapshot | None:
    """None for what is not whole, or of other code."""
    if digest(data[64:]).encode() != data[:64]:
        return None
    try:
        found = msgspec.msgpack.decode(data[64:], type=Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.format == FORMAT else None


class KnownIds(set[str]):
    """Ids, most of which are one text that is searched: a set of all ids that a long session ever used takes
    longer to make than everything else in its state."""

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}\n"

    @property
    def text(self) -> str:
        return "\n".join([*self._text.strip("\n").split("\n"), *self]) if len(self) else self._text[1:-1]

    def __contains__(self, id: object) -> bool:
        return super().__contains__(id) or f"\n{id}\n" in self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, set) and _all(self) == _all(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # type: ignore[assignment]


def _all(ids: set[str]) -> set[str]:
    return set(filter(None, ids.text.split("\n"))) if isinstance(ids, KnownIds) else ids


def _text_of(ids: set[str]) -> str:
    return ids.text if isinstance(ids, KnownIds) else "\n".join(ids)


def make_snapshot(
    key: str, last: Entry, state: SessionState, seqs: list[int], context: bytes, widgets: bytes
) -> Snapshot | None:
    """None where the state cannot be written down so that it reads back."""
    _ = state.total_usage  # what is not summed yet may be of any type
    runs, calls = _text_of(state.run_ids), _text_of(state.call_ids)
    if any("\n" in id for ids in (state.run_ids, state.call_ids) for id in ids):
        return None
    data = _encode(replace(state, run_ids=set(), call_ids=set()))
    return Snapshot(FORMAT, key, last.seq, last.id, last.hash, seqs, runs, calls, data, context, widgets)


def load_state(snapshot: Snapshot) -> SessionState:
    state = msgspec.msgpack.decode(snapshot.state, type=SessionState)
    state.run_ids, state.call_ids = KnownIds(snapshot.run_ids), KnownIds(snapshot.call_ids)
    return state


def same_snapshot(left: Snapshot, right: Snapshot) -> bool:
    """Whether both hold the same folds; ids have no order."""
    try:
        return (left.seq, left.id, left.hash, left.seqs, left.context, left.widgets) == (
            right.seq,
            right.id,
            right.hash,
            right.seqs,
            right.context,
            right.widgets,
        ) and load_state(left) == load_state(right)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


async def open_snapshot(store: object, session_id: str, key: str) -> Opened | None:
    """The snapshot of a session's folds, if there is one that fits the log as it is now and was made with
    what ``key`` names. Raises nothing: without one, the log tells everything."""
    if not isinstance(store, SnapshotStore):
        return None
    try:
        data = await store.read_snapshot(session_id)
        snapshot = decode_snapshot(data) if data else None
        if snapshot is None or snapshot.key != key:
            return None
        wanted = {seq for seq in snapshot.seqs if seq < snapshot.seq}
        rows = await store.read_spans(session_id, [*_spans(wanted), (snapshot.seq, 0)])
        rows = [row for row in rows if row.seq in wanted or row.seq >= snapshot.seq]
        entries = decode_bodies([row.body for row in rows])
        state = load_state(snapshot)
    except (AgentError, msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None
    by_seq = {entry.seq: entry for entry in entries}
    last = by_seq.get(snapshot.seq)
    if last is None or (last.id, last.hash) != (snapshot.id, snapshot.hash):
        return None
    tail = Loaded(entry for entry in entries if entry.seq >= snapshot.seq)
    tail.size = sum(len(row.body) for row in rows if row.seq >= snapshot.seq)
    if not all(seq in by_seq for seq in snapshot.seqs) or any(is_cut(entry) for entry in entries):
        return None
    if [entry.seq for entry in tail] != list(range(snapshot.seq, snapshot.seq + len(tail))):
        return None
    if any(_changes_past(entry) for entry in tail):
        return None
    return Opened(snapshot, state, by_seq, tail)


def _changes_past(entry: Entry) -> bool:
    return isinstance(entry, HIDING) or entry.kind == "branch_summary"


def is_cut(entry: Entry) -> bool:
    return entry.purged_digest is not None or entry.trimmed_digest is not None


def may_be_kept(entries: Iterable[Entry]) -> bool:
    """Whether these let a snapshot be made: nothing is hidden by them or missing in them, and they are of
    this version's schema."""
    return not any(
        isinstance(entry, HIDING)
        or is_cut(entry)
        or (entry.kind == "session_header" and entry.payload.schema_version != SCHEMA_VERSION)
        for entry in entries
    )


def _spans(seqs: Iterable[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if spans and seq - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return spans
