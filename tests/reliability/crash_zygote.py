"""Runs many crashes in a row: a process without threads or event loop that forks a child for each life.

    python -m reliability.crash_zygote '{"scenario": "one_tool", "store": "jsonl", "folder": "/tmp/x"}'

A case is a number of lives, each killed at a named place, and one that goes on to the end and checks.
Prints a JSON report.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from reliability.crash_disk import watch_disk
from reliability.crash_world import SCENARIOS, STORES, Points, World, is_on_disk

ALL, EACH = -1, -2
_LIFE = 120  # seconds after which a child that hangs is ended, and reported


class Order(msgspec.Struct):
    """``singles`` and ``doubles`` say how many crashes of one and of two kills: a number, ``ALL`` places
    there are, or one at ``EACH`` kind of place. A number takes one of each kind first. ``url`` names a
    server's store, with the word CASE where each case has a schema of its own. ``fault`` and ``lasting``: see
    ``Points``; with another fault than a kill, the life goes on and must say so, and only the disk's places
    are struck. ``limits``: lives in which the system lets no file grow beyond so many bytes.
    """

    scenario: str
    store: str
    folder: str
    url: str | None = None
    singles: int = -1
    doubles: int = 0
    seed: int = 0
    planted: str | None = None
    fault: str = "kill"
    lasting: bool = False
    limits: list[int] = []


class Report(msgspec.Struct):
    singles: int = 0
    doubles: int = 0
    places: int = 0
    kinds: list[str] = []
    missed: int = 0
    failures: list[str] = []


class Crashes:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.base = Path(order.folder)
        self.report = Report()
        self._random = random.Random(f"{order.seed} {order.scenario} {order.store}")
        self._number = 0
        self._left: Path | None = None

    def run(self) -> Report:
        first = self._fresh()
        places = self._record(first)
        if self.order.fault != "kill":
            places = [place for place in places if is_on_disk(place)]
        self.report.places = len(places)
        self.report.kinds = sorted({place.rpartition(" #")[0] for place in places})
        for place in self._choose(places, self.order.singles):
            folder = self._fresh()
            self._crash(folder, place)
            self._finish(folder, [place])
            self.report.singles += 1
        self._run_doubles(places)
        for limit in self.order.limits:
            folder = self._fresh()
            self._fill(folder, limit)
            self._finish(folder, [f"files of {limit} bytes"])
            self.report.singles += 1
        return self.report

    def _run_doubles(self, places: list[str]) -> None:
        wanted = self.order.doubles
        firsts = self._choose(places, ALL if wanted < 0 else min(wanted, len(places)))
        for index, place in enumerate(firsts):
            share = ALL if wanted < 0 else wanted // len(firsts) + (index < wanted % len(firsts))
            seconds = self._choose(self._record(self._crashed(place)), share)
            for second in seconds:
                folder = self._crashed(place)
                self._crash(folder, second)
                self._finish(folder, [place, second])
                self.report.doubles += 1
            self._forget()

    def _crashed(self, place: str) -> Path:
        """What a crash at ``place`` leaves behind: made once and copied, where a store can be copied."""
        if self.order.url is not None:
            folder = self._fresh()
            self._crash(folder, place)
            return folder
        if self._left is None:
            self._left = self._fresh()
            self._crash(self._left, place)
        target = self._fresh()
        shutil.copytree(self._left, target, dirs_exist_ok=True)
        return target

    def _forget(self) -> None:
        if self._left is not None:
            shutil.rmtree(self._left)
            self._left = None

    def _choose(self, places: list[str], count: int) -> list[str]:
        if count == ALL or count >= len(places):
            return places
        by_kind: dict[str, list[str]] = {}
        for place in places:
            by_kind.setdefault(place.rpartition(" #")[0], []).append(place)
        one_each = [self._random.choice(group) for group in by_kind.values()]
        if count == EACH:
            return one_each
        self._random.shuffle(one_each)
        rest = [place for place in places if place not in one_each]
        self._random.shuffle(rest)
        return (one_each + rest)[:count]

    # ── lives ──

    def _fresh(self) -> Path:
        self._number += 1
        folder = self.base / f"case-{self._number}"
        folder.mkdir(parents=True)
        return folder

    def _world(self, folder: Path, points: Points) -> World:
        order = self.order
        if order.url is not None:
            url = order.url.replace("CASE", f"{folder.parent.name}_{folder.name}".replace("-", "_").lower())
        else:
            url = STORES[order.store](folder)
        scenario = SCENARIOS[order.scenario]
        return World(folder=folder, url=url, scenario=scenario, points=points, planted=order.planted)

    def _record(self, folder: Path) -> list[str]:
        """The places that a life from here on comes by; it is then checked like any other."""

        def life() -> bytes:
            points = Points()
            watch_disk(points)
            asyncio.run(self._world(folder, points).live())
            return msgspec.json.encode(points.seen)

        status, said = _fork(life)
        if status != 0:
            self.report.failures.append(f"without a crash: {_why(status, said)}")
            return []
        self._finish(folder, [])
        return msgspec.json.decode(said, type=list[str])

    def _crash(self, folder: Path, place: str) -> None:
        killed = self.order.fault == "kill"

        def life() -> bytes:
            points = Points(place, self.order.fault, lasting=self.order.lasting)
            watch_disk(points)
            world = self._world(folder, points)
            asyncio.run(world.live() if killed else world.endure())
            return b"" if points.struck else b"missed"

        status, said = _fork(life)
        if said == b"missed":
            self.report.missed += 1  # threads took another order; it is checked all the same
        elif status != (-signal.SIGKILL if killed else 0):
            self.report.failures.append(f"{place}: {_why(status, said)}")

    def _fill(self, folder: Path, limit: int) -> None:
        def life() -> bytes:
            world = self._world(folder, Points())
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            asyncio.run(world.endure())
            return b""

        status, said = _fork(life)
        if status != 0:
            self.report.failures.append(f"files of {limit} bytes: {_why(status, said)}")

    def _finish(self, folder: Path, places: list[str]) -> None:
        def life() -> bytes:
            world = self._world(folder, Points())
            asyncio.run(world.live())
            asyncio.run(world.check())
            return b""

        status, said = _fork(life)
        if status != 0:
            self.report.failures.append(f"{' then '.join(places) or 'no crash'}: {_why(status, said)}")
            return
        shutil.rmtree(folder)


def _why(status: int, said: bytes) -> str:
    ended = f"signal {-status}" if status < 0 else f"exit {status}"
    return f"{ended}\n{said.decode(errors='replace')}"


def _fork(life: Callable[[], bytes]) -> tuple[int, bytes]:
    """Run ``life`` in a child: how it ended (a signal as a negative number), and what it said."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(_LIFE)
        code = 1
        try:
            said, code = life(), 0
        except BaseException:
            said = traceback.format_exc().encode()
        finally:
            os.write(writer, said)
            os._exit(code)
    os.close(writer)
    said = b""
    while part := os.read(reader, 1 << 16):
        said += part
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said


def preload(order: Order) -> None:
    """Import here what a life imports on its way, so that no child has to."""

    def life() -> bytes:
        crashes = Crashes(order)
        world = crashes._world(Path(order.folder) / "preload", Points())
        world.folder.mkdir(parents=True)
        watch_disk(Points())
        asyncio.run(world.live())
        asyncio.run(world.check())
        return msgspec.json.encode(list(sys.modules))

    status, said = _fork(life)
    if status == 0:
        for name in msgspec.json.decode(said, type=list[str]):
            if name not in sys.modules and not name.startswith(("__", "reliability")):
                with suppress(ImportError):
                    importlib.import_module(name)


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    preload(order)
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared with the children
    report = Crashes(order).run()
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
