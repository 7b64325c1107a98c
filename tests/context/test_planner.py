"""When a fold is made, what it does, and what it refuses."""

from __future__ import annotations

import re

import pytest

from context.context_log import CLAUDE, GPT, Log, call
from turnlog.context import (
    ContextOptions,
    FoldPlanner,
    ModelLimits,
    Projection,
    fold_threshold,
    lookup_limits,
    plan_fold,
    recall_text,
    result_sections,
    smallest_limits,
)
from turnlog.contract import AgentError, CompactionSummary, Fold, LevelOfDetailSections, encode

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(120))
SMALL = ContextOptions(fold_at=6_000, min_freed_tokens=100, user_cap=300)


def grow(log: Log, rounds: int, *, text: str = LONG, options: ContextOptions = SMALL) -> Projection:
    """A session of tool rounds, with the grains a hall would store."""
    projection = Projection.of(log.entries, options)
    for _ in range(rounds):
        name = f"c{len(log.entries)}"
        projection.step(log.user(f"please do step {len(log.entries)}"))
        projection.step(log.output("I will look", call(name, path=f"src/file_{name}.py")))
        projection.step(log.results(**{name: (text, result_sections(projection, text))}))
    return projection


def apply(log: Log, projection: Projection, fold: Fold | None) -> None:
    assert fold is not None
    projection.step(log.add(fold))


def wire(projection: Projection) -> str:
    return "\n".join(encode(message.parts).decode() for message in projection.emit(CLAUDE).messages)


def test_the_threshold_is_the_smallest_of_three() -> None:
    options = ContextOptions()
    assert fold_threshold(options, ModelLimits()) == 120_000
    assert fold_threshold(options, ModelLimits(100_000)) == 75_000
    assert fold_threshold(options, ModelLimits(1_000_000, 100_000)) == 95_000
    assert lookup_limits("us.anthropic.claude-haiku-5-5-v1:0") == ModelLimits(1_000_000, 100_000)
    assert lookup_limits("openai/gpt-4o-mini").window == 128_000
    assert lookup_limits("something-new") == ModelLimits()


@pytest.mark.spec("C-10")
def test_the_budget_follows_the_smallest_window_in_use() -> None:
    log = Log()
    log.started("x", GPT)
    log.started("x", CLAUDE)
    projection = Projection.of(log.entries)
    assert smallest_limits(projection.options, projection.targets) == ModelLimits(200_000)
    overridden = ContextOptions(window=8_000)
    assert smallest_limits(overridden, projection.targets).window == 8_000


def test_below_the_threshold_nothing_is_folded() -> None:
    projection = grow(Log(), 1)
    assert plan_fold(projection, target=CLAUDE) is None


def test_old_results_go_to_their_stored_summary_first_and_then_to_their_gist() -> None:
    log = Log()
    projection = grow(log, 4)
    fold = plan_fold(projection, target=CLAUDE)
    assert fold is not None
    assert not fold.segments
    assert [(item.grain, item.text) for item in fold.items] == [("summary", None)] * len(fold.items)
    assert fold.tokens_after <= 0.5 * 6_000
    apply(log, projection, fold)
    first = projection.emit(CLAUDE).messages[2].tool_results[0].payload.content
    assert isinstance(first, str)
    assert first.startswith("[#3 summary; recall #3 brings the whole text]\nline 0")
    assert projection.emit(CLAUDE).messages[-1].tool_results[0].payload.content == LONG
    assert projection.tokens(CLAUDE) == fold.tokens_after
    projection = grow(log, 3)
    lower = plan_fold(projection, target=CLAUDE)
    assert lower is not None
    grains = [item.grain for item in sorted(lower.items, key=lambda item: projection.numbers[item.entry_id])]
    assert grains and set(grains) <= {"summary", "gist"} and "gist" in grains
    assert sorted(grains) == grains, "the oldest are the shortest"


@pytest.mark.spec("C-4", "C-5")
def test_a_digest_tells_the_summary_of_a_result_and_never_more_than_was_left_of_it() -> None:
    log = Log()
    projection = grow(log, 9)
    fold = plan_fold(projection, target=CLAUDE)
    assert fold is not None and fold.segments and not fold.items, "gists alone would not have been enough"
    first = log.entries[2]
    stored = result_sections(Projection.of(log.entries[:2], SMALL), LONG)
    assert f"#{first.seq} tool read: {stored.summary[0][1]}" in fold.segments[0].text
    log = Log()
    projection = grow(log, 7)
    apply(log, projection, plan_fold(projection, target=CLAUDE))
    assert "[#3 gist;" in wire(projection)
    later = plan_fold(grow(log, 9), target=CLAUDE)
    assert later is not None
    assert stored.gist[0][1] in later.segments[0].text
    assert stored.summary[0][1] not in later.segments[0].text


