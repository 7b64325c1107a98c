"""What was redacted is never shown again, and a log that was redacted keeps its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from context.context_log import CLAUDE, Log, call
from turnlog.context import ContextOptions, Projection, ProjectionContext, plan_fold
from turnlog.contract import (
    HINTS,
    LIVE_SCREEN,
    CompactionSummary,
    Fold,
    FoldItem,
    LevelOfDetailSections,
    encode,
    try_get_section,
    user_message,
)
from turnlog.loop import replay_entries
from turnlog.testing import read_trace

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(120))
EARLIER = Path(__file__).parent.parent / "golden" / "earlier"


def shown(*sections: tuple[str, str]) -> LevelOfDetailSections:
    return LevelOfDetailSections(live=list(sections), summary=[], gist=[])


def fold_now(log: Log) -> None:
    projection = Projection.of(log.visible(), ContextOptions(fold_at=4_000))
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=2)
    assert fold is not None
    log.add(fold)


def wire(log: Log) -> str:
    return encode(list(Projection.of(log.visible()).emit(CLAUDE).messages)).decode()


def talk(log: Log, first: int, count: int) -> None:
    for n in range(first, first + count):
        log.user(f"step {n}")
        log.output(f"looking {n}", call(f"c{n}"))
        log.results(**{f"c{n}": LONG})


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("folded_before", [False, True])
def test_hints_of_a_redacted_entry_are_not_shown_again_by_a_fold(folded_before: bool) -> None:
    log = Log()
    said = log.user("go", shown((HINTS, '{"token":"hunter2"}')))
    talk(log, 0, 6)
    if folded_before:
        fold_now(log)
        assert "hunter2" in wire(log)
    log.redact(said)
    talk(log, 6, 3)
    fold_now(log)
    assert "hunter2" not in wire(log)
    manager = ProjectionContext()
    manager.refold(log.visible())
    news = manager.input_sections(user_message("and now?"), hints={"token": "hunter3"})
    assert try_get_section(news.live, HINTS) == '{"token":"hunter3"}'


@pytest.mark.spec("H-9")
def test_a_recap_that_saw_a_redacted_entry_is_not_used_by_a_fold() -> None:
    log = Log()
    said = log.user("the password is hunter2")
    talk(log, 0, 6)
    log.add(CompactionSummary(first_kept_entry_id=log.entries[-1].id, summary="They told me hunter2."))
    log.redact(said)
    talk(log, 6, 3)
    fold_now(log)
    assert "hunter2" not in wire(log)
    assert " recap: " not in wire(log), "a recap without its words stands for nothing"


@pytest.mark.spec("H-9")
def test_screens_from_before_a_redaction_are_not_shown_and_the_fold_keeps_what_it_says_of_others() -> None:
    log = Log()
    said = log.user("note this", shown((LIVE_SCREEN, "## Notebook\n\nhunter2")))
    kept = log.user("a long question")
    items = [
        FoldItem(entry_id=said.id, grain="gist", text="hunter2 in short"),
        FoldItem(entry_id=kept.id, grain="gist", text="the question in short"),
    ]
    log.add(Fold(reason="manual", tokens_before=2, tokens_after=1, items=items, screen="hunter2 again"))
    assert "hunter2 again" in wire(log)
    log.redact(said)
    assert "hunter2" not in wire(log)
    log.user("a question", shown((LIVE_SCREEN, "## Notebook")))
    assert wire(log).count(LIVE_SCREEN) == 1
    log.redact(said)
    assert LIVE_SCREEN not in wire(log)
    assert "the question in short" in wire(log)


@pytest.mark.spec("H-9")
def test_a_fold_made_after_a_redaction_says_as_much_when_the_session_is_opened_again() -> None:
    log = Log()
    said = log.user("the password is hunter2")
    talk(log, 0, 6)
    log.redact(said)
    manager = ProjectionContext(ContextOptions(fold_at=4_000))
    manager.refold(log.visible())
    fold = plan_fold(manager.projection, target=CLAUDE, reason="overflow", overflow_step=2)
    assert fold is not None
    manager.step(log.add(fold))
    log.redact(log.user("a second secret"))
    reopened = Projection.of(log.visible())
    live = [unit.text for unit in manager.projection.segments]
    assert live and [unit.text for unit in reopened.segments] == live


@pytest.mark.spec("H-11")
@pytest.mark.parametrize("path", sorted(EARLIER.iterdir()), ids=lambda path: path.stem)
async def test_a_log_with_folds_and_redactions_written_earlier_replays_to_the_byte(path: Path) -> None:
    """Plans may become better; what was planned before is read from the log."""
    entries = read_trace(path)
    options = ContextOptions(preview_at=100_000, fold_at=700, min_freed_tokens=30)
    report = await replay_entries(entries, entries[0].session_id, options=options)
    assert report.identical, report.difference
    assert (report.entries, report.unproven) == (len(entries), 0)
