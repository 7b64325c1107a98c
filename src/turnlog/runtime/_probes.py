"""Attacks on the sandbox from inside, to show on this machine that it holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ._local import LocalRuntime
from ._sandbox import SandboxLevel

_SECRET = "turnlog-probe-secret"

_PYTHON = (sys.executable, "-I", "-S", "-c")
_START = """
import ctypes, json, os, socket, sys
at = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def refused():
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attempt(name, attack):
    try:
        print(json.dumps([name, bool(attack()), "it had no effect"]), flush=True)
    except BaseException as error:
        print(json.dumps([name, False, str(error)]), flush=True)
"""

_ATTACKS = {
    "home": ("read a file in the home folder", "return at['secret'] in open(at['home_file']).read()"),
    "tmp": ("read a temporary file of another program", "return at['secret'] in open(at['tmp_file']).read()"),
    "neighbour": (
        "write a file beside the workspace",
        "open(at['beside'] + '/written', 'w').write('x'); return os.path.exists(at['beside'] + '/written')",
    ),
    "system": (
        "write to the folders of the system",
        "name = at['system_file']; open(name, 'w').close(); os.unlink(name); return True",
    ),
    "link": (
        "write through a link that leads out of the workspace",
        "os.symlink(at['beside'], 'way-out'); open('way-out/linked', 'w').write('x'); return True",
    ),
    "hook": (
        "leave a git hook that the user's next commit runs",
        """
    try:
        open('.git/hooks/pre-commit', 'w').write('x')
    except OSError:
        os.rename('.git', 'old'); os.makedirs('.git/hooks'); open('.git/hooks/pre-commit', 'w').write('x')
    return True""",
    ),
    "git config": (
        "change the git configuration",
        """
    open('.git/new', 'w').write('[core]\\n\\tfsmonitor = /bin/false\\n'); os.rename('.git/new', '.git/config')
    return True""",
    ),
    "passwords": ("read the password hashes", "return ':' in open('/etc/shadow').read()"),
    "environment": (
        "find a secret in the environment of a process",
        """
    if at['secret'] in str(dict(os.environ)): return True
    for name in os.listdir('/proc'):
        try:
            if at['secret'].encode() in open(f'/proc/{name}/environ', 'rb').read(): return True
        except OSError: pass""",
    ),
    "signal": (
        "signal a process outside",
        """
    os.kill(at['victim'], 0)
    return b'sleep' in open(f"/proc/{at['victim']}/cmdline", 'rb').read()""",
    ),
    "memory": (
        "read the memory of another process",
        """
    if libc.ptrace(16, at['victim'], 0, 0) == 0:
        libc.ptrace(17, at['victim'], 0, 0)
        return True
    refused()""",
    ),
    "loopback": (
        "connect to a service of this machine",
        "socket.create_connection(('127.0.0.1', at['tcp_port']), 2).close(); return True",
    ),
    "datagram": (
        "send a datagram out",
        """
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); asking.settimeout(0.3)
    asking.sendto(b'x', ('127.0.0.1', at['udp_port'])); return asking.recv(10) == b'heard'""",
    ),
    "socket file": (
        "connect to a socket of another program, as that of docker",
        "socket.socket(socket.AF_UNIX).connect(at['socket_file']); return True",
    ),
    "abstract socket": (
        "connect to a socket without a file",
        "socket.socket(socket.AF_UNIX).connect('\\0' + at['abstract']); return True",
    ),
    "namespace": (
        "become root in a namespace of its own",
        """
    if libc.unshare(0x10000000) == 0: return True
    refused()""",
    ),
    "mount": (
        "mount something over a folder",
        """
    if libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0 \\
        and libc.mount(b'x', b'/opt', b'tmpfs', 0, None) == 0: return True
    refused()""",
    ),
    "kernel": (
        "use kernel features that widen an attack: keyrings and io_uring",
        """
    add_key = {'x86_64': 248, 'aarch64': 217}[os.uname().machine]
    if libc.syscall(add_key, b'user', b'turnlog', b'x', 1, -2) >= 0: return True
    if libc.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0: return True
    refused()""",
    ),
    "orphan": (
        "leave a process behind",
        """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3); os.execv('/bin/sh', ['sh', '-c', f'sleep 60; : {at["orphan"]}'])
        os._exit(0)
    os.wait(); return False""",
    ),
}
"""Name → what it tries, and the body of a function that is true when it got through."""


_KNOWN = {"landlock": ("hook", "git config")}
"""Level → what it cannot stop: the rules of landlock allow, and take nothing out of a writable folder."""


@dataclass(frozen=True)
class Probe:
    """One attack: ``stopped``, or it got through. ``detail`` is what the program saw; ``known`` says
    that the level in use is known not to stop it."""

    name: str
    attack: str
    stopped: bool
    detail: str = ""
    known: bool = False


async def probe_sandbox(level: SandboxLevel | Literal["auto"] = "auto") -> tuple[str, list[Probe]]:
    """The level that commands get here, and how each attack on it ended. Raises ``RuntimeUnavailable``
    where there is no sandbox."""
    with _targets() as (workspace, facts):
        async with LocalRuntime(workspace, level=level) as runtime:
            # One program tries them all: starting one for each would take most of the time.
            done = await runtime.execute([*_PYTHON, _script(), json.dumps(facts)], timeout=60)
            told: dict[str, list[Any]] = {
                row[0]: row[1:] for row in map(json.loads, done.stdout.splitlines())
            }
            failure = f"the probe did not run: {done.stderr.strip()[-200:] or done.reason}"
            sandbox = runtime.sandbox or "none"
            found = [_judge(name, told.get(name), failure, workspace, facts) for name in _ATTACKS]
            known = _KNOWN.get(sandbox, ())
            return sandbox, [replace(probe, known=probe.name in known) for probe in found]


def _script() -> str:
    parts = [_START]
    for name, (_, body) in _ATTACKS.items():
        parts.append(
            f"def attack():{body if body.startswith(chr(10)) else ' ' + body}\nattempt({name!r}, attack)\n"
        )
    return "".join(parts)


def _judge(name: str, told: list[Any] | None, failure: str, workspace: str, facts: dict[str, Any]) -> Probe:
    attack, _ = _ATTACKS[name]
    if told is None:
        return Probe(name, attack, False, failure)
    through, detail = told
    outside = Path(facts["beside"])
    match name:  # what counts is the effect outside of the sandbox, whatever it looks like inside
        case "neighbour":
            through = (outside / "written").exists()
        case "link":
            through = (outside / "linked").exists()
        case "hook":
            through = Path(workspace, ".git/hooks/pre-commit").exists()
        case "git config":
            through = "fsmonitor" in Path(workspace, ".git/config").read_text()
        case "orphan":
            left = _find_processes(facts["orphan"])
            through = bool(left)
            for pid in left:
                os.kill(pid, 9)
        case _:
            pass
    return Probe(name, attack, not through, "it got through" if through else detail)


@contextlib.contextmanager
def _targets() -> Generator[tuple[str, dict[str, Any]]]:
    """A workspace, and around it what an attacker would like to reach."""
    with contextlib.ExitStack() as stack:
        base = _folder(stack, None)
        home = _folder(stack, os.path.expanduser("~"))
        workspace = base / "workspace"
        (workspace / ".git" / "hooks").mkdir(parents=True)
        (workspace / ".git" / "config").write_text("[core]\n")
        for folder in (base, home):
            (folder / "secret").write_text(_SECRET)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        listening = asyncio.get_running_loop()
        listening.add_reader(udp, lambda: udp.sendto(b"heard", udp.recvfrom(10)[1]))
        stack.callback(listening.remove_reader, udp)
        for address in (str(base / "socket"), f"\0{_SECRET}{os.getpid()}"):
            named = stack.enter_context(socket.socket(socket.AF_UNIX))
            named.bind(address)
            named.listen()
        victim = subprocess.Popen(["sleep", "60"], env={"TURNLOG_PROBE": _SECRET, "PATH": os.defpath})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        os.environ["TURNLOG_PROBE"] = _SECRET
        stack.callback(os.environ.pop, "TURNLOG_PROBE", None)
        yield (
            str(workspace),
            {
                "secret": _SECRET,
                "abstract": f"{_SECRET}{os.getpid()}",
                "home_file": str(home / "secret"),
                "tmp_file": str(base / "secret"),
                "beside": str(base),
                "system_file": f"/usr/.{base.name}",
                "victim": victim.pid,
                "tcp_port": tcp.getsockname()[1],
                "udp_port": udp.getsockname()[1],
                "socket_file": str(base / "socket"),
                "orphan": base.name,
            },
        )


def _folder(stack: contextlib.ExitStack, where: str | None) -> Path:
    try:
        made = Path(tempfile.mkdtemp(prefix=".turnlog-probe-", dir=where))
    except OSError:  # a home that is not there, or read-only
        made = Path(tempfile.mkdtemp(prefix=".turnlog-probe-"))
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return made


def _find_processes(marker: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]
