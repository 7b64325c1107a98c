"""What `docs/testing.md` shows works as it stands."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import turnlog.testing
from turnlog import load_model
from turnlog.testing import ScriptedModel, Turn

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_the_code_runs(
    code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    room: dict[str, Any] = {}
    exec(compile(code, "docs/testing.md", "exec"), room)
    if "test_books_the_ritz" in room:
        room["test_books_the_ritz"](lambda path, model: ScriptedModel(["The Ritz is booked."]))
        return
    asyncio.run(room["main"]())
    assert re.search(r"tool_call_end|checks passed|Booked.\nReplayMismatch", capsys.readouterr().out)


@pytest.mark.parametrize("language", ["json", "toml"])
def test_the_scripts_load(language: str, tmp_path: Path) -> None:
    (script,) = blocks(language)
    path = tmp_path / f"answers.{language}"
    path.write_text(script)
    assert load_model(f"scripted:{path}").supports("tools")


def test_every_field_of_a_turn_is_listed() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.partition("field of `Turn`")[2], flags=re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert listed == set(Turn.__struct_fields__) - {"chunk_size"}


def test_the_names_exist() -> None:
    table = PAGE.partition("## A scripted model")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE))))
    assert named <= set(dir(turnlog.testing))
