"""Files of this machine: nothing leads out, nothing is half written, and bad workspaces are told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.levels import LEVELS, needs
from turnlog.contract import AgentError, ExecutionEnv
from turnlog.runtime import LocalRuntime, SandboxLevel


async def refused(work: object, code: str, words: str) -> None:
    with pytest.raises(AgentError, match=words) as caught:
        await work  # pyright: ignore[reportGeneralTypeIssues]
    assert caught.value.code == code, caught.value


async def test_no_link_leads_out(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace, outside):
        folder.mkdir()
    (outside / "secret").write_text("secret")
    (workspace / "folder").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret")
    (workspace / "up").symlink_to("../outside/secret")
    (workspace / "nowhere").symlink_to("/tmp/turnlog-nowhere")
    (workspace / "inside").symlink_to("real/target")
    (workspace / "real").mkdir()
    (workspace / "real" / "target").write_text("before")
    async with LocalRuntime(workspace, level="none") as runtime:
        for path in ("folder/secret", "file", "up", str(outside / "secret"), "../outside/secret"):
            await refused(runtime.read(path), "RuntimePermissionDenied", "leads out|outside")
        for path in ("folder/new", "file", "up", "nowhere", "folder/deep/new", "/etc/turnlog-check"):
            await refused(runtime.write(path, b"x"), "RuntimePermissionDenied", "leads out|outside")
        await refused(runtime.list_files("folder"), "RuntimePermissionDenied", "leads out")
        await refused(runtime.remove("folder/secret"), "RuntimePermissionDenied", "leads out")
        found = await runtime.stat("file")
        assert found is not None and found.kind == "link"
        await runtime.write("inside", b"after")
        assert (workspace / "inside").is_symlink() and (workspace / "real/target").read_text() == "after"
        await runtime.remove("file")
    assert (outside / "secret").read_text() == "secret" and len(list(outside.iterdir())) == 1


async def test_a_link_that_is_swapped_all_the_time_never_leads_out(tmp_path: Path) -> None:
    """A check of the path before it is opened loses this race now and then; the kernel's does not."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace / "safe", outside):
        folder.mkdir(parents=True)
    (outside / "name").write_text("secret")
    (workspace / "safe" / "name").write_text("public")
    swap = "while :; do ln -sfn ../outside way; ln -sfn safe way; done"
    (workspace / "way").symlink_to("safe")
    async with LocalRuntime(workspace, level="none") as runtime, await runtime.run(swap):
        seen: set[bytes] = set()
        for _ in range(300):
            with contextlib.suppress(AgentError):
                seen.add(await runtime.read("way/name"))
            with contextlib.suppress(AgentError):
                await runtime.write("way/written", b"x")
    assert seen <= {b"public"} and not (outside / "written").exists()


async def test_what_would_run_later_is_not_written(tmp_path: Path) -> None:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[core]\n")
    (tmp_path / "way").symlink_to(".git")
    async with LocalRuntime(tmp_path, level="none") as runtime:
        for path in (".git/config", ".git/hooks/pre-commit", "way/config", "way/hooks/new", ".turnlog/x"):
            await refused(runtime.write(path, b"x"), "RuntimePermissionDenied", "not writable")
        await refused(runtime.remove(".git/config"), "RuntimePermissionDenied", "not writable")
        await runtime.write(".git/description", b"x")
    assert (tmp_path / ".git" / "config").read_text() == "[core]\n"


async def test_odd_files_are_told_and_hang_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "two\nlines").write_text("named")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    async with LocalRuntime(tmp_path, level="none") as runtime:
        await refused(runtime.read("pipe"), "RuntimeExecutionError", "no ordinary file")
        await refused(runtime.read("."), "RuntimeExecutionError", "a folder")
        await refused(runtime.write(".", b"x"), "RuntimeExecutionError", "directory")
        await refused(runtime.read("a\0b"), "RuntimeExecutionError", "cannot be the path")
        await refused(runtime.read("tool/x"), "RuntimeExecutionError", "Not a directory")
        await refused(runtime.read("tool", offset=-1), "RuntimeExecutionError", "negative")
        await refused(runtime.remove("no"), "RuntimeExecutionError", "No such file")
        assert await runtime.read("two\nlines") == b"named"
        assert [each.path for each in await runtime.list_files()] == ["pipe", "tool", "two\nlines"]
        await runtime.write("tool", b"#!/bin/sh\nexit 4\n")
        assert (await runtime.execute("./tool")).exit_code == 4, "a file keeps its mode"


