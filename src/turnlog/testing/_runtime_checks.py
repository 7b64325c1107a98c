"""The promise of a runtime, checked on an implementation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from turnlog.contract import AgentError, Command, Process, Runtime, find_unjson


async def check_runtime(
    make: Callable[[], Runtime],
    *,
    broken: Callable[[], Runtime] | None = None,
    outside: str = "/etc/turnlog-check",
) -> list[str]:
    """Raise ``AssertionError`` unless the runtimes that ``make`` makes keep the promise of ``Runtime``;
    returns the checks that passed.

    ``broken`` makes one that cannot connect. ``outside`` is a path that the policy does not let write. The
    commands are ``echo hello``, ``echo oops >&2; exit 3``, ``cat``, ``sleep 3600``, ``yes``,
    ``echo "$GREETING"`` and ``cat kit/note.txt``; a runtime without a POSIX shell needs them as scripts.
    """
    checks: list[Callable[[], Awaitable[None]]] = [
        lambda: _life(make),
        lambda: _with(make, _facts),
        lambda: _with(make, _commands),
        lambda: _with(make, _streams),
        lambda: _with(make, _limits),
        lambda: _with(make, _kills),
        lambda: _closing_kills(make),
        lambda: _with(make, _files),
        lambda: _with(make, lambda runtime: _refusals(runtime, outside)),
    ]
    names = ["life", "facts", "commands", "streams", "limits", "kills", "closing", "files", "refusals"]
    if broken is not None:
        checks.append(lambda: _broken(broken()))
        names.append("broken")
    for check in checks:
        await check()
    return names


async def _with(make: Callable[[], Runtime], check: Callable[[Runtime], Awaitable[None]]) -> None:
    async with make() as runtime:
        await check(runtime)


async def _life(make: Callable[[], Runtime]) -> None:
    runtime = make()
    assert isinstance(runtime, Runtime), f"{runtime!r} lacks a part of Runtime"
    assert runtime.status == "idle", f"a new runtime is idle, not {runtime.status}"
    await _refused("RuntimeNotReady", runtime.run("echo hello"), "run before connect")
    await _refused("RuntimeNotReady", runtime.read("x"), "read before connect")
    await runtime.connect()
    assert runtime.status == "ready", f"a connected runtime is ready, not {runtime.status}"
    await runtime.connect()  # twice
    await runtime.close()
    await runtime.close()  # twice
    assert runtime.status == "closed", f"a closed runtime is closed, not {runtime.status}"
    await _refused("RuntimeNotReady", runtime.execute("echo hello"), "execute after close")
    never = make()
    await never.close()  # never connected


async def _facts(runtime: Runtime) -> None:
    assert {"run", "files"} <= runtime.capabilities(), "run and files are what a runtime is for"
    assert runtime.sandbox is None or runtime.sandbox
    first, again = await runtime.get_init_data(), await runtime.get_init_data()
    assert first == again, "get_init_data must stay the same: it is part of the cached prefix"
    assert not find_unjson(first) and not find_unjson(await runtime.get_hints()), "data must be plain JSON"


async def _commands(runtime: Runtime) -> None:
    done = await runtime.execute("echo hello")
    assert (done.exit_code, done.stdout, done.stderr, done.reason) == (0, "hello\n", "", "exited"), done
    done = await runtime.execute("echo oops >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "", "oops\n"), done
    done = await runtime.execute("cat", stdin=b"in \xff out")
    assert (done.exit_code, done.stdout) == (0, "in \ufffd out"), done
    done = await runtime.execute('echo "$GREETING"', env={"GREETING": "good day"})
    assert done.stdout == "good day\n", done
    nothing: Command = []
    await _refused("RuntimeExecutionError", runtime.execute(nothing), "a command of no words")


async def _streams(runtime: Runtime) -> None:
    """Output comes while the process runs, and what is asked of it is answered."""
    async with await runtime.run("cat") as process:
        pieces = process.output()
        await process.write(b"one\n")
        assert (await _next(pieces)) == b"one\n", "output must come before the process has ended"
        assert process.end is None
        await process.write(b"two\n")
        assert (await _next(pieces)) == b"two\n"
        await process.close_stdin()
        assert [piece async for piece in pieces] == []
        assert (await process.wait()).exit_code == 0
    await _refused("RuntimeExecutionError", process.write(b"three"), "write to a closed input")
    first, second = await runtime.run("cat"), await runtime.run("cat")
    async with first, second:
        assert first.id != second.id, "two processes have one id"


async def _limits(runtime: Runtime) -> None:
    done = await runtime.execute("sleep 3600", timeout=0.2)
    assert (done.exit_code, done.reason) == (None, "timed_out"), done
    async with await runtime.run("yes") as process:
        seen = 0
        async for piece in process.output():
            seen += len(piece.data)
            if seen > 100_000:
                break
    assert process.end is not None, "leaving the block must end the process"
    flood = await runtime.execute("yes", timeout=0.2, keep=1000)
    assert flood.truncated and len(flood.stdout) < 1200, "what is kept must stay within keep"


async def _kills(runtime: Runtime) -> None:
    process = await runtime.run("sleep 3600")
    await process.kill()
    await process.kill()  # twice
    assert (await process.wait()).reason == "killed"
    process = await runtime.run("sleep 3600")
    await process.signal(signal.SIGTERM)
    assert (await process.wait()).exit_code != 0, "a signal must reach the command"
    await process.signal(signal.SIGTERM)  # it has ended
    async with await runtime.run("sleep 3600") as left:
        await _refused("RuntimeExecutionError", left.signal(9999), "send a number that is no signal")
        assert left.end is None
    assert left.end is not None and left.end.reason == "killed", "leaving the block must kill the process"
    waiting = asyncio.create_task(runtime.execute("sleep 3600"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled(), "execute must end when it is cancelled"


async def _closing_kills(make: Callable[[], Runtime]) -> None:
    runtime = make()
    processes: list[Process] = []
    async with runtime:
        processes = [await runtime.run("sleep 3600") for _ in range(3)]
    assert all(process.end is not None for process in processes), "close must kill what still runs"


async def _files(runtime: Runtime) -> None:
    data = bytes(range(256))
    await runtime.write("kit/deep/data.bin", data)
    assert await runtime.read("kit/deep/data.bin") == data
    assert await runtime.read("kit/deep/data.bin", offset=10, limit=5) == data[10:15]
    assert await runtime.read("kit/deep/data.bin", offset=300) == b""
    await runtime.write("kit/note.txt", b"first")
    await runtime.write("kit/note.txt", b"second")
    assert (await runtime.execute("cat kit/note.txt")).stdout == "second", "commands see the same files"
    found = await runtime.stat("kit/note.txt")
    assert found is not None and (found.kind, found.size) == ("file", 6), found
    folder = await runtime.stat("kit")
    assert folder is not None and folder.kind == "directory", folder
    listed = {each.path.rstrip("/").rsplit("/", 1)[-1]: each.kind for each in await runtime.list_files("kit")}
    assert listed == {"deep": "directory", "note.txt": "file"}, listed
    await runtime.remove("kit/note.txt")
    assert await runtime.stat("kit/note.txt") is None
    await runtime.remove("kit/deep/data.bin")


async def _refusals(runtime: Runtime, outside: str) -> None:
    await _refused("RuntimeExecutionError", runtime.read("kit/nowhere"), "read a file that is not there")
    await _refused("RuntimeExecutionError", runtime.remove("kit/nowhere"), "remove a file that is not there")
    await _refused(
        "RuntimeExecutionError", runtime.list_files("kit/nowhere"), "list a folder that is not there"
    )
    assert await runtime.stat("kit/nowhere") is None
    for path in (outside, "../turnlog-check", "kit/../../turnlog-check"):
        await _refused("RuntimePermissionDenied", runtime.write(path, b"x"), f"write to {path}")


async def _broken(runtime: Runtime) -> None:
    await _refused("RuntimeUnavailable", runtime.connect(), "connect")
    assert runtime.status == "failed", f"a runtime that could not connect is failed, not {runtime.status}"
    await runtime.close()


async def _refused(code: str, work: Awaitable[Any], what: str) -> None:
    try:
        await work
    except AgentError as error:
        if error.code != code:
            raise AssertionError(f"{what}: expected {code}, found {error.code}: {error.message}") from error
        return
    except Exception as error:
        raise AssertionError(f"{what}: raised {type(error).__name__}, not AgentError: {error}") from error
    raise AssertionError(f"{what}: expected {code}, and nothing was raised")


async def _next(pieces: Any) -> bytes:
    piece = await anext(pieces)
    return piece.data
