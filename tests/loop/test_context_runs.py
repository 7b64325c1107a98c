"""Context over whole runs: when it folds, what comes back, what never does, and that the wire only grows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from loop.context_stage import SMALL, ContextStage, shown, stock, wire
from loop.scenarios import SESSION, call
from loop.test_runs import check_well_formed
from turnlog import Agent
from turnlog.context import ContextOptions
from turnlog.contract import (
    AgentError,
    Entry,
    StreamDone,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    ThinkingPart,
    TokenUsage,
)
from turnlog.history import Session
from turnlog.loop import fork_session, replay
from turnlog.models import ModelRequest, ProviderRouter, by_role
from turnlog.testing import FaultStore, ScriptedModel, StoreFault, Turn, VirtualClock

ROOMY = ContextOptions(preview_at=100_000)


def halls(*numbers: int) -> list[Any]:
    """Turns that read these halls one by one, then an answer."""
    return [*(Turn(tool_calls=[call("stock", hall=n)]) for n in numbers), f"{len(numbers)} halls."]


def tokens(request: ModelRequest) -> int:
    return len(shown(request)) // 4


# ── when it folds ──


@pytest.mark.spec("C-4", "C-10")
async def test_at_the_threshold() -> None:
    stage = ContextStage()
    result = await stage.play(halls(*range(8))).run("Count.", session=SESSION)
    assert result.text == "8 halls."
    folds = await stage.folds()
    assert len(folds) >= 2 and {fold.reason for fold in folds} == {"threshold"}
    assert all(fold.tokens_before >= 6_000 and fold.tokens_after < 6_000 for fold in folds)
    assert max(map(tokens, stage.model.requests)) < 7_000
    await stage.check()


@pytest.mark.spec("C-4", "C-9")
@pytest.mark.parametrize(
    ("options", "threshold"),
    [
        (ContextOptions(preview_at=100_000, min_freed_tokens=300, price_step=8_000), 7_600),
        (ContextOptions(preview_at=100_000, min_freed_tokens=300, window=10_000), 7_500),
    ],
)
async def test_below_a_price_step_and_the_window(options: ContextOptions, threshold: int) -> None:
    stage = ContextStage()
    await stage.play(halls(*range(6)), context=options).run("Count.", session=SESSION)
    (fold, *_) = await stage.folds()
    assert fold.reason == "threshold" and threshold <= fold.tokens_before < threshold + 2_500
    assert max(map(tokens, stage.model.requests)) < threshold + 500
    await stage.check(options=options)
    roomy = ContextStage()
    await roomy.play(halls(*range(6)), context=ROOMY).run("Count.", session=SESSION)
    assert await roomy.folds() == []


@pytest.mark.spec("C-4")
async def test_a_model_with_a_known_window_needs_no_setting() -> None:
    stage = ContextStage()
    model = ScriptedModel(halls(*range(6)), model_id="gpt-4", clock=stage.clock, ids=stage.ids)
    options = ContextOptions(preview_at=100_000, min_freed_tokens=300)
    agent = Agent(model, tools=[stock], store=stage.store, clock=stage.clock, ids=stage.ids, context=options)
    await agent.run("Count.", session=SESSION)
    assert max(map(tokens, model.requests)) < 8_192
    assert len(await stage.folds()) >= 1


@pytest.mark.spec("C-9", "C-10")
async def test_a_model_that_says_its_window_needs_no_setting_either() -> None:
    """A router's budget follows the smallest window of the models in use, and not of those that are not."""
    stage = ContextStage()

    def made(name: str, window: int, turns: list[Any]) -> ScriptedModel:
        return ScriptedModel(turns, model_id=name, context_window=window, clock=stage.clock, ids=stage.ids)

    small = made("small-1", 9_000, [*halls(*range(6)), "And so on."])
    large = made("large-1", 90_000, halls(*range(6)))
    tiny = made("tiny-1", 2_000, [])
    router = ProviderRouter(
        {"small": small, "large": large, "tiny": tiny},
        policy=by_role({"quick": "small", "deep": "large"}),
        clock=stage.clock,
        ids=stage.ids,
    )
    options = ContextOptions(preview_at=100_000)
    agent = Agent(router, tools=[stock], store=stage.store, clock=stage.clock, ids=stage.ids, context=options)
    await agent.run("Count.", session="a", role="deep")
    assert await stage.folds("a") == []
    await agent.run("Count.", session="b", role="quick")
    assert len(await stage.folds("b")) >= 1
    assert max(map(tokens, small.requests)) < 9_000
    await agent.run("Go on.", session="a", role="quick")
    assert [fold.reason for fold in await stage.folds("a")] == ["threshold"]
    assert tokens(small.requests[-1]) < 9_000


