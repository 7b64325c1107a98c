"""`turnlog` without the start of an interpreter: a process that has loaded everything forks for each command.

The command itself is imported anew each time, so that what it reads from its environment when it is imported
is its own. A command ends as an interpreter ends, with its threads joined and its exit handlers run.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_PLAIN = {"PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}
"""What an interpreter reads when it starts: a command that wants it otherwise needs a start of its own."""


def fits(env: dict[str, str]) -> bool:
    """Whether a command with this environment may be run from here."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")} == _PLAIN


class WarmCommand:
    """One such process, started when it is first needed, gone with the process that asks it."""

    def __init__(self) -> None:
        self._address: str | None = None

    def run(
        self, args: list[str], *, stdin: bytes, folder: Path, env: dict[str, str], timeout: float
    ) -> tuple[int, bytes, bytes]:
        """The code that ``turnlog`` ended with, and what it printed."""
        address = self._address or self._start()
        keys, ours = os.pipe()
        with (
            socket.socket(socket.AF_UNIX) as connection,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            connection.settimeout(timeout)
            connection.connect(address)
            order = json.dumps({"args": args, "folder": str(folder), "env": env}).encode()
            socket.send_fds(connection, [len(order).to_bytes(4, "big")], [keys, out.fileno(), err.fileno()])
            connection.sendall(order)
            os.close(keys)
            with os.fdopen(ours, "wb") as pipe, suppress(BrokenPipeError):
                pipe.write(stdin)
            try:
                said = connection.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired(["turnlog", *args], timeout) from None
            printed = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err)]
        return int(said), printed[0], printed[1]

    def _start(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="turnlog-warm-")
        address = str(Path(folder.name) / "socket")
        process = subprocess.Popen(
            [sys.executable, __file__, address],
            stdin=subprocess.PIPE,  # its end tells the process to go
            stdout=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", ""), **_PLAIN},
        )
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        owner = os.getpid()

        def end() -> None:
            if os.getpid() == owner and process.stdin is not None and process.stdout is not None:
                process.stdin.close()
                process.stdout.close()
                process.wait()
                folder.cleanup()

        atexit.register(end)
        self._address = address
        return address


# ── the process ──


def _serve(address: str) -> list[str] | None:
    """Returns the arguments of a command in the process that is to run it, and None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            listener.close()
            return None
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        return _attend(connection)


def _attend(connection: socket.socket) -> list[str] | None:
    """In a process of its own for each command: starts it, waits for it, tells how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, handed, _, _ = socket.recv_fds(connection, 4, 3)
    order = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    child = os.fork()
    if child:
        for number in (*handed, 0, 1):
            os.close(number)
        _, status = os.waitpid(child, 0)
        with suppress(OSError):
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, standard in zip(handed, (0, 1, 2), strict=True):
        os.dup2(number, standard)
        os.close(number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = order["folder"]
    # A file that a test writes anew within the second would be taken for the one that was compiled.
    sys.dont_write_bytecode = True
    return order["args"]


def _load_all() -> None:
    """Import what commands import on their way, except the command itself."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        _try_commands()
        os.write(writer, json.dumps(list(sys.modules)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names: list[str] = json.load(pipe)
    os.waitpid(child, 0)
    for name in names:
        if name not in sys.modules and not name.startswith(("__", "turnlog.cli")):
            with suppress(ImportError):
                importlib.import_module(name)


def _try_commands() -> None:
    from turnlog.cli import main as command

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    with tempfile.TemporaryDirectory(prefix="turnlog-warm-") as folder:
        os.chdir(folder)
        Path("script.json").write_text('{"turns": ["Hi."]}', encoding="utf-8")
        for store in ("sqlite:log.db", "jsonl:logs"):
            os.environ["TURNLOG_STORE"] = store
            for words in ("run -m scripted:script.json -s s1 Hi.", "replay s1", "export s1 --format html"):
                sys.argv = ["turnlog", *words.split()]
                with suppress(SystemExit):
                    command()


def main() -> None:
    _load_all()
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared with the commands
    args = _serve(sys.argv[1])
    if args is not None:
        from turnlog.cli import __file__ as place
        from turnlog.cli import main as command

        sys.argv = [str(Path(place).with_name("__main__.py")), *args]
        command()


if __name__ == "__main__":
    main()
