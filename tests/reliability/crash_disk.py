"""Places to strike at inside the stores: around, and in the middle of, every write and sync."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import apsw

from reliability.crash_world import Points
from turnlog.history.jsonl import _folder as _jsonl_folder

_KEPT: list[Any] = []


def watch_disk(points: Points) -> None:
    _watch_files(points)
    _watch_sqlite(points)


def _watch_files(points: Points) -> None:
    write, replace, truncate = os.write, os.replace, os.ftruncate
    sync = _jsonl_folder._fdatasync

    def kind(descriptor: int) -> str | None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "outside" in path or not path.startswith("/") or "/jsonl/" not in path:
            return None
        return "blob" if "/blobs/" in path else path.rpartition(".")[2]

    def watched_write(descriptor: int, data: Any) -> int:
        name = kind(descriptor)
        if name is None:
            return write(descriptor, data)
        if points.is_next(f"{name} write torn"):
            write(descriptor, bytes(data)[: len(data) // 2])
            points.strike()
        points.reach(f"{name} write before")
        written = write(descriptor, data)
        points.reach(f"{name} write after")
        return written

    def watched_sync(descriptor: int) -> None:
        points.reach("jsonl sync before")
        sync(descriptor)
        points.reach("jsonl sync after")

    def watched_replace(source: Any, target: Any) -> None:
        points.reach("replace before")
        replace(source, target)
        points.reach("replace after")

    def watched_truncate(descriptor: int, size: int) -> None:
        points.reach("truncate before")
        truncate(descriptor, size)
        points.reach("truncate after")

    os.write, os.replace, os.ftruncate = watched_write, watched_replace, watched_truncate
    _jsonl_folder._fdatasync = watched_sync


def _watch_sqlite(points: Points) -> None:
    class File(apsw.VFSFile):
        def __init__(self, name: Any, flags: list[int]) -> None:
            super().__init__("unix", name, flags)
            path = name.filename() if isinstance(name, apsw.URIFilename) else name
            self._name = "wal" if str(path).endswith("-wal") else "db"

        def xWrite(self, data: Any, offset: int) -> None:
            with _told_to_sqlite():
                if points.is_next(f"{self._name} write torn"):
                    super().xWrite(bytes(data)[: len(data) // 2], offset)
                    points.strike()
                points.reach(f"{self._name} write before")
                super().xWrite(data, offset)
                points.reach(f"{self._name} write after")

        def xSync(self, flags: int) -> None:
            with _told_to_sqlite():
                points.reach(f"{self._name} sync before")
                super().xSync(flags)
                points.reach(f"{self._name} sync after")

        def xTruncate(self, size: int) -> None:
            points.reach(f"{self._name} truncate")
            super().xTruncate(size)

    class Disk(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("watched", base="unix", makedefault=True)

        def xOpen(self, name: Any, flags: list[int]) -> Any:
            return File(name, flags)

    _KEPT.append(Disk())


@contextmanager
def _told_to_sqlite() -> Generator[None]:
    try:
        yield
    except OSError as error:
        kind = apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError
        raise kind(str(error)) from error
