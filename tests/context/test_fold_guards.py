"""A fold entry is taken as it is, but never so that it parts a call from its result or lifts a level."""

from __future__ import annotations

import pytest

from context.context_log import CLAUDE, Log, call
from turnlog.context import Projection
from turnlog.contract import (
    Entry,
    Fold,
    FoldItem,
    FoldSegment,
    Grain,
    LevelOfDetailSections,
    Message,
    ModelOutputEntry,
    ToolResultsEntry,
)

GRAINS: list[Grain] = ["live", "summary", "gist"]


def calls_log(*, answered: bool) -> Log:
    """Nine entries: parallel calls whose results come apart, and a last call with or without its result."""
    log = Log()
    log.user("one")
    log.output("two", call("a"), call("b"))
    log.results(b="result b")
    log.user("four")
    log.results(a="result a")
    log.output("six")
    log.user("seven")
    log.output("eight", call("c"))
    if answered:
        log.results(c="result c")
    else:
        log.user("nine")
    return log


def pairs_are_whole(messages: list[Message]) -> bool:
    owed: list[str] = []
    for message in messages:
        if [part.payload.tool_call_id for part in message.tool_results] != owed:
            return False
        owed = [part.payload.tool_call_id for part in message.tool_calls]
    return True


def owed(entries: list[Entry]) -> set[str]:
    """Calls that have no result yet."""
    calls: set[str] = set()
    for entry in entries:
        if isinstance(entry, ModelOutputEntry):
            calls |= {part.payload.tool_call_id for part in entry.payload.message.tool_calls}
        elif isinstance(entry, ToolResultsEntry):
            calls -= {part.payload.tool_call_id for part in entry.payload.message.tool_results}
    return calls


@pytest.mark.spec("C-5")
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("before", range(2, 10))
def test_no_stretch_parts_a_call_from_its_result(answered: bool, before: int) -> None:
    """Every (first, last) pair, folded at the end and while results are still owed."""
    whole = calls_log(answered=answered)
    for first in range(before):
        for last in range(first, before):
            log = Log()
            segment = FoldSegment(
                first_entry_id=whole.entries[first].id,
                last_entry_id=whole.entries[last].id,
                text="[a stretch]",
            )
            for entry in whole.entries[:before]:
                log.add(entry.payload)
            log.add(Fold(reason="manual", tokens_before=2, tokens_after=1, items=[], segments=[segment]))
            for entry in whole.entries[before:]:
                log.add(entry.payload)
            if not answered:
                log.results(c="result c")
            messages = list(Projection.of(log.entries).emit(CLAUDE).messages)
            where = f"fold of {first + 1} to {last + 1} of {before}"
            assert pairs_are_whole(messages), where
            visible = {part.payload.tool_call_id for message in messages for part in message.tool_calls}
            assert owed(whole.entries[:before]) <= visible, f"{where}: an open call is folded away"


def leveled(first: FoldItem, second: FoldItem) -> str:
    log = Log()
    sections = LevelOfDetailSections(live=[], summary=[("", "in summary")], gist=[("", "in gist")])
    log.user("in full, in all its length", sections)
    log.output("on it", call("a"))
    log.results(a=("in full, in all its length", sections))
    for item in (first, second):
        log.add(Fold(reason="manual", tokens_before=2, tokens_after=1, items=[item]))
    messages = Projection.of(log.entries).emit(CLAUDE).messages
    if first.tool_call_id is None:
        return messages[0].text
    content = messages[2].tool_results[0].payload.content
    assert isinstance(content, str)
    return content


@pytest.mark.spec("C-4")
@pytest.mark.parametrize("call_id", [None, "a"])
@pytest.mark.parametrize("first", GRAINS)
@pytest.mark.parametrize("second", GRAINS)
def test_a_level_only_goes_down(call_id: str | None, first: Grain, second: Grain) -> None:
    entry_id = f"{1 if call_id is None else 3:032x}"
    items = [FoldItem(entry_id=entry_id, tool_call_id=call_id, grain=grain) for grain in (first, second)]
    lowest = GRAINS[max(GRAINS.index(first), GRAINS.index(second))]
    expected = "in full" if lowest == "live" else f"in {lowest}"
    assert expected in leveled(items[0], items[1])


@pytest.mark.spec("C-4")
@pytest.mark.parametrize("call_id", [None, "a"])
def test_within_a_level_a_text_only_becomes_shorter(call_id: str | None) -> None:
    entry_id = f"{1 if call_id is None else 3:032x}"
    short, long = (
        FoldItem(entry_id=entry_id, tool_call_id=call_id, grain="gist", text=text)
        for text in ("brief", "a longer text")
    )
    assert leveled(short, long).endswith("brief")
    assert leveled(long, short).endswith("brief")


@pytest.mark.spec("C-5")
def test_a_call_that_a_log_left_without_a_result_is_answered_with_a_note() -> None:
    log = Log()
    log.user("one")
    log.output("two", call("a"), call("b"))
    log.results(b="result b")
    log.output("the log went on")
    messages = list(Projection.of(log.entries).emit(CLAUDE).messages)
    assert pairs_are_whole(messages)
    [lost, found] = messages[2].tool_results
    assert lost.payload.is_error and found.payload.content == "result b"
