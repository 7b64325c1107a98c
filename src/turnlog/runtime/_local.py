"""A runtime on this machine: commands in a sandbox that the kernel enforces, files beneath the workspace."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from turnlog.contract import (
    AgentError,
    Command,
    ExecutionEnv,
    FileInfo,
    JsonObject,
    ProcessResult,
    RuntimeStatus,
)

from ._drain import drain
from ._files import Files, gone, is_below, open_beneath, root_fd
from ._keeper import groups_of
from ._process import LocalProcess
from ._proxy import LISTEN, LISTEN_FD, HostProxy, receive_listener
from ._sandbox import Box, SandboxLevel, find_boxes, no_box

T = TypeVar("T")

_SHELL = "/bin/sh"


class LocalRuntime:
    """Commands and files of ``workspace``, a folder of this machine, under ``policy``.

    ``level`` is the sandbox: ``"workspace"`` (bubblewrap, a system call filter and limits), ``"landlock"``
    where that cannot run, ``"auto"`` the stricter of the two that works. Connecting fails where neither
    does. ``"none"`` runs commands as the user with no sandbox at all: only ``variables``, limits and the
    folders of file actions hold then. Linux only.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str] = ".",
        *,
        policy: ExecutionEnv | None = None,
        level: SandboxLevel | Literal["auto"] = "auto",
    ) -> None:
        if level not in ("auto", "workspace", "landlock", "none"):
            raise AgentError(
                "ConfigInvalid", f"LocalRuntime: level is {level!r}; use auto, workspace, landlock or none"
            )
        self.status: RuntimeStatus = "idle"
        self.policy = policy or ExecutionEnv()
        self._given = os.fspath(workspace)
        self._level: SandboxLevel | Literal["auto"] = level
        self._box: Box | None = None
        self._files: Files | None = None
        self._keeper: _Keeper | None = None
        self._processes: set[LocalProcess] = set()
        self._ids = itertools.count(1)

    @property
    def sandbox(self) -> str | None:
        return None if self._box is None or self._box.level == "none" else self._box.level

    def capabilities(self) -> frozenset[str]:
        return frozenset({"run", "stdin", "files", "signals"})

    # ── life ──

    async def connect(self) -> None:
        if self.status == "ready":
            return
        self.status = "connecting"
        try:
            workspace = _check_workspace(self._given)
            scratch = await asyncio.to_thread(_make_scratch)
            self._keeper = _Keeper(scratch, self.policy.max_processes or 0)
            self._box = box = await self._find_box(workspace, scratch, self._keeper)
        except BaseException as error:
            self.status = "failed"
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            if isinstance(error, OSError):
                raise AgentError("RuntimeUnavailable", f"the runtime could not be set up: {error}") from error
            raise
        self._files = Files(workspace, box.roots, self.policy.max_file_size)
        self.status = "ready"

    async def _find_box(self, workspace: str, scratch: str, keeper: _Keeper) -> Box:
        """The strictest box in which a command runs here; whether it does is tried."""
        problems: list[str] = []
        for box in find_boxes(self._level, workspace, self.policy, scratch):
            if isinstance(box, AgentError):
                problems.append(box.message)
                continue
            process = LocalProcess("p0", "true", None)
            try:
                await process.start(keeper.hand_over, box.spec(["true"], workspace, {}))
                tried = await drain(process)
            except AgentError as error:
                problems.append(f"{box.level}: {error.message}")
                continue
            if tried.exit_code == 0:
                return box
            said = tried.stderr.strip()[:300] or f"a command ended with {tried.exit_code}"
            problems.append(f"{box.level}: the system does not let it work: {said}")
        raise no_box(problems)

    async def close(self) -> None:
        self.status = "closed"
        here = asyncio.get_running_loop()
        mine = [process for process in self._processes if process.loop is here]
        await asyncio.gather(*(process.kill() for process in mine))
        for process in list(self._processes):  # of event loops that have ended
            process.abandon()
        self._processes.clear()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await asyncio.to_thread(keeper.close)

    async def __aenter__(self) -> LocalRuntime:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── commands ──

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> LocalProcess:
        box, _, keeper = self._ready()
        argv = _words(command)
        folder = self._folder(box, cwd)
        variables = dict(env or {})
        if not isinstance(command, str):
            _check_program(argv[0], folder, {**box.environment, **self.policy.variables, **variables})
        process = LocalProcess(f"p{next(self._ids)}", argv[0], self.policy.max_output)
        self._processes.add(process)
        process.when_ended(lambda: self._processes.discard(process))
        if self.policy.network == "hosts":
            await self._start_with_proxy(process, keeper, box, argv, folder, variables)
        else:
            await process.start(keeper.hand_over, box.spec(argv, folder, variables))
        limits = [limit for limit in (timeout, self.policy.timeout) if limit is not None]
        process.limit_time(min(limits, default=None))
        return process

    async def _start_with_proxy(
        self,
        process: LocalProcess,
        keeper: _Keeper,
        box: Box,
        argv: list[str],
        folder: str,
        variables: Mapping[str, str],
    ) -> None:
        """The command sees its proxy at the loopback address: in a network of its own where it has one."""
        proxy = HostProxy(self.policy.hosts)
        process.when_ended(proxy.close)
        if box.level != "workspace":
            port = await proxy.listen(socket.create_server(("127.0.0.1", 0)))
            seen = {**proxy.variables(port), **variables}
            await process.start(keeper.hand_over, box.spec(argv, folder, seen, proxy_port=port))
            return
        ours, theirs = socket.socketpair()
        listening = [sys.executable, "-I", "-S", "-c", LISTEN, str(LISTEN_FD), *argv]
        with theirs:
            spec = box.spec(listening, folder, {**proxy.variables(0), **variables})
            try:
                await process.start(keeper.hand_over, spec, theirs)
            except BaseException:
                ours.close()
                raise
        listener = await receive_listener(ours)
        if listener is not None and process.end is None:
            await proxy.listen(listener)
        elif listener is not None:
            listener.close()

    async def execute(
        self,
        command: Command,
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        keep: int = 1_000_000,
    ) -> ProcessResult:
        return await drain(await self.run(command, cwd=cwd, env=env, timeout=timeout), stdin=stdin, keep=keep)

    # ── files ──

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._act(lambda files: files.read(path, offset, limit))

    async def write(self, path: str, data: bytes) -> None:
        await self._act(lambda files: files.write(path, data))

    async def remove(self, path: str) -> None:
        await self._act(lambda files: files.remove(path))

    async def stat(self, path: str) -> FileInfo | None:
        return await self._act(lambda files: files.stat(path))

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        return await self._act(lambda files: files.list_files(path))

    # ── what the model is told ──

    async def get_init_data(self) -> JsonObject:
        box, _, _ = self._ready()
        data: JsonObject = {
            "workspace": box.workspace,
            "sandbox": box.level,
            "network": self.policy.network,
            "system": platform.system(),
            "shell": _SHELL,
        }
        if self.policy.network == "hosts":
            data["hosts"] = list(self.policy.hosts)
        return data

    async def get_hints(self) -> JsonObject:
        """The commands that still run, where there are any."""
        self._ready()
        running = sorted((process.id for process in self._processes), key=lambda name: int(name[1:]))
        return {"running": list[str](running)} if running else {}

    async def _act(self, action: Callable[[Files], T]) -> T:
        _, files, _ = self._ready()
        return await asyncio.to_thread(action, files)

    def _ready(self) -> tuple[Box, Files, _Keeper]:
        if self.status != "ready" or self._box is None or self._files is None or self._keeper is None:
            raise AgentError("RuntimeNotReady", f"the runtime is {self.status}; connect it first")
        return self._box, self._files, self._keeper

    def _folder(self, box: Box, cwd: str | None) -> str:
        whole = os.path.normpath(os.path.join(box.workspace, cwd or "."))
        for root in box.roots:
            if is_below(whole, root.shown):
                real = os.path.join(root.real, os.path.relpath(whole, root.shown))
                if not os.path.isdir(box.workspace):
                    raise gone(box.workspace)
                if not os.path.isdir(real):
                    raise AgentError("RuntimeExecutionError", f"there is no folder {cwd!r} to run in")
                return whole
        raise AgentError("RuntimePermissionDenied", f"{cwd!r} is outside of the workspace")