async def test_a_file_in_place_is_whole_at_every_moment(tmp_path: Path) -> None:
    sizes = (10, 300_000)
    async with LocalRuntime(tmp_path, level="none") as runtime:
        await runtime.write("data", b"a" * sizes[0])

        async def write() -> None:
            for turn in range(30):
                await runtime.write("data", (b"a", b"b")[turn % 2] * sizes[turn % 2])

        writing = asyncio.create_task(write())
        while not writing.done():
            seen = await runtime.read("data")
            assert (seen[:1], len(seen)) in ((b"a", sizes[0]), (b"b", sizes[1]))
        await writing
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("level", LEVELS)
class TestWorkspaces:
    async def test_a_link_to_a_folder(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        async with LocalRuntime(tmp_path / "link", level=level) as runtime:
            assert (await runtime.execute("pwd; echo x > made")).stdout == f"{tmp_path}/real\n"
            await runtime.write("kit", b"y")
            (tmp_path / "link").unlink()  # what it leads to later is of no matter
            (tmp_path / "link").symlink_to("/etc")
            assert (await runtime.execute("cat made kit")).stdout == "x\ny"

    async def test_one_that_is_deleted_while_in_use(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        (tmp_path / "gone").mkdir()
        async with LocalRuntime(tmp_path / "gone", level=level) as runtime:
            async with await runtime.run("echo up; read word; echo $word") as process:
                pieces = process.output()
                assert (await anext(pieces)).data == b"up\n"
                shutil.rmtree(tmp_path / "gone")
                await process.write(b"still\n")
                assert (await anext(pieces)).data == b"still\n"
            await refused(runtime.run("pwd"), "RuntimeExecutionError", "no longer there")
            await refused(runtime.stat("x"), "RuntimeExecutionError", "No such file|no longer there")
            await refused(runtime.write("x", b"y"), "RuntimeExecutionError", "No such file")
            (tmp_path / "gone").mkdir()
            assert (await runtime.execute("echo back")).stdout == "back\n"

    async def test_one_that_is_full(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "none") as small:
            async with LocalRuntime(small, level=level) as runtime:
                await runtime.write("kept", b"kept")
                done = await runtime.execute("cat /dev/zero > big; echo $?")
                assert "No space left" in done.stderr
                await refused(runtime.write("kept", bytes(500_000)), "RuntimeExecutionError", "No space left")
                assert await runtime.read("kept") == b"kept"
                await runtime.remove("big")
                await runtime.write("kept", bytes(500_000))
                assert [each.path for each in await runtime.list_files()] == ["kept"]

    async def test_one_that_is_a_mount_and_read_only(self, level: SandboxLevel, tmp_path: Path) -> None:
        needs(level)
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "note").write_text("words")
        with mounted(tmp_path / "seen", "--bind", "-o", "ro", str(tmp_path / "source")) as seen:
            async with LocalRuntime(seen, level=level) as runtime:
                assert (
                    await runtime.execute("cat note; echo x > new || echo refused")
                ).stdout == "wordsrefused\n"
                await refused(runtime.write("new", b"x"), "RuntimePermissionDenied", "Read-only")
                assert await runtime.read("note") == b"words"


class mounted:
    """A file system for a test; skips where it cannot be mounted."""

    def __init__(self, target: Path, *args: str) -> None:
        self._target, self._args = target, args

    def __enter__(self) -> Path:
        self._target.mkdir()
        command = ["mount", *self._args, str(self._target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        return self._target

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self._target)], check=True)


@pytest.mark.parametrize("folder", ["/", "/usr", os.path.expanduser("~")])
async def test_a_workspace_that_holds_the_system_or_the_home_is_refused(folder: str) -> None:
    await refused(LocalRuntime(folder).connect(), "RuntimeUnavailable", "a folder for the work alone")


async def test_a_workspace_that_is_no_folder_and_roots_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    await refused(LocalRuntime(tmp_path / "file").connect(), "RuntimeUnavailable", "is not a folder")
    (tmp_path / "build").symlink_to("/etc")
    policy = ExecutionEnv(writable_roots=("build",))
    await refused(LocalRuntime(tmp_path, policy=policy).connect(), "RuntimeUnavailable", "leads out")
    policy = ExecutionEnv(writable_roots=("missing",))
    await refused(LocalRuntime(tmp_path, policy=policy).connect(), "RuntimeUnavailable", "is not a folder")


async def test_another_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    await refused(LocalRuntime(tmp_path, level="none").connect(), "RuntimeUnavailable", "needs Linux")
