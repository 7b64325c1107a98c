"""C. Context: who builds it, levels of detail, compaction, cost, counting, sections and search."""

from __future__ import annotations

import builtins
import importlib
import os
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import Agent, AgentError, Limits, load_model, tool
from turnlog.assembly import MessageAssembler
from turnlog.context import ContextInput, ContextOptions, ContextUpdateInput, ProjectionContext
from turnlog.contract import (
    LIVE_SCREEN,
    Entry,
    Input,
    LevelOfDetailSections,
    Prices,
    RunInput,
    TokenUsage,
    encode,
    model_facts,
    model_prices,
    to_plain_text,
    try_get_section,
    user_message,
    without_live_screen,
)
from turnlog.history import Session
from turnlog.loop import AgentLoop, LoopParts
from turnlog.models import ProviderRouter, by_role
from turnlog.testing import ScriptedModel, Turn, check_context_manager
from turnlog.tools import ToolExecutor, ToolRegistry, ToolResult

SMALL = ContextOptions(fold_at=6_000, min_freed_tokens=300, preview_at=100_000, user_cap=200)
GENTLE = msgspec.structs.replace(SMALL, tail_share=0.4, target_share=0.7)
"""Folds often and a little, so that the same entries are folded again."""
OVERFLOW = Turn(error={"code": "ModelContextOverflow", "message": "the prompt is too long"})


@tool(timeout=None)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return f"hall {hall} holds\n" + "\n".join(
        f"crate-{hall}-{n} weighs {n * 7 + hall} kilos" for n in range(200)
    )


def letter(number: int) -> str:
    """A user's message that is longer than the cap."""
    clauses = [f"Clause {number}-{n} speaks of matter {n * 3}." for n in range(70)]
    return f"Letter {number}.\n" + "\n".join(clauses)


def rounds(count: int) -> list[Any]:
    return [turn for n in range(count) for turn in (asks_for(call("stock", hall=n)), f"Counted {n}.")]


async def long_session(desk: Desk, count: int, **options: Any) -> Agent:
    agent = desk.agent(*rounds(count), tools=[stock], **{"context": SMALL, **options})
    for n in range(count):
        await agent.run(letter(n), session="s")
    return agent


# ── C-1 ──


class Watched(ProjectionContext):
    """The default, with a note of what the loop asks and is told."""

    built: list[tuple[list[Entry], ContextInput, Any]]
    updated: list[Any]

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.entries: list[Entry] = []
        self.built, self.updated = [], []

    def step(self, entry: Entry) -> None:
        self.entries.append(entry)
        super().step(entry)

    def refold(self, entries: Any) -> None:
        self.entries = list(entries)
        super().refold(self.entries)

    def build_context(self, input: ContextInput) -> Any:
        result = super().build_context(input)
        self.built.append((list(self.entries), input, result))
        return result

    def compute_context_updates(self, input: ContextUpdateInput) -> Any:
        self.updated.append(super().compute_context_updates(input))
        return self.updated[-1]


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: Any, **more: Any) -> Any:
        raise AssertionError("a context reads the log and nothing else")

    for owner, name in [
        *((time, name) for name in ("time", "monotonic", "time_ns", "perf_counter")),
        *((os, name) for name in ("urandom", "getenv", "open", "stat")),
        *((builtins, "open"), (socket, "socket")),
    ]:
        monkeypatch.setattr(owner, name, no)


