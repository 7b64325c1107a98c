"""The real `turnlog` command, run as a user runs it: as a process, on a terminal, through a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.warm import WarmCommand, fits

COMMAND = [sys.executable, "-m", "turnlog.cli"]
PATIENCE = 90.0  # a loaded machine is slow; a test that waits this long has failed
WARM = WarmCommand()

# A new session that opens a terminal owns it, and then gets its Ctrl-C.
_TAKE_TERMINAL = (
    "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
)

TOOLS = '''
import os, time
from turnlog import tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    with open("effects.txt", "a") as file:
        file.write(f"deleted {path}\\n")
    return f"deleted {path}"


@tool
def wait(name: str) -> str:
    """Take long."""
    with open("effects.txt", "a") as file:
        file.write(f"began {name}\\n")
    time.sleep(60)
    return "done"
'''


@dataclass(frozen=True)
class Done:
    """How a command went."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed, line by line, as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """A folder, an environment without anybody's keys, and `turnlog` in it."""

    def __init__(self, folder: Path, store: str = "sqlite:log.db") -> None:
        self.folder = folder
        self.env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(folder),
            "TURNLOG_STORE": store,
            "PYTHONWARNINGS": "error",
            "PYTHONUTF8": "1",
            "TERM": "dumb",
            "USER": "tester",
        }
        self.write("tools.py", TOOLS)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def script(self, *turns: Any, **more: Any) -> str:
        """A scripted model that answers with ``turns``."""
        name = f"script{len(list(self.folder.glob('script*')))}.json"
        self.write(name, json.dumps({"turns": turns, **more}))
        return f"scripted:{name}"

    def __call__(self, *args: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Done:
        """Run a command to its end, in a process of its own that is forked from a warm one."""
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        whole = {**self.env, **(env or {})}
        if not fits(whole):
            return self.cold(*args, stdin=data, env=env)
        code, out, err = WARM.run(list(args), stdin=data, folder=self.folder, env=whole, timeout=PATIENCE)
        return Done(code, out.decode(), err.decode())

    def cold(self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Done:
        """The same with an interpreter that starts for it."""
        done = subprocess.run(
            [*COMMAND, *args],
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env={**self.env, **(env or {})},
            timeout=PATIENCE,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def each(self, commands: Iterable[list[str]]) -> list[Done]:
        """Run several commands that do not touch each other, some at a time."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda args: self(*args), commands))

    def ok(self, *args: str, stdin: str = "") -> Done:
        """Run a command that must succeed."""
        done = self(*args, stdin=stdin)
        assert done.code == 0, done
        return done

    def kinds(self, session: str) -> list[str]:
        """The kinds of a session's entries."""
        return [entry["kind"] for entry in self.ok("show", session, "--json").lines]

    def wait_for(self, session: str, kind: str, number: int = 1) -> None:
        """Wait until ``number`` entries of a kind are in the log of a session that another process writes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            done = self("show", session, "--json")
            if done.code == 0 and [e["kind"] for e in done.lines].count(kind) >= number:
                return
            assert time.monotonic() < deadline, done

    def wait_for_file(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.env,
        )

    @contextmanager
    def terminal(self, *args: str) -> Iterator[Terminal]:
        terminal = Terminal([*COMMAND, *args], self.folder, self.env)
        try:
            yield terminal
        finally:
            terminal.end()


class Terminal:
    """A command with a terminal of its own: what is typed reaches it as keys, Ctrl-C as a signal."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        self._unread = ""

    def until(self, text: str) -> str:
        """Read until ``text`` has come; returns everything up to it."""
        assert self._comes(text, PATIENCE), f"waited for {text!r}, saw {self._unread!r}"
        seen, _, self._unread = self._unread.partition(text)
        return seen + text

    def _comes(self, text: str, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while text not in self._unread:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            try:
                data = os.read(self._ours, 4096) if ready else b""
            except OSError:  # Linux says so when the other side has closed
                data = b""
            if not data:
                return False
            self._unread += data.decode("utf-8", "replace")
        return True

    def rest(self) -> str:
        """Everything that comes until the command ends."""
        self._comes("\0", PATIENCE)
        return self._unread

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def say(self, line: str) -> None:
        """Wait for the prompt and answer it."""
        self.until("> ")
        self.type(line + "\n")

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def press_ctrl_c_at_prompt(self, answer: str) -> None:
        """A key pressed in the instant between prompt and reading is not seen; a person presses again."""
        self._insist("\x03", answer)

    def insist(self, line: str, answer: str) -> None:
        """Type a line until it is answered: a Ctrl-C still under way may take it back."""
        self._insist(line + "\n", answer)

    def _insist(self, keys: str, answer: str) -> None:
        for _ in range(10):
            self.type(keys)
            if self._comes(answer, PATIENCE / 10):
                break
        self.until(answer)

    def press_ctrl_d(self) -> None:
        self.type("\x04")

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        os.close(self._ours)
