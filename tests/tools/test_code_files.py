"""read, write, edit, list, glob and grep, and the undoing of what they changed."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tools.code_rig import CodeRig, call
from turnlog import AgentError
from turnlog.contract import CustomEntry, ToolResultsEntry
from turnlog.history import export_jsonl, import_jsonl, open_store
from turnlog.runtime import LocalRuntime
from turnlog.testing import FakeRuntime
from turnlog.widgets import WorkspaceWidget

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


async def test_read_shows_numbered_lines_and_how_to_read_on() -> None:
    rig = CodeRig({"a.txt": "one\ntwo\nthree\n"})
    [(_, whole), (_, page), (status, past)] = await rig.run(
        call("read", path="a.txt"),
        call("read", path="a.txt", offset=2, limit=1),
        call("read", path="a.txt", offset=9),
    )
    assert whole == "     1\tone\n     2\ttwo\n     3\tthree"
    assert page == "     2\ttwo\n[lines 2 to 2 of 3; read on with offset=3]"
    assert status == "failed" and "has 3 lines; line 9 is past its end" in past


async def test_read_shows_an_image_as_an_image() -> None:
    rig = CodeRig({"plot.png": PNG})
    await rig.run(call("read", path="plot.png"))
    [entry] = [each for each in await rig.store.load("s") if isinstance(each, ToolResultsEntry)]
    content: Any = entry.payload.message.tool_results[0].payload.content
    assert [part.kind for part in content] == ["text", "image"]
    assert content[1].payload.mime_type == "image/png"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("b.bin", "binary file of 5 bytes"),
        ("src", "is a folder"),
        ("a.tx", "there is no file a.tx; in that folder there is a.txt"),
        ("no/a.txt", "its folder no does not exist"),
        ("../etc/passwd", "outside of the workspace"),
    ],
)
async def test_what_cannot_be_read_is_told_in_words(path: str, words: str) -> None:
    rig = CodeRig({"a.txt": "x", "b.bin": b"\0\1\2\3\4", "src/c.py": ""})
    [(status, text)] = await rig.run(call("read", path=path))
    assert status == "failed" and words in text


async def test_a_line_without_end_is_cut_and_a_large_file_is_paged() -> None:
    large = "".join(f"{number:09}\n" for number in range(1_100_000))
    rig = CodeRig({"long.txt": "x" * 10_000, "large.log": large})
    [(_, cut), (_, page), (status, text)] = await rig.run(
        call("read", path="long.txt"),
        call("read", path="large.log", offset=1_000_001, limit=2),
        call("edit", path="large.log", old="000000001", new="1"),
    )
    assert cut.endswith("[… 8000 more characters]")
    assert page.startswith(
        "1000001\t001000000\n1000002\t001000001\n[lines 1000001 to 1000002 of a large file"
    )
    assert status == "failed" and "files above 10.0 MB are not changed with this tool" in text


async def test_an_edit_needs_a_file_that_was_read() -> None:
    rig = CodeRig({"a.py": "x = 1\n"})
    [(status, text), (second, _)] = await rig.run(
        call("edit", path="a.py", old="1", new="2"), call("write", path="a.py", content="gone")
    )
    assert status == second == "failed" and "was not read in this session; read it first" in text
    assert rig.files.files["a.py"] == b"x = 1\n"


async def test_an_edit_of_a_file_changed_since_is_refused_until_it_is_read_again() -> None:
    rig = CodeRig({"a.py": "x = 1\n"})
    await rig.run(call("read", path="a.py"))
    rig.files.files["a.py"] = b"x = 1  # by hand\n"
    [(status, text), _, (again, _)] = await rig.run(
        call("edit", path="a.py", old="1", new="2"),
        call("read", path="a.py"),
        call("edit", path="a.py", old="x = 1", new="x = 2"),
    )
    assert status == "failed" and "was changed since it was last read" in text
    assert again == "success" and rig.files.files["a.py"] == b"x = 2  # by hand\n"


async def test_several_replacements_are_made_or_none() -> None:
    rig = CodeRig({"a.py": "one\ntwo\nthree\n"})
    [_, (failed, why), (made, text)] = await rig.run(
        call("read", path="a.py"),
        call("edit", path="a.py", old="one", new="1", more=[{"old": "four", "new": "4"}]),
        call("edit", path="a.py", old="one", new="1", more=[{"old": "three", "new": "3"}]),
    )
    assert failed == "failed" and "replacement 2 of 2; none was made" in why
    assert made == "success" and rig.files.files["a.py"] == b"1\ntwo\n3\n"
    assert "2 lines added, 2 removed" in text and "-three" in text and "+3" in text


async def test_an_ambiguous_or_missing_text_is_told_with_where_it_could_be() -> None:
    rig = CodeRig({"a.py": "def f():\n    return 1\n\ndef g():\n    return 1\n"})
    [_, (_, twice), (_, blanks), (_, close), (every, _)] = await rig.run(
        call("read", path="a.py"),
        call("edit", path="a.py", old="return 1", new="return 2"),
        call("edit", path="a.py", old="def f():\n  return 1", new=""),
        call("edit", path="a.py", old="def h():", new="def i():"),
        call("edit", path="a.py", old="return 1", new="return 2", every=True),
    )
    assert "2 times, from lines 2, 5" in twice
    assert "From line 1 it holds the same words with other blanks" in blanks
    assert "The closest line is" in close
    assert every == "success" and rig.files.files["a.py"].count(b"return 2") == 2


async def test_line_ends_of_windows_stay() -> None:
    rig = CodeRig({"a.txt": b"one\r\ntwo\r\nthree\r\n"})
    await rig.run(call("read", path="a.txt"), call("edit", path="a.txt", old="one\ntwo", new="1\n2"))
    assert rig.files.files["a.txt"] == b"1\r\n2\r\nthree\r\n"


async def test_results_carry_a_summary_and_a_gist_by_their_author() -> None:
    rig = CodeRig({"a.py": f"x = 1  # {'a long remark ' * 9}\n"})
    edit = call("edit", path="a.py", old="1", new="2")
    await rig.run(call("read", path="a.py"), edit, call("grep", pattern="x"))
    outcomes = [
        each.payload.outcomes[0] for each in await rig.store.load("s") if isinstance(each, ToolResultsEntry)
    ]
    assert all(outcome.authored for outcome in outcomes)
    summaries = [outcome.sections.get_sections("summary") for outcome in outcomes if outcome.sections]
    assert "edited a.py: 1 line added, 1 removed" in str(summaries[1])
    assert "1 line matches 'x', in 1 file" in str(summaries[2])


async def test_list_and_glob_show_names_of_several_lines_as_one() -> None:
    rig = CodeRig({"a\nb.py": "", "src/c.py": "", "src/deep/d.py": "", ".git/e.py": "", "f.txt": "12"})
    [(_, listed), (_, every), (_, below), (_, none)] = await rig.run(
        call("list"),
        call("glob", pattern="*.py"),
        call("glob", pattern="src/**/*.py"),
        call("glob", pattern="*.rs"),
    )
    assert listed.split("\n") == [".git/", '"a\\nb.py"  (0 bytes)', "f.txt  (2 bytes)", "src/"]
    assert every.split("\n") == ['"a\\nb.py"', "src/c.py", "src/deep/d.py"]
    assert below.split("\n") == ["src/c.py", "src/deep/d.py"]
    assert none == "[no file matches '*.rs']"


async def test_grep_finds_lines_with_what_is_around_them() -> None:
    rig = CodeRig(
        {
            "a.py": "one\ndef f(x):\nthree\n",
            "b.txt": "def f\n",
            "c.bin": b"def f\0",
            "node_modules/d.py": "def f",
        }
    )
    [(_, all_of_them), (_, around), (_, names), (status, refused)] = await rig.run(
        call("grep", pattern=r"\bdef\s+\w+"),
        call("grep", pattern="DEF F.x", ignore_case=True, context=1),
        call("grep", pattern="def", glob="*.txt"),
        call("grep", pattern="(?=def)"),
    )
    assert all_of_them == "a.py:2:def f(x):\nb.txt:1:def f"
    assert around == "a.py-1-one\na.py:2:def f(x):\na.py-3-three"
    assert names == "b.txt:1:def f"
    assert status == "failed" and "not supported (looking ahead, behind or back)" in refused


async def test_a_change_is_announced_in_the_log_before_it_happens() -> None:
    class Watched(FakeRuntime):
        announced = 0

        async def write(self, path: str, data: bytes) -> None:
            entries = await rig.store.load("s")
            self.announced = sum(isinstance(each, CustomEntry) for each in entries)
            await super().write(path, data)

    runtime = Watched({"a.py": "x = 1\n"})
    rig = CodeRig(runtime=runtime)
    await rig.run(call("read", path="a.py"), call("edit", path="a.py", old="1", new="2"))
    assert runtime.announced == 1
    [entry] = [each for each in await rig.store.load("s") if isinstance(each, CustomEntry)]
    kept = entry.payload.data["kept"].removeprefix("blob:")
    assert await rig.store.get_blob(kept) == b"x = 1\n"
    report = await rig.agent().session("s").replay()
    assert report.identical, report


class Cut(FakeRuntime):
    """The process ends in the middle of a write: before it, or after it."""

    def __init__(self, when: str) -> None:
        super().__init__({"a.py": "x = 1\n"})
        self.when = when
        self.writes = 0
        self.hangs = asyncio.Event()

    async def write(self, path: str, data: bytes) -> None:
        self.writes += 1
        if self.when in ("after", "never"):
            await super().write(path, data)
        if self.when != "never":
            self.hangs.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize(("when", "writes"), [("before", 2), ("after", 1)])
async def test_an_edit_that_a_crash_cut_is_made_once(when: str, writes: int) -> None:
    runtime = Cut(when)
    rig = CodeRig(runtime=runtime)
    turns = [call("read", path="a.py"), call("edit", path="a.py", old="x = 1", new="x = 1 + 1"), "Done."]
    await _leave(rig, turns, runtime)
    runtime.when = "never"
    result = await rig.agent("Done.").session("s").resume()
    assert result is not None and result.status == "completed"
    assert runtime.files["a.py"] == b"x = 1 + 1\n" and runtime.writes == writes
    assert (await rig.results())[-1][0] == "success"


async def _leave(rig: CodeRig, turns: list[Any], runtime: Cut) -> None:
    """Run until the write hangs; what the log holds then is copied, as a killed process leaves it."""
    running = asyncio.create_task(rig.agent(*turns).run("Work.", session="s"))
    await runtime.hangs.wait()
    left = await export_jsonl(rig.store, "s")
    running.cancel()
    await asyncio.wait({running})
    rig.store = open_store("memory:")
    await import_jsonl(rig.store, left, trust=True)


async def test_undo_restores_the_files_of_a_turn_and_says_which() -> None:
    rig = CodeRig({"a.py": "x = 1\n"})
    await rig.run(call("read", path="a.py"), call("edit", path="a.py", old="1", new="2"))
    await rig.run(
        call("edit", path="a.py", old="2", new="3"),
        call("edit", path="a.py", old="3", new="4"),
        call("write", path="new.py", content="y\n"),
    )
    session = rig.agent(widgets=[WorkspaceWidget()]).session("s")
    undone = await session.undo()
    assert undone is not None and (undone.restored, undone.removed) == (("a.py",), ("new.py",))
    assert rig.files.files == {"a.py": b"x = 2\n"}
    undone = await session.undo()
    assert undone is not None and undone.restored == ("a.py",) and rig.files.files == {"a.py": b"x = 1\n"}
    assert await session.undo() is None
    report = await session.replay()
    assert report.identical, report


async def test_undo_refuses_all_when_one_file_was_changed_since() -> None:
    rig = CodeRig({"a.py": "x = 1\n"})
    await rig.run(
        call("read", path="a.py"),
        call("edit", path="a.py", old="1", new="2"),
        call("write", path="b", content=""),
    )
    rig.files.files["a.py"] = b"by hand"
    with pytest.raises(AgentError, match=r"nothing was undone: 'a\.py' was changed since by something else"):
        await rig.agent().session("s").undo()
    assert rig.files.files == {"a.py": b"by hand", "b": b""}


async def test_the_model_must_read_again_what_a_user_restored() -> None:
    rig = CodeRig({"a.py": "x = 1\n"})
    await rig.run(call("read", path="a.py"), call("edit", path="a.py", old="1", new="2"))
    await rig.agent().session("s").undo()
    [(status, _)] = await rig.run(call("edit", path="a.py", old="2", new="3"))
    assert status == "failed" and rig.files.files["a.py"] == b"x = 1\n"


async def test_hard_files_of_a_real_folder_have_clear_outcomes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (work / "large.bin").open("wb") as file:
        file.truncate(1_000_000_000)  # sparse: it takes no room
    (work / "a\nb.txt").write_text("hello\n")
    (work / "a\nb.txt").chmod(0o640)
    (work / "in").symlink_to("a\nb.txt")
    (work / "out").symlink_to("/etc/passwd")
    (work / "up").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")
    rig = CodeRig(runtime=LocalRuntime(work, level="none"))
    results = await rig.run(
        call("read", path="large.bin"),
        call("read", path="pipe"),
        call("read", path="out"),
        call("write", path="up/evil", content="x"),
        call("write", path="out", content="x"),
        call("read", path="a\nb.txt"),
        call("edit", path="in", old="hello", new="bye"),
        call("edit", path="a\nb.txt", old="hello", new="bye"),
        call("grep", pattern="b.e"),
    )
    words = (
        "binary file of 1.0 GB",
        "is a device, socket or pipe",
        "leads out of the folders allowed, through a link",
        "leads out of the folders allowed, through a link",
        "is a link; change the file that it leads to",
        "     1\thello",
        "is a link; change the file that it leads to",
        'edited "a\\nb.txt"',
        '"a\\nb.txt":1:bye\n[not looked at: large.bin: 1.0 GB, too large]',
    )
    for (_, text), expected in zip(results, words, strict=True):
        assert expected in text
    assert [status for status, _ in results].count("success") == 3
    assert (work / "a\nb.txt").stat().st_mode & 0o777 == 0o640, "the mode of a file stays"
    assert not (tmp_path / "evil").exists() and sorted(os.listdir(work)) == [
        "a\nb.txt", "in", "large.bin", "out", "pipe", "up"
    ]  # fmt: skip
    shutil.rmtree(work)
    [(status, text)] = await rig.run(call("read", path="a\nb.txt"))
    assert status == "failed" and "is no longer there" in text
    await rig.runtime.close()
