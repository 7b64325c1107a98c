"""The sandbox holds against attacks, lets developer tools work, and is refused where it cannot be set up."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from runtime.levels import needs
from turnlog.contract import AgentError, ExecutionEnv
from turnlog.runtime import LocalRuntime, probe_sandbox

OUTSIDE = ("/tmp/turnlog-a", os.path.expanduser("~/b"))
GIT = "git -c user.name=a -c user.email=a@b.c"
TOOLS = {
    "git": f"git init -q . && echo a > a && git add a && {GIT} commit -qm one && git log",
    "python3": "python3 -c 'import ssl, sqlite3, multiprocessing as m; print(m.Queue)'",
    "pip": "pip list --disable-pip-version-check",
    "pytest": 'echo \'def test_a(tmp_path): tmp_path.joinpath("x").write_text("y")\' > test_a.py && '
    f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -p no:cacheprovider test_a.py",
    "ruff": f"echo 'x = 1' > a.py && {sys.executable} -m ruff check a.py",
    "uv": "uv --version && uv venv --offline --no-python-downloads v",
    "node": 'node -e \'require("child_process").execSync("true"); require("fs").writeFileSync("a", "b")\'',
    "npm": "npm init -y >/dev/null",
    "make": "printf 'all:\\n\\techo made > made\\n' > Makefile && make -j4 && cat made",
    "gcc": "echo 'int main(void){return 0;}' > a.c && gcc -o a a.c && ./a",
    "g++": "echo 'int main(){return []{return 0;}();}' > a.cc && g++ -o a a.cc && ./a",
    "cargo": "cargo init --vcs none --name a . && cargo build --offline",
    "go": "go version",
    "java": "java -version",
    "perl": "perl -e 'print fork() // die, \"\\n\"'",
    "tar": "echo a > a && tar czf a.tgz a && tar tzf a.tgz",
}  # 16, as an agent that writes programs uses them


async def test_no_attack_gets_out_of_the_workspace() -> None:
    needs("workspace")
    level, probes = await probe_sandbox("workspace")
    assert level == "workspace" and len(probes) == 19
    assert [(probe.name, probe.detail) for probe in probes if not probe.stopped] == []


async def test_landlock_stops_all_but_what_git_would_run_later() -> None:
    """Its rules only allow, so a folder below the writable workspace cannot be taken out again."""
    needs("landlock")
    level, probes = await probe_sandbox("landlock")
    assert level == "landlock"
    assert {probe.name for probe in probes if not probe.stopped} == {"hook", "git config"}


async def test_without_a_sandbox_the_attacks_work_and_still_nothing_is_left_behind() -> None:
    """An attack that works nowhere would prove nothing."""
    level, probes = await probe_sandbox("none")
    through = {probe.name for probe in probes if not probe.stopped}
    as_root = {"passwords", "system", "memory", "mount", "namespace", "kernel"}  # may fail as a plain user
    assert level == "none"
    assert {probe.name for probe in probes} - through - as_root == {"orphan"}


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_developer_tool_works_inside(tool: str, tmp_path: Path) -> None:
    needs("workspace")
    if tool not in ("pytest", "ruff") and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed on this machine")
    async with LocalRuntime(tmp_path, level="workspace") as runtime:
        done = await runtime.execute(TOOLS[tool])
    assert done.exit_code == 0, done


async def test_a_command_sees_few_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    policy = ExecutionEnv(variables={"MODE": "test"})
    for level in ("auto", "none"):
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            seen = (await runtime.execute("env; cat /proc/1/environ /proc/self/environ; true")).stdout
        assert "MODE=test" in seen and "very-secret" not in seen


async def test_files_in_tmp_and_home_last_from_command_to_command_and_not_longer(tmp_path: Path) -> None:
    needs("workspace")
    async with LocalRuntime(tmp_path, level="workspace") as runtime:
        assert (await runtime.execute("echo a > /tmp/turnlog-a; echo b > ~/b")).exit_code == 0
        assert (await runtime.execute("cat /tmp/turnlog-a ~/b")).stdout == "a\nb\n"
        assert await runtime.read("/tmp/turnlog-a") == b"a\n", "a file action sees what a command sees"
    async with LocalRuntime(tmp_path, level="workspace") as runtime:
        assert (await runtime.execute("cat /tmp/turnlog-a ~/b")).stdout == ""
    assert not any(map(os.path.exists, OUTSIDE))


async def test_only_writable_folders_can_be_written(tmp_path: Path) -> None:
    needs("workspace")
    (tmp_path / "out").mkdir()
    other = tmp_path.parent / f"{tmp_path.name}-lib"
    other.mkdir()
    (other / "code").write_text("library")
    policy = ExecutionEnv(writable_roots=("out",), readable_roots=(str(other),))
    for level in ("workspace", "landlock"):
        needs(level)
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            assert (await runtime.execute(f"cat {other}/code > out/copy")).exit_code == 0
            assert (await runtime.execute("echo x > not-here")).exit_code != 0
            assert (await runtime.execute(f"echo x > {other}/code")).exit_code != 0
            assert await runtime.read(f"{other}/code") == b"library"
            with pytest.raises(AgentError, match="writable"):
                await runtime.write("not-here", b"x")
            await runtime.write("out/there", b"x")
    assert not (tmp_path / "not-here").exists() and (other / "code").read_text() == "library"


async def test_a_sandbox_that_the_kernel_forbids_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    refusing = programs / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    runtime = LocalRuntime(tmp_path, level="workspace")
    with pytest.raises(AgentError, match="No permissions to create new namespace") as caught:
        await runtime.connect()
    assert caught.value.code == "RuntimeUnavailable" and 'level="none"' in caught.value.message
    assert runtime.status == "failed" and runtime.sandbox is None
    await runtime.close()
    needs("landlock")
    async with LocalRuntime(tmp_path) as fallback:
        assert fallback.sandbox == "landlock", "the next level that works, and it is told"


async def test_a_level_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="level is 'strong'"):
        LocalRuntime(tmp_path, level="strong")  # pyright: ignore[reportArgumentType]