@pytest.mark.spec("C-4")
@pytest.mark.parametrize(("pause", "reason"), [(301.0, "cold"), (299.0, None)])
async def test_earlier_when_the_cache_is_cold_anyway(pause: float, reason: str | None) -> None:
    stage, clock = ContextStage(), VirtualClock()
    stage.clock = clock
    agent = stage.play([*halls(0, 1, 2), "Still three."], context=ContextOptions(**_sized(8_000)))
    await agent.run("Count.", session=SESSION)
    assert await stage.folds() == []
    await clock.advance(pause)
    await agent.run("Well?", session=SESSION)
    assert [fold.reason for fold in await stage.folds()] == ([reason] if reason else [])
    await stage.check(options=ContextOptions(**_sized(8_000)))


@pytest.mark.spec("C-4")
async def test_earlier_where_a_turn_ends() -> None:
    options = ContextOptions(**_sized(6_000))
    stage = ContextStage()
    agent = stage.play([*halls(0, 1, 2), "Still three."], context=options)
    await agent.run("Count.", session=SESSION)
    assert await stage.folds() == [], "within a turn it waits for the threshold"
    await agent.run("Well?", session=SESSION)
    (fold,) = await stage.folds()
    assert fold.reason == "turn_end" and 5_400 <= fold.tokens_before < 6_000
    await stage.check(options=options)


def _sized(fold_at: int) -> dict[str, Any]:
    return {"fold_at": fold_at, "min_freed_tokens": 300, "preview_at": 100_000}


# ── what does not fit ──


def refuse_above(limit: int, answer: Any) -> Any:
    """A provider that takes ``limit`` tokens of prompt and no more, whatever we think."""

    def turn(request: ModelRequest) -> Any:
        if tokens(request) > limit:
            return AgentError("ModelContextOverflow", f"prompt is {tokens(request)} tokens, not {limit}")
        return answer(request) if callable(answer) else answer

    return turn


@pytest.mark.spec("C-6", "L-9")
async def test_an_overflow_is_folded_away_and_the_call_made_again() -> None:
    stage = ContextStage()
    agent = stage.play(halls(0, 1, 2), context=ROOMY)
    await agent.run("Count.", session=SESSION)
    stage.then(*[refuse_above(2_500, "Fits.")] * 4)
    result = await agent.run("And now?", session=SESSION)
    assert result.text == "Fits."
    folds = await stage.folds()
    assert folds and [fold.step for fold in folds] == list(range(1, len(folds) + 1))
    assert {fold.reason for fold in folds} == {"overflow"}
    await stage.check(options=ROOMY)


@pytest.mark.spec("C-6", "L-9")
async def test_after_three_folds_it_is_a_typed_error() -> None:
    stage = ContextStage()
    never = AgentError("ModelContextOverflow", "prompt is too long")
    agent = stage.play([*halls(*range(4)), *[never] * 9], context=ROOMY)
    await agent.run("Count.", session=SESSION)
    asked = stage.model.calls
    result = await agent.run("And now?", session=SESSION, check=False)
    assert result.status == "failed"
    assert result.last_error is not None and result.last_error.code == "ContextOverflow"
    assert "3 folds" in result.last_error.message and "prompt is too long" in result.last_error.message
    folds = await stage.folds()
    assert [fold.step for fold in folds] == [1, 2, 3]
    assert all(before.tokens_after > after.tokens_after for before, after in pairwise(folds))
    assert stage.model.calls - asked == 4
    check_well_formed(await stage.check(options=ROOMY))
    stage.then("Back.")
    assert (await agent.run("Hello?", session=SESSION, check=False)).text == "Back.", (
        "the session is still of use"
    )


@pytest.mark.spec("C-6")
@pytest.mark.parametrize("known", [True, False])
async def test_a_single_message_that_is_too_large_alone(known: bool) -> None:
    """``known``: we know the window and fold before the call; else the provider refuses it first."""
    options = ContextOptions(preview_at=100_000, window=4_000 if known else None, min_freed_tokens=300)
    stage = ContextStage()
    long = "BEGIN " + " ".join(f"item-{n}" for n in range(20_000)) + " END"
    agent = stage.play([refuse_above(4_000, "Read.")] * (1 if known else 3), context=options)
    result = await agent.run(long, session=SESSION, check=False)
    assert result.status == "completed", result.last_error
    request = stage.model.requests[-1]
    assert "BEGIN" in shown(request) and "END" in shown(request) and "recall #" in shown(request)
    assert tokens(request) <= 4_000
    entries = await stage.check(options=options)
    number = next(entry.seq for entry in entries if entry.kind == "model_input")
    found = Turn(tool_calls=[call("recall", entry=f"#{number}", offset=50_000)])
    stage.then(found, "Found.")
    await agent.run("What is in the middle?", session=SESSION)
    assert long[50_000:50_100] in shown(stage.model.requests[-1])


