"""The keeper: a small process of its own that starts commands and outlives turnlog long enough to end them.

It is run as a script, by ``python -I -S``, and imports nothing of turnlog. For each command it forks a
warden. The warden is the subreaper of everything that the command starts, so that nothing can slip away, and
ends all of it when the command ends, when it is told to, and when turnlog is gone, by ``kill -9`` too. Only
then does it report how the command ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_PATH, LANDLOCK_PORT = 1, 2
WATCH_MS = 200
"""How often a warden adds up what its command uses."""
SETTING_UP_MS = 3
SPARE = 50
"""Processes that the kernel allows beyond the limit: the watch then sees that it was passed, and says so."""
LISTEN_FD = 100

_libc = ctypes.CDLL(None, use_errno=True)


def keep(control: socket.socket, parent: int, scratch: str | None, processes: int) -> None:
    """Fork a warden for each message: one byte, with the channel of a command, its three streams and, where
    it is to listen for a proxy, a socket to hand its listener over."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGCHLD, _on_child)
    signal.signal(signal.SIGTERM, _on_terminate)
    gc.disable()  # a fork shares its memory for as long as nobody touches it
    group = None
    try:
        watched = os.pidfd_open(parent)
        if os.getppid() == parent:  # else it ended before this process began
            group = _enter_group(processes)
            _serve(control, watched)
    except (OSError, SystemExit):
        pass  # turnlog is gone, or this process is told to go: what it began has to end in any case
    control.close()  # turnlog starts another one for what it runs next
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_children()
    _leave_group(group)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _serve(control: socket.socket, watched: int) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(watched, select.POLLIN)
    while True:
        if watched in [fd for fd, _ in poll.poll()]:
            return
        word, fds, _, _ = socket.recv_fds(control, 1, 5)
        if not word:
            return
        try:
            child = os.fork()
        except OSError:  # too many processes; the channel that is closed here tells
            child = -1
        if child == 0:
            control.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                ward(socket.socket(fileno=fds[0]), fds[1:], watched)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def _on_terminate(number: int, frame: object) -> None:
    raise SystemExit


def ward(channel: socket.socket, streams: list[int], parent: int) -> NoReturn:
    """Run one command, and end everything it started before telling how it ended."""
    signal.signal(signal.SIGCHLD, _on_child_later)
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking)
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.setsid()
    lines = channel.makefile("rb")
    first = lines.readline()
    if not first:
        os._exit(0)
    spec = json.loads(first)
    failed, failing = os.pipe2(os.O_CLOEXEC)
    main = os.fork()
    if main == 0:
        start(spec, streams, failing)
    os.close(failing)
    for fd in streams:
        os.close(fd)
    error = os.read(failed, 10_000)
    if error:
        _end_children()
        channel.sendall(error)
        os._exit(0)
    _tell(channel, {"started": main})
    status, reason = _watch(spec, main, channel, woken, parent)
    _end_children()
    _tell(channel, {"status": status, "reason": reason})
    os._exit(0)


def _watch(
    spec: dict[str, Any], main: int, channel: socket.socket, woken: int, parent: int
) -> tuple[int | None, str]:
    memory, processes = spec.get("memory"), spec.get("processes")
    wait_ms = WATCH_MS if memory or processes else None
    poll = select.poll()
    for each in (channel, woken, parent):
        poll.register(each, select.POLLIN)
    rest, orders = b"", list[bytes]()
    while True:
        ready = [fd for fd, _ in poll.poll(SETTING_UP_MS if orders else wait_ms)]
        if woken in ready:
            os.read(woken, 1000)
            status = _reap().get(main)
            if status is not None:
                return os.waitstatus_to_exitcode(status), "exited"
        if parent in ready:
            return None, "killed"
        if channel.fileno() in ready:
            data = channel.recv(1000)
            if not data:
                return None, "killed"
            *more, rest = (rest + data).split(b"\n")
            orders += more
        while orders and _signal_group(main, int(orders[0]), spec["boxed"]):
            orders.pop(0)
        if (reason := _excess(memory, processes)) is not None:
            return None, reason


def _excess(memory: int | None, processes: int | None) -> str | None:
    """Why a command must end: what it and everything it started take together."""
    if not memory and not processes:
        return None
    used, count, open_ends = 0, 0, _children(os.getpid())
    while open_ends:
        pid = open_ends.pop()
        count += 1
        if processes and count > processes:
            return "processes"
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except OSError:
            continue
        used += (resident - shared) * resource.getpagesize()
        if memory and used > memory:
            return "memory"
        open_ends += _children(pid)
    return None


def _signal_group(main: int, number: int, boxed: bool) -> bool:
    """Signal the command's process group; False while bubblewrap, whose grandchild it is, sets it up."""
    pid = main
    for _ in range(2 if boxed else 0):
        below = _children(pid)
        if not below:
            return False
        pid = below[0]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), number)
    return True


def _enter_group(processes: int) -> str | None:
    """As root: a control group for all commands, in which the kernel counts, because it does not hold root
    to ``RLIMIT_NPROC``. None where there is none to be had; then only the watch above counts. Entered once:
    the kernel takes milliseconds to move a process, and a command is born in it."""
    if not processes or os.geteuid() != 0:
        return None
    for group in groups_of(os.getpid()):
        with contextlib.suppress(OSError):
            os.mkdir(group)
            if os.path.exists(f"{group}/pids.max"):
                _put(f"{group}/pids.max", 2 * processes + 10 * SPARE)
                _put(f"{group}/cgroup.procs", 0)
                return group
        with contextlib.suppress(OSError):
            os.rmdir(group)
    return None


