"""T. Tools and runtime: where commands and files happen."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from runtime.levels import needs
from turnlog import AgentError
from turnlog.contract import ExecutionEnv, Runtime
from turnlog.runtime import LocalRuntime
from turnlog.testing import Loopback, LoopbackAnswer, check_runtime


@pytest.mark.spec("T-6")
async def test_a_runtime_connects_executes_tells_of_itself_and_closes(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path, level="none")
    assert isinstance(runtime, Runtime) and runtime.status == "idle"
    with pytest.raises(AgentError, match="RuntimeNotReady"):
        await runtime.execute("true")
    await runtime.connect()
    assert runtime.status == "ready" and {"run", "files"} <= runtime.capabilities()
    done = await runtime.execute("echo hello; echo oh >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hello\n", "oh\n")
    await runtime.write("notes/a.txt", b"one")
    assert await runtime.read("notes/a.txt") == b"one"
    assert isinstance(await runtime.get_init_data(), dict) and isinstance(await runtime.get_hints(), dict)
    assert await runtime.get_init_data() == await runtime.get_init_data(), "stable"
    await runtime.close()
    assert runtime.status == "closed"
    broken = LocalRuntime(tmp_path / "nowhere", level="none")
    with pytest.raises(AgentError, match="RuntimeUnavailable"):
        await broken.connect()
    assert broken.status == "failed"
    assert await check_runtime(lambda: LocalRuntime(tmp_path, level="none"))


@pytest.mark.spec("T-6")
async def test_the_kernel_keeps_a_command_to_the_writable_roots(tmp_path: Path) -> None:
    needs("landlock")
    inside, outside = tmp_path / "work", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    (inside / "open").mkdir()
    policy = ExecutionEnv(writable_roots=("open",))
    async with LocalRuntime(inside, policy=policy) as runtime:
        assert runtime.sandbox in ("workspace", "landlock")
        program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('x')"
        for place in (inside / "open", inside, outside, Path.home(), Path("/var/tmp")):
            target = place / "written-by-a-command"
            done = await runtime.execute([sys.executable, "-c", program, str(target)])
            assert target.exists() == (place.name == "open"), target
            assert done.exit_code == 0 or place.name != "open"
        await runtime.write("open/a.txt", b"ok")
        for path in ("a.txt", "/var/tmp/a.txt", "open/../../other/a.txt"):
            with pytest.raises(AgentError) as caught:
                await runtime.write(path, b"no")
            assert caught.value.code in ("RuntimePermissionDenied", "RuntimeSandboxViolation")
        with suppress(AgentError):  # where /tmp is one of its own, this is in there
            await runtime.write(str(outside / "a.txt"), b"no")
    assert list(outside.iterdir()) == []


CONNECT = """
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60).close()
print("connected")
"""


@pytest.mark.spec("T-6")
@pytest.mark.parametrize("network", ["deny", "allow"])
async def test_the_network_is_denied_or_allowed(network: str, tmp_path: Path) -> None:
    needs("landlock")
    async with Loopback(LoopbackAnswer()) as server:
        port = server.url.rpartition(":")[2]
        async with LocalRuntime(tmp_path, policy=ExecutionEnv(network=network)) as runtime:  # type: ignore[arg-type]
            done = await runtime.execute([sys.executable, "-c", CONNECT, port])
    assert (done.stdout == "connected\n") == (network == "allow")


@pytest.mark.spec("T-6")
async def test_time_and_memory_are_limited(tmp_path: Path) -> None:
    needs("landlock")
    policy = ExecutionEnv(timeout=0.5, max_memory=200_000_000)
    async with LocalRuntime(tmp_path, policy=policy) as runtime:
        slow = await runtime.execute("sleep 600")
    assert (slow.exit_code, slow.reason) == (None, "timed_out")
    policy = ExecutionEnv(timeout=200, max_memory=200_000_000)
    async with LocalRuntime(tmp_path, policy=policy) as runtime:
        large = await runtime.execute([sys.executable, "-c", "x = bytearray(10**9); print(len(x))"])
    assert large.stdout == "" and large.exit_code != 0


@pytest.mark.spec("T-6")
async def test_where_there_is_no_sandbox_it_says_so_and_refuses_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without bubblewrap, as far as this process can see."""
    (tmp_path / "true").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    runtime = LocalRuntime(tmp_path, level="workspace")
    with pytest.raises(AgentError) as caught:
        await runtime.connect()
    assert caught.value.code == "RuntimeUnavailable" and runtime.status == "failed"
    assert "bubblewrap" in caught.value.message and "none" in caught.value.message
    async with LocalRuntime(tmp_path, level="none") as runtime:
        assert runtime.sandbox is None, "and it is known that there is none"
        assert (await runtime.execute("echo hello")).stdout == "hello\n"