@pytest.mark.spec("C-6", "E-2")
async def test_a_prompt_that_leaves_no_room_is_said_at_once() -> None:
    stage = ContextStage()
    agent = stage.play(["never"], instructions="Be thorough. " * 2_000)
    result = await agent.run("Hi", session=SESSION, check=False)
    assert result.last_error is not None and result.last_error.code == "ConfigInvalid"
    assert "system prompt and tools take about" in result.last_error.message
    assert "raise context.fold_at" in result.last_error.message
    assert stage.model.calls == 0
    check_well_formed(await stage.check())


# ── what comes back ──


def result_of(entries: list[Entry], at: int = -1) -> str:
    found: list[Any] = [entry.payload for entry in entries if entry.kind == "tool_results"]
    return found[at].message.tool_results[0].payload.content


@pytest.mark.spec("C-4")
async def test_recall_brings_folded_text_back_as_a_new_result() -> None:
    stage = ContextStage()
    agent = stage.play(halls(*range(8)))
    await agent.run("Count.", session=SESSION)
    line = "crate-0-77 weighs 539 kilos"
    assert line not in shown(stage.model.requests[-1])
    number = next(e.seq for e in await stage.entries() if e.kind == "tool_results")
    stage.then(Turn(tool_calls=[call("recall", entry=f"#{number}")]), "539.")
    await agent.run("What does crate-0-77 weigh?", session=SESSION)
    entries = await stage.check()
    assert result_of(entries) == result_of(entries, 0)
    assert line in shown(stage.model.requests[-1])
    assert line not in shown(stage.model.requests[-2]), "what was folded stays folded"


@pytest.mark.spec("C-4", "T-4")
async def test_a_long_result_is_read_on_in_its_artifact_and_a_lost_one_is_told() -> None:
    stage = ContextStage()
    options = ContextOptions(preview_at=200)
    agent = stage.play(halls(1), context=options)
    await agent.run("Count.", session=SESSION)
    entries = await stage.entries()
    kept: Any = next(e.payload for e in entries if e.kind == "tool_results").outcomes[0].artifact
    whole = (await stage.store.get_blob(kept)).decode()
    assert len(result_of(entries)) < 1_200 < len(whole) and kept in result_of(entries)
    read = Turn(tool_calls=[call("read_artifact", artifact=kept, offset=2_000)])
    stage.then(read, "Read.", read, "Lost.")
    await agent.run("Read on.", session=SESSION)
    assert whole[2_000:2_100] in result_of(await stage.entries())
    gone = AgentError("SessionReadFailed", f"there is no blob {kept} in this store")
    store = FaultStore(stage.store, [StoreFault(method="get_blob", nth=1, error=gone)])
    other = Agent(stage.model, tools=[stock], store=store, clock=stage.clock, ids=stage.ids, context=options)
    result = await other.run("Read again.", session=SESSION, instructions="You count crates.", check=False)
    assert result.text == "Lost."
    told = [e for e in await stage.entries() if e.kind == "tool_results"][-1].payload
    assert told.outcomes[0].status == "failed"
    assert "there is no blob" in result_of(await stage.entries())
    assert "do without it, or make it again" in result_of(await stage.entries())
    assert (await replay(stage.store, SESSION, options=options)).identical


# ── what is hidden ──


@pytest.mark.spec("H-9", "C-4")
async def test_a_redaction_reaches_into_a_digest() -> None:
    stage = ContextStage()
    agent = stage.play([f"Noted {n}. " + "and some words more " * 60 for n in range(40)])
    for n in range(20):
        secret = "The word is xyzzy-4711." if n == 2 else ""
        await agent.run(f"Say {n}. {secret}", session=SESSION)
    folds = await stage.folds()
    assert any("xyzzy-4711" in segment.text for fold in folds for segment in fold.segments)
    assert "xyzzy-4711" in shown(stage.model.requests[-1])
    entries = await stage.entries()
    hidden = next(e for e in entries if e.kind == "model_input" and "xyzzy" in e.payload.message.text)
    session = await Session.open(stage.store, SESSION, clock=stage.clock, ids=stage.ids, create=False)
    session.redact([hidden.id], "a password", "the user")
    await session.commit()
    stage.then(Turn(tool_calls=[call("recall", entry=f"#{hidden.seq}")]), "Gone.")
    await agent.run("What was the word?", session=SESSION)
    for request in stage.model.requests[20:]:
        assert "xyzzy-4711" not in shown(request) and "[redacted]" in shown(request)
    assert result_of(await stage.entries()) == "[redacted]"
    await stage.check()


