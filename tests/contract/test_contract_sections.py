"""Sections: three grains of one text."""

from __future__ import annotations

import pytest

from turnlog.contract import (
    LIVE_SCREEN,
    LevelOfDetailSections,
    decode,
    encode,
    to_plain_text,
    try_get_section,
    without_live_screen,
)

SECTIONS = LevelOfDetailSections(
    live=[("Output", "line 1\nline 2"), (LIVE_SCREEN, "notes")],
    summary=[("Output", "2 lines")],
    gist=[("", "ok")],
)


@pytest.mark.spec("C-10")
def test_grains() -> None:
    assert SECTIONS.get_sections("live") == SECTIONS.live
    assert SECTIONS.get_sections("summary") == [("Output", "2 lines")]
    assert SECTIONS.get_sections("gist") == [("", "ok")]
    uniform = LevelOfDetailSections.create_uniform([("a", "b")])
    assert uniform.live == uniform.summary == uniform.gist == [("a", "b")]
    assert uniform.live is not uniform.summary


@pytest.mark.spec("C-10")
def test_live_sections_are_set_in_place_or_added_last() -> None:
    changed = SECTIONS.with_live_section("Output", "new")
    assert changed.live == [("Output", "new"), (LIVE_SCREEN, "notes")]
    added = changed.with_live_section("More", "text")
    assert [key for key, _ in added.live] == ["Output", LIVE_SCREEN, "More"]
    assert added.summary == SECTIONS.summary
    assert SECTIONS.live[0] == ("Output", "line 1\nline 2")


@pytest.mark.spec("C-10")
def test_finding_and_leaving_out() -> None:
    assert try_get_section(SECTIONS.live, "Output") == "line 1\nline 2"
    assert try_get_section(SECTIONS.live, "output") is None
    assert try_get_section([], "x") is None
    assert without_live_screen(SECTIONS.live) == ([("Output", "line 1\nline 2")], "notes")
    assert without_live_screen(SECTIONS.gist) == ([("", "ok")], None)


@pytest.mark.spec("C-10")
def test_plain_text_has_keys_as_headings_in_order() -> None:
    assert to_plain_text(SECTIONS.live) == "# Output\n\nline 1\nline 2\n\n# [LiveScreen]\n\nnotes"
    assert to_plain_text(SECTIONS.gist) == "ok"
    assert to_plain_text([]) == ""


def test_sections_are_pairs_on_the_wire() -> None:
    assert encode(SECTIONS) == (
        b'{"live":[["Output","line 1\\nline 2"],["[LiveScreen]","notes"]],'
        b'"summary":[["Output","2 lines"]],"gist":[["","ok"]]}'
    )
    assert decode(encode(SECTIONS), LevelOfDetailSections) == SECTIONS