@pytest.mark.spec("C-1")
async def test_the_loop_asks_a_context_manager_two_things_and_both_are_pure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, made = Desk(), []

    def make() -> Watched:
        made.append(Watched())
        return made[-1]

    agent = desk.agent(*rounds(3), OVERFLOW, "Fits.", tools=[stock], context=make)
    for n in range(3):
        await agent.run(letter(n), session="s", runtime_data={"os": "linux"})
    await agent.run("One more.", session="s")
    built = [each for manager in made for each in manager.built]
    assert sum(len(manager.updated) for manager in made) == 1, "asked after a refusal"
    assert desk.model is not None and len(built) >= len(desk.model.requests)
    hashes = [entry.payload.context_hash for entry in await desk.of_kind("model_call_started")]
    told = [result.context.context_hash for _, _, result in built]
    assert [each for each in told if each in hashes] and set(hashes) <= set(told), "the hash is in the log"
    with monkeypatch.context() as patch:
        forbid(patch)
        again = []
        for entries, given, _ in built:
            fresh = ProjectionContext(SMALL)
            fresh.refold(entries)
            again.append(fresh.build_context(given))
    for (_, _, first), second in zip(built, again, strict=True):
        assert encode(list(second.model_messages)) == encode(list(first.model_messages))
        assert encode(list(second.model_tool_specs)) == encode(list(first.model_tool_specs))
        assert encode(list(second.entries_to_append)) == encode(list(first.entries_to_append))
        assert (second.compacted, second.stats.total_bytes) == (first.compacted, first.stats.total_bytes)
    log = await desk.entries()
    for at, entry in enumerate(log):
        if entry.kind == "model_output":
            assert log[at - 1].kind == "model_call_started", "before each call"
    assert check_context_manager(lambda: ProjectionContext(SMALL))


@pytest.mark.spec("C-1")
async def test_every_part_of_the_loop_can_be_another() -> None:
    seen: list[str] = []

    class Assembler(MessageAssembler):
        def finish(self, timestamp: str = "") -> Any:
            seen.append("assembler")
            return super().finish(timestamp)

    class Registry(ToolRegistry):
        def get(self, name: str) -> Any:
            seen.append("registry")
            return super().get(name)

    class Executor(ToolExecutor):
        async def execute(self, *args: Any) -> Any:
            seen.append("executor")
            return await super().execute(*args)

    class Observer:
        def on_entry(self, entry: Entry) -> None:
            seen.append("observer")

    class Context(Watched):
        def build_context(self, input: ContextInput) -> Any:
            seen.append("context")
            return super().build_context(input)

    desk = Desk()
    registry = Registry([stock])
    parts = LoopParts(
        model=ScriptedModel(rounds(1)),
        store=desk.store,
        registry=registry,
        executor=Executor(registry),
        assembler=Assembler,
        observers=[Observer()],
        context=Context,
    )
    result = await AgentLoop(parts).run(RunInput(session_id="s", input_messages=[user_message("Count.")]))
    assert result.text == "Counted 0."
    assert set(seen) == {"assembler", "registry", "executor", "observer", "context"}


# ── C-4 ──

GRAINS = {"live": 0, "summary": 1, "gist": 2}


def levels_over(folds: list[Any]) -> dict[tuple[str, str | None], list[int]]:
    """What each folded entry was shown as, fold after fold."""
    found: dict[tuple[str, str | None], list[int]] = {}
    for fold in folds:
        for item in fold.payload.items:
            found.setdefault((item.entry_id, item.tool_call_id), []).append(GRAINS[item.grain])
    return found