# ── forks ──


@pytest.mark.spec("H-7", "C-4")
@pytest.mark.parametrize("where", ["before the fold", "after the fold"])
async def test_a_fork_in_a_folded_region_goes_on_from_what_was_seen_there(where: str) -> None:
    stage = ContextStage()
    agent = stage.play(halls(*range(8)))
    await agent.run("Count.", session=SESSION)
    entries = await stage.entries()
    fold = next(entry for entry in entries if entry.kind == "fold")
    at = fold.seq - 1 if where == "before the fold" else fold.seq
    name = await fork_session(stage.store, SESSION, at=at, clock=stage.clock, ids=stage.ids)
    branch = ContextStage(store=stage.store, clock=stage.clock, ids=stage.ids)
    await branch.play(["Here I am."]).run("Where are you?", session=name)
    (request,) = branch.model.requests
    line = "crate-0-77 weighs 539 kilos"
    own = [entry for entry in await stage.entries(name) if entry.seq > at and entry.kind == "fold"]
    assert (line in shown(request)) == (where == "before the fold" and not own)
    for session in (SESSION, name):
        report = await replay(stage.store, session)
        assert report.identical, report.difference
    stage.then("Fine.")
    await agent.run("And you?", session=SESSION)
    await stage.check()


# ── thinking ──


def thinks(text: str, thought: str, origin: str) -> Any:
    signed = {"origin": origin, "signature": f"sig {thought}"}

    def turn(request: ModelRequest) -> Turn:
        return Turn(
            chunks=[
                StreamStart(model_id=origin),
                ThinkingChunk(text_delta=thought, provider_data=signed),
                TextChunk(text_delta=text),
                TokenUsage(input_tokens=tokens(request), output_tokens=9, total_tokens=tokens(request) + 9),
                StreamDone(finish_reason="stop"),
            ]
        )

    return turn


def thoughts(request: ModelRequest) -> list[str]:
    return [
        part.payload.text
        for message in request.messages
        for part in message.parts
        if isinstance(part, ThinkingPart)
    ]


@pytest.mark.spec("P-6", "R-4")
async def test_thinking_goes_back_to_its_maker_while_the_wire_before_it_is_the_same() -> None:
    stage = ContextStage()

    def made(name: str, count: int) -> tuple[ScriptedModel, Agent]:
        turns = [thinks(f"{name} says {n}", f"{name} thought {n}", name) for n in range(count)]
        model = ScriptedModel(turns, model_id=name, clock=stage.clock, ids=stage.ids)
        agent = Agent(
            model, store=stage.store, clock=stage.clock, ids=stage.ids, instructions="Think.", context=SMALL
        )
        return model, agent

    (alpha, a), (beta, b) = made("alpha", 9), made("beta", 3)
    await a.run("One.", session=SESSION)
    await a.run("Two.", session=SESSION)
    assert thoughts(alpha.requests[-1]) == ["alpha thought 0"]
    await b.run("Three.", session=SESSION)
    assert thoughts(beta.requests[-1]) == [], "another model cannot read it"
    await b.run("Four.", session=SESSION)
    assert thoughts(beta.requests[-1]) == ["beta thought 0"]
    await a.run("Five.", session=SESSION)
    assert thoughts(alpha.requests[-1]) == ["alpha thought 0", "alpha thought 1"]
    first = alpha.requests[-1].messages
    assert wire(first[1]) == wire(alpha.requests[1].messages[1]), "signature and all, to the byte"
    await a.run("Six.", session=SESSION, instructions="Think harder.")
    assert thoughts(alpha.requests[-1]) == [], "the prompt before it changed"
    await a.run("Seven.", session=SESSION)
    assert thoughts(alpha.requests[-1])[:2] == ["alpha thought 0", "alpha thought 1"], "and changed back"
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference


@pytest.mark.spec("P-6")
async def test_thinking_before_a_fold_is_dropped_and_after_it_kept() -> None:
    stage = ContextStage()

    def turns() -> list[Any]:
        long = "and some words more " * 100
        return [thinks(f"Answer {n} {long}", f"thought {n}", "alpha") for n in range(30)]

    agent = stage.play(turns(), tools=[])
    for n in range(20):
        await agent.run(f"Say {n}.", session=SESSION)
    entries = await stage.check()
    calls = [entry for entry in entries if entry.kind == "model_call_started"]
    folds = [entry.seq for entry in entries if entry.kind == "fold"]
    assert folds
    for number, (started, request) in enumerate(zip(calls, stage.model.requests, strict=True)):
        since = max((seq for seq in folds if seq < started.seq), default=0)
        fresh = [n for n in range(number) if calls[n].seq > since]
        assert thoughts(request) == [f"thought {n}" for n in fresh]
