"""One-call building, looking back at a call, recall, and token counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from context.context_log import CLAUDE, GPT, Log, call, spec
from turnlog.context import (
    ContextInput,
    ContextOptions,
    ContextUpdateInput,
    Projection,
    ProjectionContext,
    diff_contexts,
    explain,
    explain_all,
    plan_fold,
    preview_result,
    recall_text,
)
from turnlog.contract import (
    HINTS,
    AgentError,
    BranchSummary,
    CompactionSummary,
    Entry,
    Fold,
    JsonObject,
    Message,
    encode,
    try_get_section,
    user_message,
)
from turnlog.history import MemoryStore, import_jsonl, visible_entries

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(120))


def recorded() -> Log:
    """A log whose calls carry the hashes of what was sent."""
    log = Log()
    projection = Projection()

    def step(count: int) -> None:
        for entry in log.entries[-count:]:
            projection.step(entry)

    log.prompt("be brief")
    log.tools("read")
    log.user("look at a.py")
    step(3)
    for n in range(3):
        context = projection.emit(CLAUDE)
        log.started(context.context_hash, estimated_tokens=context.stats.estimated_tokens)
        true = int(2 * projection.lane(CLAUDE).weight / ContextOptions().bytes_per_token)
        meta = {"usage": {"inputTokens": true, "outputTokens": 5, "totalTokens": true + 5}}
        log.output(f"call {n}", call(f"c{n}"), thinking="hm", wire_hash=context.context_hash, meta=meta)
        log.results(**{f"c{n}": LONG})
        step(3)
    return log


def manager_of(entries: list[Entry], options: ContextOptions | None = None) -> ProjectionContext:
    manager = ProjectionContext(options)
    manager.refold(entries)
    return manager


@pytest.mark.spec("C-1")
def test_building_is_pure_and_says_what_to_append() -> None:
    log = recorded()
    manager = manager_of(log.entries)
    given = ContextInput(
        target=CLAUDE,
        input_messages=[user_message("and b.py"), user_message("quickly")],
        system_prompt="be very brief",
        runtime_init_data={"cwd": "/w"},
        runtime_hints={"branch": "main"},
        tool_specs=[spec("read"), spec("write")],
    )
    built = manager.build_context(given)
    again = manager.build_context(given)
    assert again.context.context_hash == built.context.context_hash
    assert encode(list(again.entries_to_append)) == encode(list(built.entries_to_append))
    assert [type(payload).__name__ for payload in built.entries_to_append] == [
        "SystemPrompt",
        "RuntimeInit",
        "ModelInput",
        "ModelInput",
        "ToolsChange",
    ]
    assert not built.compacted
    assert built.context.system_prompt == 'be very brief\n\n# [Runtime]\n\n{"cwd":"/w"}'
    assert [tool.name for tool in built.model_tool_specs] == ["read", "write"]
    assert built.model_messages[-1].text == 'quickly# [Hints]\n\n{"branch":"main"}'
    for payload in built.entries_to_append:
        manager.step(log.add(payload))
    after = manager.build_context(ContextInput(target=CLAUDE))
    assert list(after.entries_to_append) == []
    assert after.context.context_hash == built.context.context_hash


def test_a_fold_that_was_decided_before_is_applied_as_it_is() -> None:
    log = recorded()
    manager = manager_of(log.entries)
    fold = plan_fold(Projection.of(log.entries), target=CLAUDE, reason="manual")
    assert fold is not None
    quiet = manager.build_context(ContextInput(target=CLAUDE, plan=False))
    assert not quiet.compacted
    built = manager.build_context(ContextInput(target=CLAUDE, plan=False, fold=fold, screen=lambda: "# Now"))
    assert [payload.screen for payload in built.entries_to_append if isinstance(payload, Fold)] == ["# Now"]
    assert built.stats.total_bytes < quiet.stats.total_bytes
    assert built.model_messages[-1].text == "# Now"


@pytest.mark.spec("C-8")
def test_building_again_takes_the_messages_that_were_made_before() -> None:
    log = recorded()
    manager = manager_of(log.entries)
    first = list(manager.build_context(ContextInput(target=CLAUDE)).model_messages)
    manager.step(log.user("and now?"))
    second = manager.build_context(ContextInput(target=CLAUDE))
    assert all(new is old for new, old in zip(second.model_messages, first, strict=False))
    assert (second.stats.new_messages, second.stats.message_count) == (1, len(first) + 1)


@pytest.mark.spec("C-7")
def test_hints_enter_when_they_changed_and_stay() -> None:
    log = Log()
    manager = ProjectionContext()
    message = user_message("a")

    def shown(hints: JsonObject | None) -> str | None:
        return try_get_section(manager.input_sections(message, hints=hints).live, HINTS)

    assert shown(None) is None
    assert shown({"branch": "main"}) == '{"branch":"main"}'
    built = manager.build_context(
        ContextInput(input_messages=[user_message("a")], runtime_hints={"branch": "main"})
    )
    manager.step(log.add(built.entries_to_append[0]))
    assert shown({"branch": "main"}) is None
    assert shown({"branch": "dev"}) is not None
    assert '{"branch":"main"}' in manager.build_context(ContextInput(target=CLAUDE)).model_messages[0].text


@pytest.mark.spec("L-9")
def test_updates_after_an_overflow() -> None:
    log = recorded()
    manager = manager_of(log.entries, ContextOptions(fold_at=100_000))
    quiet = manager.compute_context_updates(ContextUpdateInput(target=CLAUDE))
    assert list(quiet.entries_to_append) == []
    before = manager.build_context(ContextInput(target=CLAUDE))
    update = manager.compute_context_updates(ContextUpdateInput(target=CLAUDE, overflow_hint=True))
    assert update.compacted
    manager.step(log.add(update.entries_to_append[0]))
    after = manager.build_context(ContextInput(target=CLAUDE))
    assert after.stats.total_bytes < 0.7 * before.stats.total_bytes
    assert after.stats.total_bytes == update.stats.total_bytes
    assert manager_of(recorded().entries).compute_context_updates(ContextUpdateInput(manual=True)).compacted


def test_a_recap_is_due_once_the_context_has_grown_and_none_waits() -> None:
    log = recorded()
    manager = manager_of(log.entries, ContextOptions(fold_at=5_000))
    stats = manager.projection.emit(CLAUDE).stats
    tokens = stats.estimated_tokens
    answers = [entry.id for entry in log.entries if entry.kind == "model_output"]
    assert manager.recap_due(stats, CLAUDE) == answers[-1]
    assert manager.recap_due(stats, CLAUDE, asked_at=tokens) is None
    assert manager.recap_due(stats, CLAUDE, asked_at=tokens - 501) == answers[-1]
    assert manager.recap_due(stats, CLAUDE, asked_at=tokens + 1) == answers[-1]
    manager.step(log.add(CompactionSummary(first_kept_entry_id=answers[-1], summary="so far")))
    assert manager.recap_due(stats, CLAUDE) is None


@pytest.mark.spec("C-2")
def test_what_the_model_saw_at_any_call_can_be_shown_again() -> None:
    log = recorded()
    views = [explain(log.entries, n) for n in (1, 2, 3)]
    assert [view.matches for view in views] == [True, True, True]
    assert [len(view.messages) for view in views] == [1, 3, 5]
    assert explain(log.entries) == views[2]
    kinds = {part.kind: part for part in views[2].gauge}
    assert {"system prompt", "tools", "user", "assistant", "thinking", "tool results"} == set(kinds)
    assert views[2].gauge[0].kind == "tool results"
    assert sum(part.share for part in views[2].gauge) == pytest.approx(1, abs=0.01)
    log.redact(log.entries[2])
    hidden = explain(log.visible(), 3)
    assert (hidden.matches, hidden.redacted) == (False, True)
    assert "a.py" not in encode(hidden.messages).decode()
    with pytest.raises(AgentError, match="it has 3"):
        explain(log.entries, 4)


async def test_all_calls_are_shown_by_what_is_new_in_each() -> None:
    """Over breaks and other models too; each golden log is read again in this way."""
    for path in sorted((Path(__file__).parents[1] / "golden").rglob("*.jsonl")):
        store = MemoryStore()
        entries = visible_entries(await store.load(await import_jsonl(store, path.read_bytes(), trust=True)))
        shown: list[Message] = []
        origins: list[Any] = []
        for step in explain_all(entries):
            shown[step.known :] = step.added
            origins[len(shown) - len(step.origins) :] = step.origins
            view = explain(entries, step.call)
            assert [(m.role, m.parts) for m in shown] == [(m.role, m.parts) for m in view.messages], path
            assert [(each.first, each.kind) for each in origins] == [(o.first, o.kind) for o in view.origins]
            assert (step.gauge, step.context_hash, step.redacted, step.folds, step.window, step.fold_at) == (
                view.gauge, view.context_hash, view.redacted, view.folds, view.window, view.fold_at
            )  # fmt: skip
            assert (step.system_prompt, step.tool_specs) == (view.system_prompt, view.tool_specs)


def test_two_contexts_are_compared_from_the_beginning() -> None:
    log = recorded()
    projection = Projection.of(log.entries[:7])
    first = projection.emit(CLAUDE)
    for entry in log.entries[7:]:
        projection.step(entry)
    second = projection.emit(CLAUDE)
    grown = diff_contexts(first, second)
    assert (grown.grown, grown.common_messages, grown.removed) == (True, len(first.messages), [])
    log.redact(log.entries[2])
    projection = Projection.of(log.visible())
    changed = diff_contexts(second, projection.emit(CLAUDE))
    assert (changed.grown, changed.common_messages) == (False, 0)
    projection.step(log.tools("write"))
    assert diff_contexts(second, projection.emit(CLAUDE)).head_changed


@pytest.mark.spec("C-4")
def test_recall_brings_back_the_whole_text() -> None:
    log = recorded()
    assert recall_text(log.entries, "#6") == LONG
    assert recall_text(log.entries, "6") == recall_text(log.entries, log.entries[5].id)
    page = recall_text(log.entries, "#6", limit=10)
    assert page == f"{LONG[:10]}\n[… {len(LONG) - 10} more characters; recall #6 from 10]"
    assert recall_text(log.entries, "#6", offset=len(LONG) - 3) == LONG[-3:]
    assert recall_text(log.entries, "#3-5").startswith("#3 look at a.py\n\n#5 call 0")
    log.redact(log.entries[5])
    assert recall_text(log.visible(), "#6") == "[redacted]"
    for nothing in ("#1", "#999", "what"):
        with pytest.raises(AgentError, match="names no message") as caught:
            recall_text(log.entries, nothing)
        assert caught.value.code == "ContextInvalidInput"


@pytest.mark.spec("C-9")
def test_the_estimate_follows_what_the_provider_reports() -> None:
    projection = Projection.of(recorded().entries)
    assert projection.meter.factor(CLAUDE) == pytest.approx(2, rel=0.02)
    assert projection.meter.factor(GPT) == 1
    assert projection.meter.tokens(3450, GPT) == 1000
    allowed = projection.meter.weight(1_000, CLAUDE)
    assert projection.meter.tokens(allowed, CLAUDE) == pytest.approx(1_000, abs=2)


def test_a_long_result_is_sent_as_a_preview_with_a_handle() -> None:
    projection = Projection()
    assert preview_result(projection, "short", "artifact x") is None
    preview = preview_result(projection, LONG * 10, "artifact x")
    assert preview is not None
    assert "the whole text is artifact x" in preview
    assert len(preview) < 2_600 * 3.45


def test_a_branch_begins_with_its_summary_and_keeps_the_shared_wire() -> None:
    log = recorded()
    projection = Projection.of(log.entries)
    before = projection.emit(CLAUDE)
    place = BranchSummary(from_session_id="p", from_entry_id="e", from_seq=3, summary="trying another way")
    projection.step(log.add(place))
    after = projection.emit(CLAUDE)
    assert diff_contexts(before, after).grown
    assert after.messages[-1].text == "trying another way"