@pytest.mark.spec("C-4")
async def test_inputs_and_results_carry_three_levels_that_only_go_down_and_only_at_folds() -> None:
    desk = Desk()
    await long_session(desk, 14, context=GENTLE)
    folds = await desk.of_kind("fold")
    assert len(folds) >= 3
    for entry in await desk.of_kind("model_input"):
        sections = entry.payload.sections
        assert sections.get_sections("summary") and sections.get_sections("gist"), "every input"
    for entry in await desk.of_kind("tool_results"):
        for outcome in entry.payload.outcomes:
            summary, gist = (to_plain_text(outcome.sections.get_sections(g)) for g in ("summary", "gist"))
            assert 0 < len(gist) < len(summary) < 4_000, "every result"
    inputs = {entry.id for entry in await desk.of_kind("model_input")}
    levels = levels_over(folds)
    assert all(path == sorted(path) for path in levels.values()), "only downward"
    both = {entry_id in inputs for (entry_id, _), path in levels.items() if path[0] == 1}
    assert both == {True, False}, "inputs as well as results are shown as their summary"
    assert any(path[0] == 1 and path[-1] == 2 for path in levels.values()), "and then as their gist"
    assert all(fold.payload.tokens_after < fold.payload.tokens_before for fold in folds)
    assert all(fold.payload.tokens_after <= SMALL.fold_at for fold in folds), "under the budget"
    assert desk.model is not None
    started = [entry.seq for entry in await desk.of_kind("model_call_started")]
    for (before, earlier), (now, later) in pairwise(zip(started, desk.model.requests, strict=True)):
        if not any(before < fold.seq < now for fold in folds):
            assert encode(list(later.messages)).startswith(encode(list(earlier.messages))[:-1])


@pytest.mark.spec("C-4")
async def test_an_author_gives_the_levels_and_recall_brings_the_text_back() -> None:
    @tool(timeout=None)
    async def stock(hall: int) -> ToolResult:
        """Read the stock of a hall."""
        lines = "\n".join(f"crate-{hall}-{n} weighs {n * 7} kilos" for n in range(200))
        summary = f"SUMMARY of hall {hall}: 200 crates. " + "All of them are blue. " * 20
        return ToolResult(lines, summary=summary, gist=f"GIST {hall}")

    desk = Desk()
    agent = desk.agent(*rounds(20), tools=[stock], context=GENTLE)
    for n in range(20):
        question = Input(letter(n), summary=f"SAID {n}, in short. " * 15, gist=f"SAID {n}")
        await agent.run(question, session="s")
    seen = "".join(encode(list(request.messages)).decode() for request in desk.model.requests)  # type: ignore[union-attr]
    order = [seen.find(words) for words in ("crate-0-150", "SUMMARY of hall 0: 200 crates", "GIST 0")]
    assert -1 not in order and order == sorted(order), "live, then summary, then gist"
    order = [seen.find(words) for words in ("Clause 0-50", "SAID 0, in short", 'SAID 0"')]
    assert -1 not in order and order == sorted(order), "inputs too"
    shown = [encode(list(request.messages)).decode() for request in desk.model.requests]  # type: ignore[union-attr]
    for n in range(20):
        for words in (f"Clause {n}-0 ", f"Clause {n}-50", f"crate-{n}-150"):
            whole = "".join("x" if words in each else "." for each in shown).strip(".")
            assert "." not in whole, f"{words} came back by itself"
    first = next(e for e in await desk.of_kind("tool_results") if "crate-0-150" in encode(e).decode())
    assert "crate-0-150 weighs" not in encode(desk.seen).decode()
    ask = asks_for(call("recall", entry=f"#{first.seq}"))
    agent = desk.agent(ask, "I see.", tools=[stock], context=GENTLE)
    await agent.run("What was in the first hall?", session="s")
    failed, content = results_in(desk.seen)[-1]
    assert not failed and "crate-0-150 weighs 1050 kilos" in content, "as a new result"


# ── C-6 ──

RECAP = "We count crates. crate-0-77 weighs 539 kilos; hall 1 is next."
USED = TokenUsage(input_tokens=4_000, output_tokens=20, total_tokens=4_020, cost=0.5)


@pytest.mark.spec("C-6")
async def test_a_model_writes_a_summary_beside_the_run_and_the_next_fold_uses_it() -> None:
    desk = Desk()
    written = [Turn(text=RECAP, usage=USED)]
    scribe = ScriptedModel(written, default="More of it.", clock=desk.clock, ids=desk.ids)
    turns = [*(asks_for(call("stock", hall=n)) for n in range(5)), "Counted."]
    agent = desk.agent(*turns, tools=[stock], context=SMALL, recap=scribe)
    assert (await agent.run("Count.", session="s")).text == "Counted."
    [summary, *_] = await desk.of_kind("compaction_summary")
    assert summary.payload.summary.startswith(RECAP)
    assert summary.payload.first_kept_entry_id in {entry.id for entry in await desk.entries()}
    fold = next(e for e in await desk.of_kind("fold") if e.seq > summary.seq)
    assert any(RECAP in segment.text for segment in fold.payload.segments)
    assert RECAP in encode(desk.seen).decode()
    assert (await agent.session("s").replay()).identical
    await agent.close()