class _Keeper:
    """The process that starts commands; see ``_keeper.py``."""

    def __init__(self, scratch: str, processes: int) -> None:
        self._scratch, self._processes = scratch, processes
        self._lock = threading.Lock()
        self._pids: list[int] = []
        self._start()

    def hand_over(self, fds: list[int]) -> None:
        with self._lock:
            for last in (False, True):
                try:
                    socket.send_fds(self._control, [b"+"], fds)
                    return
                except OSError as error:
                    if last:
                        raise AgentError(
                            "RuntimeUnavailable", f"commands cannot be started: {error}"
                        ) from error
                    self._stop()
                    self._start()  # somebody killed it; what it ran has ended with it

    def close(self) -> None:
        with self._lock:
            self._stop()
        for group in (group for pid in self._pids for group in groups_of(pid)):  # of those that were killed
            with contextlib.suppress(OSError):
                os.rmdir(group)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        os.makedirs(self._scratch, exist_ok=True)
        script = str(Path(__file__).with_name("_keeper.py"))
        facts = [str(theirs.fileno()), str(os.getpid()), self._scratch, str(self._processes)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", script, *facts],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._pids.append(self._process.pid)

    def _stop(self) -> None:
        self._control.close()
        self._process.wait()


def _make_scratch() -> str:
    """A folder of the runtime's own, for the temporary files and the home of its commands."""
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="turnlog-"))
    for name in ("tmp", "home"):
        os.mkdir(os.path.join(scratch, name))
    return scratch


def _check_workspace(given: str) -> str:
    if sys.platform != "linux":
        raise AgentError(
            "RuntimeUnavailable",
            f"LocalRuntime needs Linux, and this is {platform.system()}: run turnlog in a Linux container or "
            "virtual machine, or use a runtime that does",
        )
    workspace = os.path.realpath(os.path.expanduser(given))
    if not os.path.isdir(workspace):
        raise AgentError("RuntimeUnavailable", f"the workspace {given!r} is not a folder")
    try:
        with root_fd(workspace) as top:
            os.close(open_beneath(top, ".", os.O_PATH))
    except OSError as error:
        raise AgentError(
            "RuntimeUnavailable",
            f"files below {workspace} cannot be opened safely: {error.strerror}. The system call openat2 is "
            "needed, of Linux 5.6; an old container engine may refuse it",
        ) from error
    return workspace


def _words(command: Command) -> list[str]:
    argv = [_SHELL, "-c", command] if isinstance(command, str) else [str(word) for word in command]
    if not argv or not argv[0] or (isinstance(command, str) and not command.strip()):
        raise AgentError("RuntimeExecutionError", "the command is empty; give a program to run")
    if any("\0" in word for word in argv):
        raise AgentError("RuntimeExecutionError", "a command cannot hold a NUL character")
    return argv


def _check_program(program: str, folder: str, variables: Mapping[str, str]) -> None:
    where = os.path.join(folder, program) if "/" in program else program
    if shutil.which(where, path=variables.get("PATH")) is None:
        raise AgentError("RuntimeExecutionError", f"there is no program {program!r}")
