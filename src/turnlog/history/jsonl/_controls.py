"""The control queue of a JSONL store: one small file, written anew with every change."""

from __future__ import annotations

import os

import msgspec

from ...contract import Control, JsonObject, decode, encode
from .._base import ANSWER_KEPT, sync_folder
from ._lock import BINARY, locked


class _Row(msgspec.Struct):
    control: Control
    answer: JsonObject | None = None
    answered: float = 0.0


class Controls:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        # No session's file begins with a dot.
        self._path = os.path.join(folder, ".controls.json")
        self._lock = os.path.join(folder, ".controls.lock")
        self._seen: tuple[int, int, int] | None = None
        self._rows: dict[str, _Row] = {}

    def post(self, control: Control) -> None:
        with locked(self._lock):
            rows = self._read()
            if control.id not in rows:
                self._write({**rows, control.id: _Row(control)})

    def posted(self, session_id: str | None) -> list[Control]:
        return [
            row.control
            for row in self._read().values()
            if row.answer is None and session_id in (None, row.control.session_id)
        ]

    def answer(self, control_id: str, answer: JsonObject, now: float) -> None:
        with locked(self._lock):
            rows = self._read()
            row = rows.get(control_id)
            if row is None or row.answer is not None:
                return
            fresh = {
                id: each
                for id, each in rows.items()
                if each.answer is None or each.answered >= now - ANSWER_KEPT
            }
            self._write({**fresh, control_id: _Row(row.control, answer, now)})

    def take_answer(self, control_id: str) -> JsonObject | None:
        row = self._read().get(control_id)
        if row is None or row.answer is None:
            return None
        with locked(self._lock):
            rows = dict(self._read())
            row = rows.pop(control_id, None)
            if row is not None:
                self._write(rows)
        return row and row.answer

    def withdraw(self, control_id: str) -> bool:
        with locked(self._lock):
            rows = dict(self._read())
            row = rows.get(control_id)
            if row is not None and row.answer is None:
                del rows[control_id]
                self._write(rows)
        return row is None or row.answer is None

    def drop(self, session_ids: set[str]) -> None:
        if not self._read():
            return
        with locked(self._lock):
            rows = self._read()
            kept = {id: row for id, row in rows.items() if row.control.session_id not in session_ids}
            if len(kept) < len(rows):
                self._write(kept)

    def _read(self) -> dict[str, _Row]:
        """What the file holds now; one that is as it was is not read again."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen, self._rows = None, {}
            return self._rows
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            with open(self._path, "rb") as file:
                self._rows = {row.control.id: row for row in decode(file.read(), list[_Row])}
            self._seen = seen
        return self._rows

    def _write(self, rows: dict[str, _Row]) -> None:
        fresh = self._path + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY
        descriptor = os.open(fresh, flags, 0o600)
        try:
            data = encode(list(rows.values()))
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self._path)
        sync_folder(self._folder)