@pytest.mark.spec("C-6")
@pytest.mark.parametrize("refusals", [1, 2, 3, 4])
async def test_an_overflow_folds_and_calls_again_at_most_three_times(refusals: int) -> None:
    desk = Desk()
    await long_session(desk, 3, context=ContextOptions(window=500_000))
    assert not await desk.of_kind("fold"), "no compactor is configured, and nothing was folded yet"
    agent = desk.agent(*[OVERFLOW] * refusals, "Fits.", tools=[stock])
    result = await agent.run("And now?", session="s", check=False)
    assert desk.model is not None
    sizes = [len(encode(list(request.messages))) for request in desk.model.requests]
    assert all(later < earlier for earlier, later in pairwise(sizes)), "each fold shrinks"
    if refusals <= 3:
        assert result.text == "Fits." and len(sizes) == refusals + 1
    else:
        assert result.last_error is not None and result.last_error.code == "ContextOverflow"
        assert len(sizes) <= 4


@pytest.mark.spec("C-6")
async def test_a_single_message_that_is_too_large_alone_is_shrunk_too() -> None:
    desk = Desk()
    agent = desk.agent(OVERFLOW, "I see.")
    assert (await agent.run("Read this:\n" + letter(1) * 40, session="s")).text == "I see."
    assert desk.model is not None
    first, second = (len(encode(list(request.messages))) for request in desk.model.requests)
    assert second < first / 2


# ── C-8 ──


class Counting(ProjectionContext):
    """Counts the calls, of Python and of C, that the projection of each turn makes."""

    def __init__(self) -> None:
        super().__init__(ContextOptions(fold=False))
        self.work = [0]

    def _counted(self, act: Any, *args: Any) -> Any:
        def seen(_frame: Any, event: str, _arg: Any) -> None:
            self.work[-1] += event in {"call", "c_call"}

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            return act(*args)
        finally:
            sys.setprofile(before)

    def step(self, entry: Entry) -> None:
        self._counted(super().step, entry)

    def build_context(self, input: ContextInput) -> Any:
        result = self._counted(super().build_context, input)
        self.work.append(0)
        return result


@pytest.mark.spec("C-8")
async def test_a_turn_costs_what_is_new_however_long_the_history_is() -> None:
    desk, made = Desk(), []

    def make() -> Counting:
        made.append(Counting())
        return made[-1]

    agent = desk.agent(*[asks_for(call("look", place="gate"))] * 200, "Done.", context=make)
    await agent.run("Go on and on.", session="s", limits=Limits(max_iterations=500))
    [manager] = made
    early, late = manager.work[20:40], manager.work[-40:-20]
    assert len(manager.work) > 200
    assert max(late) <= 1.1 * max(early), "the two hundredth call is as cheap as the twentieth"


# ── C-9, C-10 ──


@pytest.mark.spec("C-9")
async def test_tokens_are_what_the_provider_counted_and_an_estimate_of_what_is_new() -> None:
    """The same words, to a provider that counts five times as many tokens as the other one."""

    async def estimates(tokens_per_call: int) -> list[int]:
        desk = Desk()
        used = [TokenUsage(input_tokens=tokens_per_call * n, output_tokens=9, total_tokens=0) for n in (1, 2)]
        agent = desk.agent(*(Turn(text="Noted.", usage=each) for each in used), "Done.")
        for n in range(3):
            await agent.run(letter(n), session="s")
        return [entry.payload.estimated_tokens for entry in await desk.of_kind("model_call_started")]

    few, many = await estimates(800), await estimates(4_000)
    assert few[0] == many[0], "before anything was counted it is an estimate"
    assert 800 < few[1] < 4_000 < many[1], "what was reported, and more for what is new"
    assert 1_600 < few[2] < 4_000 and 8_000 < many[2] < 20_000


