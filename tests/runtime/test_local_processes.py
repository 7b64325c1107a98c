"""Commands of this machine: limits, floods, signals, and nothing left behind by any kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from runtime.levels import LEVELS, needs
from turnlog.contract import AgentError, ExecutionEnv
from turnlog.runtime import LocalRuntime, SandboxLevel, _keeper
from turnlog.runtime._keeper import groups_of


def processes(marker: str) -> list[int]:
    """The processes of this machine with ``marker`` on their command line."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


DAEMON = "(setsid sh -c 'sleep 600; : {marker}' >/dev/null 2>&1 &) ; "


@pytest.mark.parametrize("level", LEVELS)
class TestAtEveryLevel:
    async def test_a_daemon_ends_with_its_command(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        marker = uuid.uuid4().hex
        async with LocalRuntime(tmp_path, level=level) as runtime:
            process = await runtime.run(DAEMON.format(marker=marker) + "echo up; sleep 600")
            async with process:
                await anext(process.output())
                assert processes(marker)
                await process.kill()
                assert processes(marker) == []
            done = await runtime.execute(DAEMON.format(marker=marker) + "exit 3")
            assert done.exit_code == 3 and processes(marker) == []

    async def test_a_signal_reaches_the_command_and_sigterm_can_be_ignored(
        self, level: SandboxLevel, tmp_path: Path
    ) -> None:
        needs(level)
        async with LocalRuntime(tmp_path, level=level) as runtime:
            # The sleeping child gets the signals too, and the shell tells of its end on stderr.
            script = "exec 2>/dev/null; trap 'echo caught' USR1; trap '' TERM; echo up; "
            script += "while :; do sleep 0.05; done"
            async with await runtime.run(script) as process:
                pieces = process.output()
                assert (await anext(pieces)).data == b"up\n"
                await process.signal(signal.SIGUSR1)
                assert (await anext(pieces)).data == b"caught\n"
                await process.signal(signal.SIGTERM)
                await process.signal(signal.SIGUSR1)
                assert b"caught" in (await anext(pieces)).data
                assert process.end is None
                await process.kill()
                assert (await process.wait()).reason == "killed"
            died = await runtime.execute("kill -SEGV $$")
            assert (died.exit_code, died.reason) == (128 + signal.SIGSEGV, "exited")

    async def test_too_many_processes_end_a_command(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        marker = uuid.uuid4().hex
        policy = ExecutionEnv(max_processes=30)
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            # Never more than 60, whatever fails: a bomb would hit the whole machine.
            many = f"for n in $(seq 60); do sleep 600 & done; wait; : {marker}"
            done = await runtime.execute(many, timeout=60)
            assert (done.exit_code, done.reason) == (None, "processes")
            assert processes(marker) == []
            assert (await runtime.execute("echo still here")).stdout == "still here\n"

    async def test_memory_is_limited_for_one_process_and_for_all_together(
        self, level: SandboxLevel, tmp_path: Path
    ) -> None:
        needs(level)
        policy = ExecutionEnv(max_memory=100_000_000)
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            python = [sys.executable, "-I", "-S", "-c"]
            alone = await runtime.execute([*python, "x = bytearray(200_000_000)"])
            assert alone.exit_code == 1 and "MemoryError" in alone.stderr
            many = "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * 30_000_000\ntime.sleep(600)"
            together = await runtime.execute([*python, many], timeout=60)
            assert (together.exit_code, together.reason) == (None, "memory")

    async def test_a_file_and_the_output_are_limited(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        policy = ExecutionEnv(max_file_size=1_000_000, max_output=100_000)
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            done = await runtime.execute("cat /dev/zero > big")
            assert done.exit_code == 128 + signal.SIGXFSZ
            assert (tmp_path / "big").stat().st_size == 1_000_000
            with pytest.raises(AgentError, match="the limit is 1000000"):
                await runtime.write("big", bytes(1_000_001))
            flood = await runtime.execute("yes")
            assert (flood.exit_code, flood.reason, len(flood.stdout)) == (None, "output", 100_000)
            exact = await runtime.execute("head -c 100000 /dev/zero")
            assert (exact.exit_code, len(exact.stdout)) == (0, 100_000)

    async def test_closing_its_output_does_not_end_a_command(
        self, level: SandboxLevel, tmp_path: Path
    ) -> None:
        needs(level)
        async with LocalRuntime(tmp_path, level=level) as runtime:
            done = await runtime.execute("exec >&- 2>&-; read word; echo $word > said; exit 7", stdin=b"go\n")
        assert (done.exit_code, done.stdout) == (7, "")
        assert (tmp_path / "said").read_text() == "go\n"

    async def test_fifty_jobs_run_at_once(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        marker = uuid.uuid4().hex
        async with LocalRuntime(tmp_path, level=level) as runtime:
            jobs = [await runtime.run(f"echo up; read word; echo $word; : {marker}") for _ in range(50)]
            assert len((await runtime.get_hints())["running"]) == 50
            for number, job in enumerate(jobs[:25]):
                await job.write(b"%d\n" % number)
                assert b"".join([piece.data async for piece in job.output()]) == b"up\n%d\n" % number
                assert (await job.wait()).exit_code == 0
        assert processes(marker) == [] and all(job.end is not None for job in jobs)

    async def test_output_of_100_mb_is_held_at_bounded_memory(
        self, level: SandboxLevel, tmp_path: Path
    ) -> None:
        needs(level)
        async with LocalRuntime(tmp_path, level=level) as runtime:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            done = await runtime.execute("head -c 99000000 /dev/zero", keep=1000)
            async with await runtime.run("yes") as unread:
                await asyncio.sleep(0.1)  # a chance to fill what holds it
                assert unread.end is None
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert done.exit_code == 0 and done.truncated
        assert grown < 20_000, f"{grown} kB more"


FORKING = """
import os, signal, sys
from turnlog.runtime import _keeper

group = _keeper._enter_group(20)
if group is None and os.geteuid() == 0:
    sys.exit("root is held to a number of processes by a pids control group alone, and there is none")
child = os.fork()
if child == 0:
    _keeper._limit_processes(20)
    made = []
    try:
        while len(made) < 700:  # never more: a bomb would hit the whole machine
            made.append(os.fork())
            if made[-1] == 0:
                signal.pause()
    except BlockingIOError:
        print("refused after", len(made), flush=True)
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)
os.waitpid(child, 0)
_keeper._leave_group(group)
print("left", group is not None and os.path.exists(group))
"""


def test_the_kernel_itself_refuses_processes_beyond_the_limit() -> None:
    """A program that forks without end is faster than any watch; the watch only tells of it."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False
    )
    if "there is none" in done.stderr:
        pytest.skip(done.stderr.strip())
    refused, left = done.stdout.splitlines()
    assert left == "left False"
    count = int(refused.removeprefix("refused after "))
    assert count < (540 if os.geteuid() == 0 else 700)


async def test_a_program_that_is_not_there_is_told_before_it_runs(tmp_path: Path) -> None:
    async with LocalRuntime(tmp_path, level="none") as runtime:
        with pytest.raises(AgentError, match="there is no program 'no-such-program'"):
            await runtime.run(["no-such-program"])
        with pytest.raises(AgentError, match="outside of the workspace"):
            await runtime.run("true", cwd="..")
        with pytest.raises(AgentError, match="NUL"):
            await runtime.run("echo \0")
        assert (await runtime.execute("no-such-program")).exit_code == 127


def test_a_keeper_whose_turnlog_is_gone_already_leaves_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        facts = [str(theirs.fileno()), str(gone.pid), str(scratch), "10"]
        keeper = subprocess.Popen([sys.executable, _keeper.__file__, *facts], pass_fds=[theirs.fileno()])
        assert keeper.wait(60) == 0
    assert not scratch.exists() and not any(map(os.path.exists, groups_of(keeper.pid)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_keeper_that_was_killed_is_started_again(number: int, tmp_path: Path) -> None:
    async with LocalRuntime(tmp_path, level="none") as runtime:
        process = await runtime.run("sleep 600")
        (keeper,) = [pid for pid in processes("_keeper.py") if _parent(pid) == os.getpid()]
        gone = os.pidfd_open(keeper)
        os.kill(keeper, number)
        await asyncio.to_thread(select.select, [gone], [], [], 60)
        os.close(gone)
        await process.kill()
        assert (await runtime.execute("echo again")).stdout == "again\n"
    assert not any(map(os.path.exists, groups_of(keeper))), "a control group is left"


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


HOST = """
import asyncio, sys
from turnlog.runtime import LocalRuntime

async def main(folder, level, marker):
    async with LocalRuntime(folder, level=level) as runtime:
        print("ready", flush=True)
        while True:
            await runtime.run(f"(setsid sleep 600 &) ; sleep 600; : {marker}")

asyncio.run(main(*sys.argv[1:]))
"""


def _kill_turnlog(level: str, folder: Path, seed: int) -> None:
    """``kill -9`` at a moment of its own, while commands are being started; then nothing may be left."""
    marker = uuid.uuid4().hex
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(folder), level, marker], stdout=subprocess.PIPE, text=True
    )
    with host:
        assert host.stdout is not None and host.stdout.readline() == "ready\n"
        (keeper,) = [pid for pid in processes("_keeper.py") if _parent(pid) == host.pid]
        gone = os.pidfd_open(keeper)
        select.select([], [], [], random.Random(seed).uniform(0, 0.15))
        host.kill()
    ended, _, _ = select.select([gone], [], [], 60)
    os.close(gone)
    assert ended, "the keeper did not end"
    assert processes(marker) == []
    assert not Path(f"/sys/fs/cgroup/pids/turnlog-{keeper}").exists(), "a control group is left"


@pytest.mark.parametrize("level", LEVELS)
def test_turnlog_killed_leaves_no_process(level: SandboxLevel, tmp_path: Path) -> None:
    needs(level)
    for seed in range(2):
        _kill_turnlog(level, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("level", LEVELS)
def test_turnlog_killed_two_hundred_times_leaves_no_process(level: SandboxLevel, tmp_path: Path) -> None:
    needs(level)
    for seed in range(200):
        _kill_turnlog(level, tmp_path, seed)
