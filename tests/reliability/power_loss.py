"""Power loss, simulated: a run's writes and syncs are recorded, and disks made of what may have survived.

    python -m reliability.power_loss '{"scenario": "fold", "store": "sqlite", "folder": "/x", "images": 9}'

At any moment a file holds what was written before its last sync, and of what came later any part: none, all,
some writes and not others, some sectors of a write. Whatever was acknowledged by then must be in the log.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec

from reliability.crash_world import SCENARIOS, SESSION, STORES, Outside, Points, World
from turnlog.contract import AgentError
from turnlog.history import open_store, verify
from turnlog.history.jsonl import _folder as _jsonl_folder

_SECTOR = 512


class Order(msgspec.Struct):
    scenario: str
    store: str
    folder: str
    images: int
    seed: int = 0
    holes: bool = False
    """Of a write that was under way any sectors may be missing, not only the last ones."""
    forgetful: bool = False
    """The disk lies: it says that it has synced and has not. The checks must find that."""


class Report(msgspec.Struct):
    images: int = 0
    steps: int = 0
    acknowledged: int = 0
    failures: list[str] = []


@dataclass
class Write:
    path: str
    offset: int
    data: bytes


@dataclass
class Cut:
    path: str
    size: int


@dataclass
class Sync:
    path: str


@dataclass
class Delete:
    """Durable once the folder is synced."""

    path: str


@dataclass
class Rename:
    """Durable once the folder of ``target`` is synced."""

    path: str
    target: str


@dataclass
class SyncFolder:
    path: str = "."


@dataclass
class Ack:
    seq: int
    id: str


Step = Write | Cut | Sync | Delete | Rename | SyncFolder | Ack


@dataclass
class Tape:
    """Everything that reached the disk, in order."""

    root: str
    steps: list[Step] = field(default_factory=list[Step])

    def watch(self) -> None:
        self._watch_files()
        self._watch_sqlite()

    def _name(self, descriptor: int) -> str | None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        inside = path.startswith(self.root) and not os.path.isdir(path)
        return os.path.relpath(path, self.root) if inside else None

    def _watch_files(self) -> None:
        write, truncate, fsync, replace = os.write, os.ftruncate, os.fsync, os.replace
        sync = _jsonl_folder._fdatasync

        def watched_write(descriptor: int, data: Any) -> int:
            name = self._name(descriptor)
            if name is None:
                return write(descriptor, data)
            offset = os.lseek(descriptor, 0, os.SEEK_CUR)
            written = write(descriptor, data)
            self.steps.append(Write(name, offset, bytes(data)[:written]))
            return written

        def watched_truncate(descriptor: int, size: int) -> None:
            truncate(descriptor, size)
            if (name := self._name(descriptor)) is not None:
                self.steps.append(Cut(name, size))

        def watched(inner: Callable[[int], None]) -> Callable[[int], None]:
            def sync_it(descriptor: int) -> None:
                inner(descriptor)
                if (name := self._name(descriptor)) is not None:
                    self.steps.append(Sync(name))
                    return
                path = os.readlink(f"/proc/self/fd/{descriptor}")
                if path.startswith(self.root):
                    self.steps.append(SyncFolder(os.path.relpath(path, self.root)))

            return sync_it

        def watched_replace(source: Any, target: Any) -> None:
            replace(source, target)
            if str(target).startswith(self.root):
                names = [os.path.relpath(path, self.root) for path in (source, target)]
                self.steps.append(Rename(*names))

        os.write, os.ftruncate, os.fsync = watched_write, watched_truncate, watched(fsync)
        os.replace = watched_replace
        _jsonl_folder._fdatasync = watched(sync)

    def _watch_sqlite(self) -> None:
        tape = self

        class File(apsw.VFSFile):
            def __init__(self, name: Any, flags: list[int]) -> None:
                is_new = not os.path.exists(_path_of(name))
                super().__init__("unix", name, flags)
                self._path = os.path.relpath(_path_of(name), tape.root)
                # With the first sync of a new journal SQLite syncs its folder too.
                self._is_new_journal = is_new and self._path.endswith(("-wal", "-journal"))

            def xWrite(self, data: Any, offset: int) -> None:
                super().xWrite(data, offset)
                tape.steps.append(Write(self._path, offset, bytes(data)))

            def xTruncate(self, size: int) -> None:
                super().xTruncate(size)
                tape.steps.append(Cut(self._path, size))

            def xSync(self, flags: int) -> None:
                super().xSync(flags)
                tape.steps.append(Sync(self._path))
                if self._is_new_journal:
                    self._is_new_journal = False
                    tape.steps.append(SyncFolder())

        class Disk(apsw.VFS):
            def __init__(self) -> None:
                super().__init__("taped", base="unix", makedefault=True)

            def xOpen(self, name: Any, flags: list[int]) -> Any:
                return File(name, flags)

            def xDelete(self, name: str, syncdir: bool) -> None:
                super().xDelete(name, syncdir)
                tape.steps.append(Delete(os.path.relpath(name, tape.root)))
                if syncdir:
                    tape.steps.append(SyncFolder())

        self._disk = Disk()


class NotedAcks(Outside):
    """The outside record, kept on the tape: an acknowledgement has its place among the writes."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(Path("/dev/null"))
        self._tape = tape

    def note(self, *words: str) -> None:
        if words[0] == "ack":
            self._tape.steps.append(Ack(int(words[1]), words[2]))

    def read(self) -> list[list[str]]:
        return []