@pytest.mark.spec("C-9", "P-12")
async def test_prices_and_windows_come_from_the_table_and_can_be_overridden() -> None:
    used = TokenUsage(
        input_tokens=1_000_000, output_tokens=1_000_000, total_tokens=2_000_000, cached_input_tokens=500_000
    )

    async def cost(**options: Any) -> float | None:
        desk = Desk()
        model = ScriptedModel([Turn(text="Hi.", usage=used)], **options)
        result = await Agent(model, store=desk.store).run("Hello?", session="s")
        return result.usage.cost if result.usage else None

    assert await cost() is None, "nobody knows"
    assert await cost(prices={"input": 2.0, "output": 10.0}) == 12.0
    assert await cost(prices=Prices(input=2.0, output=10.0, cached=0.2)) == pytest.approx(11.1)
    sonnet = model_facts("claude-sonnet-4-5")
    assert sonnet.window == 200_000 and model_prices("anthropic", "claude-sonnet-4-5") is not None
    own = load_model("anthropic:claude-sonnet-4-5", context_window=50_000, prices={"input": 1, "output": 2})
    assert own.model_info().context_window == 50_000 and own.get_config().prices == Prices(input=1, output=2)
    with pytest.raises(AgentError, match="prices"):
        load_model("anthropic:claude-sonnet-4-5", prices={"inptu": 1, "output": 2})


@pytest.mark.spec("C-10")
def test_sections_are_lists_of_keys_and_texts_at_three_grains() -> None:
    sections = LevelOfDetailSections(
        live=[("", "whole"), ("Diff", "a\nb")], summary=[("", "short")], gist=[("", "g")]
    )
    assert sections.get_sections("live") == [("", "whole"), ("Diff", "a\nb")]
    assert (sections.get_sections("summary"), sections.get_sections("gist")) == ([("", "short")], [("", "g")])
    uniform = LevelOfDetailSections.create_uniform([("A", "x")])
    assert uniform.live == uniform.summary == uniform.gist == [("A", "x")]
    shown = sections.with_live_section(LIVE_SCREEN, "screen")
    assert try_get_section(shown.live, LIVE_SCREEN) == "screen" and shown.summary == sections.summary
    assert try_get_section(sections.live, LIVE_SCREEN) is None, "the first is as it was"
    assert without_live_screen(shown.live) == (sections.live, "screen")
    assert to_plain_text(sections.live) == "whole\n\n# Diff\n\na\nb", "in order, the key as a heading"


@pytest.mark.spec("C-10")
async def test_only_context_kinds_are_shown_and_sections_stand_in_their_order() -> None:
    desk = Desk()
    await desk.agent("Hi.").run("Hello?", session="s", title="UNSEEN", metadata={"x": "UNSEEN"})
    session = await Session.open(desk.store, "s", clock=desk.clock, ids=desk.ids)
    session.append_custom("note", {"text": "UNSEEN"}, meta={"about": "UNSEEN"})
    await session.commit()
    question = Input("Well?", sections={"Diff": "minus one", "Test": "fails"})
    await desk.agent("Fine.").run(question, session="s")
    seen = encode(desk.seen).decode()
    assert "UNSEEN" not in seen and "run_started" not in seen
    told = "\n\n".join(part.payload.text for part in desk.seen[-1].parts if part.kind == "text")
    assert told == "Well?\n\n# Diff\n\nminus one\n\n# Test\n\nfails"


