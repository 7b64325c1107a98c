"""Skills: named in the instructions, read on demand, and never anything outside of their folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import AgentError
from turnlog.contract import SystemPromptEntry, ToolResultsEntry
from turnlog.loop import Skills, replay
from turnlog.testing import Turn


def make_skill(folder: Path, name: str = "charts", about: str = "Draw charts of numbers.") -> Path:
    place = folder / name
    (place / "refs").mkdir(parents=True)
    (place / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {about}\n---\n# How\nUse red.\n")
    (place / "refs" / "colours.md").write_text("red, blue")
    return place


async def read(skills: Any, **arguments: Any) -> tuple[Stage, str, bool]:
    """(the stage, what the tool answered, whether that is an error)."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("skill", **arguments)]), "Done."], tools=[], skills=skills)
    await agent.run("Draw.", session=SESSION)
    entries = await stage.store.load(SESSION)
    (results,) = [entry.payload for entry in entries if isinstance(entry, ToolResultsEntry)]
    found = results.message.tool_results[0].payload
    return stage, found.text, found.is_error


async def test_names_and_descriptions_are_in_the_instructions_in_a_stable_order(tmp_path: Path) -> None:
    make_skill(tmp_path, "zebra", "Stripes.")
    make_skill(tmp_path, "apple", "Fruit.")
    stage = Stage()
    agent = stage.agent(["Hi."], tools=[], instructions="Be brief.", skills=[tmp_path])
    await agent.run("Hello.", session=SESSION)
    (prompt,) = [e.payload.text for e in await stage.store.load(SESSION) if isinstance(e, SystemPromptEntry)]
    assert prompt.startswith("Be brief.\n\n# Skills\n")
    assert prompt.index("- apple: Fruit.") < prompt.index("- zebra: Stripes.")
    assert "Use red." not in prompt


async def test_a_skill_is_read_on_demand_and_is_in_the_log_when_the_folder_is_gone(tmp_path: Path) -> None:
    make_skill(tmp_path)
    stage, text, failed = await read([tmp_path], name="charts")
    assert not failed
    assert text.startswith("# How\nUse red.") and "refs/colours.md" in text and "description" not in text
    os.rename(tmp_path / "charts", tmp_path / "gone")
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference


async def test_a_file_of_a_skill_is_read(tmp_path: Path) -> None:
    make_skill(tmp_path)
    assert (await read([tmp_path / "charts"], name="charts", file="refs/colours.md"))[1] == "red, blue"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "/etc/passwd",
        "refs/../../secret.txt",
        "refs",
        "./SKILL.md",
        "link.txt",
        "out/secret.txt",
    ],
)
async def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, path: str) -> None:
    for name in ("secret.txt", "s.txt"):
        (tmp_path / name).write_text("the secret")
    skill = make_skill(tmp_path / "skills")
    skills = Skills.load(skill)
    (skill / "link.txt").symlink_to(tmp_path / "secret.txt")
    (skill / "out").symlink_to(tmp_path)
    _, text, failed = await read(skills, name="charts", file=path)
    assert failed and "the secret" not in text


def test_links_in_a_skill_are_named(tmp_path: Path) -> None:
    skill = make_skill(tmp_path)
    (skill / "link").symlink_to("/etc/passwd")
    (found,) = Skills.load(tmp_path)
    with pytest.raises(AgentError, match=r"charts/link is a link"):
        found.files()
    (tmp_path / "other").symlink_to(skill)
    with pytest.raises(AgentError, match=r"other/SKILL\.md is reached through a link"):
        Skills.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# No front matter", "does not begin with front matter"),
        ("---\nname: a\n", "front matter without an end"),
        ("---\nname: a\n---\n", "a description of 0 characters"),
        ("---\ndescription: b\n---\n", "has the name ''"),
        ("---\nname: Not A Name\ndescription: b\n---\n", "has the name 'Not A Name'"),
        ("---\nname: a\nwhat is this\n---\n", "a line 3 in its front matter that is no field"),
        ("---\n  name: a\n---\n", "an indented line 2 that belongs to nothing"),
        ("---\nname: a\ndescription: " + "x" * 2000 + "\n---\n", "a description of 2000 characters"),
        ("", "does not begin with front matter"),
    ],
)
def test_bad_front_matter_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "SKILL.md").write_text(text)
    with pytest.raises(AgentError) as error:
        Skills.load(tmp_path)
    assert error.value.code == "ConfigInvalid"
    assert why in error.value.message and "SKILL.md" in error.value.message


def test_front_matter_in_its_usual_spellings(tmp_path: Path) -> None:
    text = "---\nname: 'charts'\ndescription: >\n  Draw charts\n  of numbers.\ntools:\n  - a\n---\nBody"
    (tmp_path / "SKILL.md").write_text(text)
    (skill,) = Skills.load(tmp_path)
    assert (skill.name, skill.description) == ("charts", "Draw charts of numbers.")


def test_mistakes_are_named_where_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="there is no folder"):
        Stage().agent(["Hi."], skills=[tmp_path / "no"])
    with pytest.raises(AgentError, match="pass a list of folders"):
        Stage().agent(["Hi."], skills="skills")
