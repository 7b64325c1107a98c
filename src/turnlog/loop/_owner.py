"""Who holds a session: a name that says which process it is, so that others on the same machine can tell
whether it still lives."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import cache

_live: dict[str, asyncio.AbstractEventLoop | None] = {}
"""Names that leases of this process go by at the moment, each with the event loop that keeps it up."""


def new_owner(work: str = "run") -> str:
    """``host/pid/start/space/work-mark``, different every time; ``start`` and ``space`` tell a process number
    from the same number used again, after a restart or in another container."""
    pid = os.getpid()
    owner = f"{_host()}/{pid}/{_started(pid) or 0}/{_space()}/{work}-{os.urandom(4).hex()}"
    try:
        _live[owner] = asyncio.get_running_loop()
    except RuntimeError:
        _live[owner] = None
    return owner


def forget_owner(owner: str) -> None:
    _live.pop(owner, None)


def is_dead(owner: str) -> bool:
    """Whether ``owner`` is known to be gone. False also means: nobody here can know."""
    try:
        host, number, start, space, _ = owner.rsplit("/", 4)
        pid = int(number)
    except ValueError:
        return False
    if (host, space) != (_host(), _space()) or os.name != "posix":
        return False
    if pid == os.getpid():
        return start == str(_started(pid) or 0) and not _is_kept_up(owner)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's; /proc may still tell
    now = _started(pid)
    return now is not None and str(now) != start


def _is_kept_up(owner: str) -> bool:
    loop = _live.get(owner)
    return owner in _live and (loop is None or not loop.is_closed())


def work_of(owner: str) -> str:
    """What the session is held for; empty where the name does not say."""
    return owner.rpartition("/")[2].rpartition("-")[0]


def describe(owner: str) -> str:
    """For people: ``process 4711 on host``, and what it does there where that is no run."""
    try:
        host, pid, _, _, _ = owner.rsplit("/", 4)
    except ValueError:
        return repr(owner)
    work = work_of(owner)
    return f"process {pid} on {host}" + (f" ({work})" if work not in ("", "run") else "")


@cache
def _host() -> str:
    return socket.gethostname().replace("/", "-")


@cache
def _space() -> str:
    """This start of this machine, and within it the room in which process numbers mean the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()[:8]
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "-"


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; -1 for one that has ended and is not yet
    collected; None where nobody says."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