@pytest.mark.spec("C-10")
async def test_with_several_models_the_smallest_window_in_use_counts() -> None:
    async def largest(*windows: int) -> int:
        desk = Desk()
        models = {
            f"m{at}": ScriptedModel(
                default=lambda request: f"Answer. {'words ' * 300}",
                model_id=f"m{at}",
                context_window=window,
                clock=desk.clock,
                ids=desk.ids,
            )
            for at, window in enumerate(windows)
        }
        agent = Agent(
            ProviderRouter(models, policy=by_role({name: name for name in models}), clock=desk.clock),
            store=desk.store,
            clock=desk.clock,
            ids=desk.ids,
        )
        for n in range(30):
            await agent.run(letter(n), session="s", role=f"m{n % len(windows)}")
        started = await desk.of_kind("model_call_started")
        return max(entry.payload.estimated_tokens for entry in started[2:])

    alone, together = await largest(400_000), await largest(400_000, 12_000)
    assert together <= 12_000 < alone


# ── C-12 ──


@pytest.mark.spec("C-12")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_what_was_folded_is_found_by_words_best_first_and_always_the_same(
    url: str, tmp_path: Path
) -> None:
    desk = Desk(url.format(tmp_path))
    said = [
        "The plumber came about the gate.",
        "The plumber sent an invoice of 741 euros for the gate.",
        "The gardener sent flowers.",
    ]
    agent = desk.agent(*["Noted."] * 3, context=SMALL)
    for text in said:
        await agent.run(text + " And so on." * 150, session="s")
    await long_session(desk, 6)
    ask = asks_for(call("recall", query="plumber invoice"), call("recall", query="plumber invoice"))
    agent = desk.agent(ask, "Found.", tools=[stock], context=SMALL)
    await agent.run("What did it cost?", session="s")
    [(failed, first), (_, second)] = results_in(desk.seen)[-2:]
    assert not failed and "741 euros" in first
    best, other = first.find("741 euros"), first.find("came about the gate")
    assert other < 0 or best < other, "the best match comes first"
    assert "flowers" not in first.split("741 euros")[0]
    assert (await agent.session("s").replay()).identical, "the same whenever it is asked"
    assert first == EXPECTED.setdefault("found", first), "and in every store"
    assert second
    await desk.store.close()  # type: ignore[attr-defined]


EXPECTED: dict[str, str] = {}


@pytest.mark.spec("C-6")
async def test_a_head_that_leaves_no_room_is_not_an_overflow_without_end() -> None:
    desk = Desk()
    agent = desk.agent("Hi.", instructions="word " * 20_000, context=ContextOptions(window=8_000))
    with pytest.raises(AgentError, match="system prompt and tools"):
        await agent.run("Hi.", session="s")


# ── C-11 ──


@pytest.mark.spec("C-11")
def test_a_public_benchmark_replays_real_sessions_through_strategies(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root)
    bench = importlib.import_module("benchmarks.context.__main__")
    [recorded] = (shared_data / "sessions").glob("pi_*.jsonl")
    short = tmp_path / "short.jsonl"
    short.write_text("".join(recorded.read_text("utf-8").splitlines(keepends=True)[:110]), encoding="utf-8")
    bench.report_session(bench.read_session(short), None, [])
    said = capsys.readouterr().out
    head = next(line for line in said.splitlines() if line.startswith("strategy"))
    for column in ("Anthropic", "OpenAI", "Google", "breaks", "names"):
        assert column in head, "cost under each provider's cache prices, prefix breaks, and what was needed"
    assert "needed, and last seen" in said and "cache prices of" in said
    rows = {line[:28].strip(): line[28:].split() for line in said.splitlines() if line[:1].islower()}
    assert {"send everything", "turnlog, fold at 74k"} <= set(rows) and len(rows) > 5
    assert rows["send everything"][4] == "0" and float(rows["send everything"][0]) > 0
    assert "python -m benchmarks.context" in (root / "docs" / "context.md").read_text("utf-8")