@pytest.mark.spec("C-4", "C-5")
def test_a_long_input_is_shown_up_to_the_cap_before_it_becomes_a_line() -> None:
    log = Log()
    log.user("the first word\n" + LONG * 8 + "\nthe last word")
    projection = grow(log, 2, options=ContextOptions(fold_at=10_000, user_cap=500, min_freed_tokens=10))
    fold = plan_fold(projection, target=CLAUDE)
    assert fold is not None
    assert not fold.segments
    assert fold.items[0].entry_id == log.entries[0].id and fold.items[0].grain == "summary"
    apply(log, projection, fold)
    shown = projection.emit(CLAUDE).messages[0].text
    assert "the first word" in shown and "the last word" in shown
    assert len(shown) < 500 * 3.45 + 200


def test_then_the_oldest_stretch_becomes_text_and_the_next_leaves_it_alone() -> None:
    log = Log()
    projection = grow(log, 4)
    apply(log, projection, plan_fold(projection, target=CLAUDE))
    seen: list[str] = []
    for _ in range(6):
        projection = grow(log, 3)
        fold = plan_fold(projection, target=CLAUDE)
        if fold is None:
            continue
        apply(log, projection, fold)
        if not fold.replaced_segments:
            assert wire(projection).startswith("\n".join(seen))
        seen = [encode(segment.render().parts).decode() for segment in projection.segments]
    assert seen
    assert "#1 user: please do step 0" in seen[0]
    assert len(projection.segments) <= 3


def test_a_fold_that_frees_too_little_is_refused() -> None:
    options = ContextOptions(fold_at=4_000, min_freed_share=0.9)
    projection = grow(Log(), 4, options=options)
    assert plan_fold(projection, target=CLAUDE) is None
    assert plan_fold(projection, target=CLAUDE, reason="manual") is not None


@pytest.mark.spec("C-4")
def test_a_small_window_folds_though_it_can_never_free_what_a_large_one_must() -> None:
    options = ContextOptions(fold_at=4_000)
    fold = plan_fold(grow(Log(), 4, options=options), target=CLAUDE)
    assert fold is not None
    assert 600 <= fold.tokens_before - fold.tokens_after < options.min_freed_tokens


@pytest.mark.spec("C-4", "C-5", "C-6")
def test_a_session_of_nothing_but_short_words_never_outgrows_its_window() -> None:
    """What the user said is verbatim up to a cap, of each message and of all of them."""
    log = Log()
    projection = Projection(ContextOptions(fold_at=2_000))
    for number in range(600):
        projection.step(log.user(f"remark {number}: the tide comes in at {number % 24} o'clock"))
        projection.step(log.output(f"noted {number}"))
        fold = plan_fold(projection, target=CLAUDE)
        if fold is not None:
            projection.step(log.add(fold))
        assert projection.tokens(CLAUDE) <= 2_000
    shown = wire(projection)
    assert "#1 user: remark 0: " in shown, "what the work began with"
    assert "remark 599: " in shown and "remark 590: " in shown
    assert "remark 250: " not in shown and "omitted" in shown
    stretches = re.findall(r"#(\d+)-(\d+) omitted: ([^\\]*)", shown)
    assert sum(int(last) - int(first) for first, last, _ in stretches) > 800
    for _, _, words in stretches:
        assert len(words.split()) >= 5, "a line that stands for entries has words of theirs"
    recalled = "".join(recall_text(log.entries, f"#{first}-{last}") for first, last, _ in stretches)
    assert "remark 250: " in recalled


@pytest.mark.spec("C-4", "C-5")
def test_what_the_user_said_long_ago_leaves_its_rarest_words() -> None:
    log = Log()
    projection = Projection(ContextOptions(fold_at=3_000))
    small_talk = "and that is about all there is to say of it, as far as anybody can tell from here. " * 4
    for number in range(60):
        told = "The licence plate is QX-4471." if number == 5 else "Nothing new."
        projection.step(log.user(f"{told} {small_talk}"))
        fold = plan_fold(projection, target=CLAUDE)
        if fold is not None:
            projection.step(log.add(fold))
    assert projection.tokens(CLAUDE) <= 3_000
    shown = wire(projection)
    assert f"Nothing new. {small_talk}" in shown, "the newest are verbatim"
    (line,) = [line for line in shown.split("\\n") if "QX-4471" in line]
    assert re.match(r"#(6 user \(words\)|\d+-\d+ omitted): ", line)
    assert small_talk not in line