class TapedWorld(World):
    tape: Tape

    @property
    def outside(self) -> Outside:
        return NotedAcks(self.tape)


class PowerLoss:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.report = Report()
        self._random = random.Random(f"{order.seed} {order.scenario} {order.store}")

    def run(self) -> Report:
        folder = Path(self.order.folder) / "run"
        folder.mkdir(parents=True)
        tape = Tape(str(folder))
        tape.watch()
        world = TapedWorld(
            folder=folder,
            url=STORES[self.order.store](folder),
            scenario=SCENARIOS[self.order.scenario],
            points=Points(),
        )
        world.tape = tape
        asyncio.run(world.live())
        steps = list(tape.steps)
        self.report.steps = len(steps)
        self.report.acknowledged = sum(isinstance(step, Ack) for step in steps)
        for number in range(self.order.images):
            self._try(number, steps, self._random.randrange(1, len(steps) + 1))
        return self.report

    def _try(self, number: int, steps: list[Step], moment: int) -> None:
        folder = Path(self.order.folder) / f"image-{number}"
        self._make_image(folder, steps[:moment])
        acknowledged = {step.seq: step.id for step in steps[:moment] if isinstance(step, Ack)}
        if folder.exists():
            problems = asyncio.run(self._look(folder, acknowledged))
        else:
            problems = ["nothing is there"] if acknowledged else []
        if problems:
            self.report.failures.append(f"power lost after step {moment}: {'; '.join(problems)}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        self.report.images += 1

    def _make_image(self, folder: Path, steps: list[Step]) -> None:
        folder_synced = max((at for at, step in enumerate(steps) if step == SyncFolder()), default=-1)
        for path in sorted({step.path for step in steps if isinstance(step, Write)}):
            mine = [(at, step) for at, step in enumerate(steps) if getattr(step, "path", None) == path]
            safe = 0
            for number, (at, step) in enumerate(mine, 1):
                if isinstance(step, Sync) or (isinstance(step, Delete) and at < folder_synced):
                    safe = number
            if self.order.forgetful:
                safe = 0
            content: bytearray | None = None
            for _, step in mine[:safe]:
                content = _apply(content, step)
            survives = self._random.choice((0.0, 0.5, 0.9, 1.0))
            for _, step in mine[safe:]:
                if self._random.random() < survives:
                    content = _apply(content, self._maybe_torn(step))
            if content is not None:
                target = folder / self._place(path, steps)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)

    def _place(self, path: str, steps: list[Step]) -> str:
        """Where a file lies: under its new name for certain once that folder was synced."""
        for at, step in enumerate(steps):
            if isinstance(step, Rename) and step.path == path:
                folder = SyncFolder(os.path.dirname(step.target) or ".")
                durable = folder in steps[at:] and not self.order.forgetful
                return step.target if durable or self._random.random() < 0.5 else path
        return path

    def _maybe_torn(self, step: Step) -> Step:
        if not isinstance(step, Write) or len(step.data) <= _SECTOR or self._random.random() > 0.3:
            return step
        sectors = [step.data[at : at + _SECTOR] for at in range(0, len(step.data), _SECTOR)]
        if self.order.holes:
            kept = [self._random.choice((sector, bytes(len(sector)))) for sector in sectors]
        else:
            kept = sectors[: self._random.randrange(len(sectors) + 1)]
        return Write(step.path, step.offset, b"".join(kept))

    async def _look(self, folder: Path, acknowledged: dict[int, str]) -> list[str]:
        store = open_store(STORES[self.order.store](folder))
        try:
            try:
                found = {entry.seq: entry.id for entry in await store.load(SESSION)}
            except AgentError as error:
                if error.code == "SessionNotFound" and not acknowledged:
                    return []
                return [str(error)]
            missing = [seq for seq, id in acknowledged.items() if found.get(seq) != id]
            problems = [f"acknowledged and not there: {missing}"] if missing else []
            return problems + [problem.message for problem in await verify(store, SESSION)]
        finally:
            await store.close()


def _path_of(name: Any) -> str:
    return str(name.filename() if isinstance(name, apsw.URIFilename) else name)


def _apply(content: bytearray | None, step: Step) -> bytearray | None:
    match step:
        case Write():
            content = bytearray() if content is None else content
            if len(content) < step.offset:
                content.extend(bytes(step.offset - len(content)))
            content[step.offset : step.offset + len(step.data)] = step.data
        case Cut():
            content = bytearray() if content is None else content
            del content[step.size :]
        case Delete():
            return None
        case Sync() | SyncFolder() | Rename() | Ack():
            pass
    return content


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(PowerLoss(order).run()))


if __name__ == "__main__":
    main()