def _leave_group(group: str | None) -> None:
    if group is None:
        return
    with contextlib.suppress(OSError):
        _put(f"{os.path.dirname(group)}/cgroup.procs", 0)
    for _ in range(100):  # the kernel takes a moment to let go of processes that have ended
        try:
            os.rmdir(group)
            return
        except OSError:
            select.poll().poll(10)


def groups_of(keeper: int) -> list[str]:
    """Where the control group of a keeper may be, in the older and the newer hierarchy."""
    with open("/proc/self/cgroup") as file:
        rows = [line.strip().split(":", 2) for line in file]
    above = [f"/sys/fs/cgroup/pids{path}" for _, names, path in rows if names == "pids"]
    above += [f"/sys/fs/cgroup{path}" for number, _, path in rows if number == "0"]
    return [f"{folder.rstrip('/')}/turnlog-{keeper}" for folder in above]


def _limit_processes(processes: int | None) -> None:
    """In the child. The kernel counts all tasks of a user, so those that run already are added."""
    if processes and os.geteuid() != 0:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[2])
        _limit("NPROC", running + processes + SPARE)


def _limit(name: str, limit: int) -> None:
    number = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(number)
    bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(number, (bound, bound))


def _put(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))


def start(spec: dict[str, Any], streams: list[int], failing: int) -> NoReturn:
    """In the child: become the command."""
    step = "start the command"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # A warden that is killed takes its command along, also where it changes its session.
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for fd, target in zip(streams, (0, 1, 2, LISTEN_FD), strict=False):
            os.dup2(fd, target)
        _limit_processes(spec["processes"])
        for name, limit in spec["limits"].items():
            _limit(name, limit)
        os.umask(0o022)
        step = f"enter the folder {spec['cwd']}"
        os.chdir(spec["cwd"])
        argv: list[str] = spec["argv"]
        program = bytes.fromhex(spec["seccomp"])
        if spec["boxed"]:
            if program:
                argv = _with_filter(argv, program)
        else:
            step = "restrict the command"
            _restrict(spec["landlock"], program)
        for entry in os.listdir("/proc/self/fd"):
            if int(entry) > 2 and int(entry) not in (failing, _filter_fd(argv), LISTEN_FD):
                with contextlib.suppress(OSError):  # the listing itself
                    os.close(int(entry))
        step = f"run {spec['shown']}"
        os.execvpe(argv[0], argv, spec["env"])
    except OSError as error:
        problem = {"error": step, "errno": error.errno, "text": error.strerror or str(error)}
        os.write(failing, json.dumps(problem).encode() + b"\n")
    except BaseException as error:
        problem = {"error": step, "errno": 0, "text": f"{type(error).__name__}: {error}"}
        os.write(failing, json.dumps(problem).encode()[:9000] + b"\n")
    os._exit(127)


def _with_filter(argv: list[str], program: bytes) -> list[str]:
    reading, writing = os.pipe()
    os.write(writing, program)
    os.close(writing)
    os.set_inheritable(reading, True)
    return [argv[0], "--seccomp", str(reading), *argv[1:]]


def _filter_fd(argv: list[str]) -> int:
    return int(argv[2]) if argv[1:2] == ["--seccomp"] else -1


def _restrict(landlock: dict[str, Any] | None, program: bytes) -> None:
    if landlock is None:
        return
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _landlock(landlock)
    _drop_capabilities()
    filters = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(filters))
    _call("prctl", PR_SET_SECCOMP, 2, ctypes.c_char_p(head), 0, 0)


def _landlock(rules: dict[str, Any]) -> None:
    attributes = struct.pack("=QQQ", rules["handled"], rules["ports_handled"], rules["scoped"])
    attributes = attributes[: rules["size"]]
    ruleset = _syscall(SYS_LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    for path, allowed in rules["paths"]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not os.path.isdir(path):
            allowed &= rules["on_files"]
        rule = struct.pack("=Qi", allowed, fd)
        _syscall(SYS_LANDLOCK_ADD, ruleset, LANDLOCK_PATH, ctypes.c_char_p(rule), 0)
        os.close(fd)
    for port in rules["ports"]:
        rule = struct.pack("=QQ", 2, port)  # connecting alone
        _syscall(SYS_LANDLOCK_ADD, ruleset, LANDLOCK_PORT, ctypes.c_char_p(rule), 0)
    _syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _drop_capabilities() -> None:
    for number in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # past the last one, or nothing to drop as an ordinary user
    head, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _syscall(SYS_CAPSET[os.uname().machine], ctypes.c_char_p(head), ctypes.c_char_p(nothing))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def _end_children() -> None:
    """Kill what is below this process until nothing is: orphans become its children, and are next."""
    while True:
        for pid in _children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        _reap()


def _on_child(number: int, frame: object) -> None:
    _reap()


def _on_child_later(number: int, frame: object) -> None:
    """Nothing: the signal's byte on the wakeup descriptor ends the wait."""


def _reap() -> dict[int, int]:
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _tell(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # turnlog is gone
        channel.sendall(json.dumps(message).encode() + b"\n")


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} {arguments[0]}: {os.strerror(number)}")


def _syscall(*arguments: Any) -> int:
    result = _libc.syscall(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"system call {arguments[0]}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    keep(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3] or None, int(sys.argv[4]))