@pytest.mark.spec("W-2")
def test_a_fold_leaves_room_for_the_screen_it_shows() -> None:
    options = ContextOptions(fold_at=6_000)
    bare = FoldPlanner(grow(Log(), 15, options=options), target=CLAUDE).plan()
    full = FoldPlanner(grow(Log(), 15, options=options), target=CLAUDE, screen=lambda: "note " * 800).plan()
    assert bare is not None and full is not None
    assert full.tokens_after < bare.tokens_after


@pytest.mark.spec("C-10", "C-9")
def test_a_models_own_word_on_its_window_comes_before_the_table() -> None:
    known = {CLAUDE: 32_000}
    options = ContextOptions()
    assert smallest_limits(options, [CLAUDE, GPT], known.get) == ModelLimits(32_000)
    assert smallest_limits(options, [GPT], known.get).window == smallest_limits(options, [GPT]).window
    assert smallest_limits(ContextOptions(window=9_000), [CLAUDE], known.get).window == 9_000


def test_a_cold_cache_and_the_end_of_a_turn_fold_earlier() -> None:
    projection = grow(Log(), 3)
    assert 0.6 * 6_000 < projection.tokens(CLAUDE) < 0.9 * 6_000
    assert plan_fold(projection, target=CLAUDE, turn_end=True) is None
    cold = plan_fold(projection, target=CLAUDE, cold=True)
    assert cold is not None
    assert cold.reason == "cold"


@pytest.mark.spec("C-5")
def test_what_is_owed_is_never_folded() -> None:
    log = Log()
    projection = grow(log, 3)
    projection.step(log.output("asking", call("open_a", path=LONG), call("open_b")))
    projection.step(log.results(open_a=LONG))
    for step in (1, 2, 3):
        fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=step)
        assert fold is not None
        assert all(item.tool_call_id != "open_a" for item in fold.items)
        apply(log, projection, fold)
        break
    last = projection.emit(CLAUDE, force=True).messages
    assert [part.payload.tool_call_id for part in last[-2].tool_calls] == ["open_a", "open_b"]
    assert last[-1].tool_results[0].payload.content == LONG


def test_a_head_that_leaves_no_room_is_a_configuration_error() -> None:
    log = Log()
    log.prompt("be careful. " * 2_000)
    log.user("hi")
    with pytest.raises(AgentError, match="system prompt and tools take about") as caught:
        plan_fold(Projection.of(log.entries, SMALL), target=CLAUDE)
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.spec("C-6")
def test_overflow_shrinks_three_times_and_then_says_so() -> None:
    log = Log()
    projection = grow(log, 6)
    sizes = [projection.tokens(CLAUDE)]
    for step in (1, 2, 3):
        fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=step)
        assert fold is not None
        assert fold.step == step
        apply(log, projection, fold)
        sizes.append(projection.tokens(CLAUDE))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < 0.6 * sizes[0]
    with pytest.raises(AgentError, match="after 3 folds") as caught:
        plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=4)
    assert caught.value.code == "ContextOverflow"


@pytest.mark.spec("C-6")
@pytest.mark.parametrize("who", ["user", "tool"])
def test_one_message_that_is_too_large_by_itself(who: str) -> None:
    log = Log()
    huge = "\n".join(f"row {n} of the_export_{n}" for n in range(20_000))
    projection = Projection(SMALL)
    if who == "user":
        projection.step(log.user(huge))
    else:
        projection.step(log.user("export it"))
        projection.step(log.output(call("a")))
        projection.step(log.results(a=huge))
    before = projection.tokens(CLAUDE)
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=1)
    assert fold is not None
    apply(log, projection, fold)
    assert projection.tokens(CLAUDE) < 0.1 * before
    number = 1 if who == "user" else 3
    text = wire(projection)
    assert f"recall #{number}" in text
    assert "row 0 of" in text
    assert "row 19999 of" in text


def test_nothing_left_to_shrink_is_an_overflow_error() -> None:
    log = Log()
    log.user("hi")
    with pytest.raises(AgentError, match="nothing is left to shrink") as caught:
        plan_fold(Projection.of(log.entries), target=CLAUDE, reason="overflow", overflow_step=1)
    assert caught.value.code == "ContextOverflow"


def test_entries_without_grains_get_their_text_from_the_fold() -> None:
    log = Log()
    for n in range(6):
        log.user(f"step {n}")
        log.output(call(f"c{n}"))
        log.results(**{f"c{n}": LONG})
    projection = Projection.of(log.entries, SMALL)
    fold = plan_fold(projection, target=CLAUDE)
    assert fold is not None
    assert fold.items
    assert all(item.text for item in fold.items)


def test_a_gist_longer_than_its_text_falls_back() -> None:
    projection = Projection()
    given = result_sections(projection, "short", summary="a much longer summary", gist="and a longer gist")
    assert (given.summary, given.gist) == ([("", "short")], [("", "short")])
    kept = result_sections(projection, LONG, summary="two values", gist="values")
    assert (kept.summary, kept.gist) == ([("", "two values")], [("", "values")])
    log = Log()
    bad = LevelOfDetailSections(live=[], summary=[("", LONG * 2)], gist=[("", LONG * 2)])
    for n in range(6):
        log.user(f"step {n}")
        log.output(call(f"c{n}"))
        log.results(**{f"c{n}": (LONG, bad)})
    projection = Projection.of(log.entries, SMALL)
    before = projection.tokens(CLAUDE)
    apply(log, projection, plan_fold(projection, target=CLAUDE))
    assert projection.tokens(CLAUDE) < before


@pytest.mark.spec("H-9")
def test_redaction_reaches_into_a_digest_and_stays_through_a_merge() -> None:
    log = Log()
    projection = Projection(SMALL)
    secret = log.user("the password is hunter2\nand the second line is hunter3")
    projection.step(secret)
    projection = grow(log, 40, text="done")
    apply(log, projection, plan_fold(projection, target=CLAUDE, reason="manual"))
    assert "hunter3" in wire(projection)
    log.redact(secret)
    assert "hunter" not in wire(Projection.of(log.visible(), SMALL))
    for _ in range(4):
        grow(log, 4)
        projection = Projection.of(log.visible(), SMALL)
        apply(log, projection, plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=2))
        assert "hunter" not in wire(projection)


def test_redacting_an_entry_before_its_fold_keeps_it_out_of_the_fold() -> None:
    log = Log()
    said = log.user("the password is hunter2")
    grow(log, 6)
    log.redact(said)
    projection = Projection.of(log.visible(), SMALL)
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=3)
    assert "hunter" not in encode(fold).decode()


def test_a_fork_inside_a_folded_region_sees_it_unfolded() -> None:
    log = Log()
    projection = grow(log, 40, text="done")
    apply(log, projection, plan_fold(projection, target=CLAUDE, reason="manual"))
    assert projection.segments
    fork = Projection.of(log.entries[:9], SMALL)
    assert not fork.segments
    assert len(fork.emit(CLAUDE).messages) == 9
    whole = Projection.of(log.entries, SMALL)
    assert whole.emit(CLAUDE).context_hash == projection.emit(CLAUDE).context_hash


@pytest.mark.spec("C-6")
def test_a_recap_waits_for_the_next_fold_and_then_stands_for_what_it_covers() -> None:
    log = Log()
    projection = grow(log, 6)
    before = projection.emit(CLAUDE)
    recap = CompactionSummary(first_kept_entry_id=log.entries[9].id, summary="We edited three files.")
    projection.step(log.add(recap))
    assert projection.emit(CLAUDE).context_hash == before.context_hash
    fold = plan_fold(projection, target=CLAUDE)
    assert fold is not None
    assert "#1-9 recap: We edited three files." in fold.segments[0].text
    apply(log, projection, fold)
    assert projection.recap is None
    log.redact(log.entries[3])
    assert "three files" not in wire(Projection.of(log.visible(), SMALL))


def test_folding_can_be_switched_off_but_overflow_still_shrinks() -> None:
    options = ContextOptions(fold_at=4_000, fold=False)
    projection = grow(Log(), 6, options=options)
    assert plan_fold(projection, target=CLAUDE) is None
    assert plan_fold(projection, target=CLAUDE, reason="overflow") is not None


def test_options_that_cannot_work_are_refused() -> None:
    for wrong in ({"tail_share": 0.6}, {"fold_at": 0}, {"window_share": 2.0}, {"bytes_per_token": 0}):
        with pytest.raises(AgentError, match="context\\.") as caught:
            ContextOptions(**wrong)
        assert caught.value.code == "ConfigInvalid"


def test_the_planner_is_a_class_others_can_change() -> None:
    class Patient(FoldPlanner):
        def _due(self, *args: object, **kwargs: object) -> None:
            return None

    assert Patient(grow(Log(), 6), target=CLAUDE).plan() is None
