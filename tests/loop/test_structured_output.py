"""Runs that end with a checked value of a type."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from loop.scenarios import MortalStore, Stage
from turnlog import Agent, Limits, ToolResult, tool
from turnlog.contract import (
    FINAL_ANSWER,
    AgentError,
    CallArgs,
    CallStart,
    RunEndedEntry,
    RunStarted,
    StreamDone,
    StreamStart,
    ToolPolicy,
    encode,
)
from turnlog.events import RunEnded
from turnlog.loop import replay_entries
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn
from turnlog.tools import OutputType, ToolError


@dataclass
class Invoice:
    number: int
    dollars: float


class Pet(BaseModel):
    name: str


class Leaf(msgspec.Struct):
    size: int


class Row(TypedDict):
    id: int


class Odd:
    pass


@dataclass
class Holder:
    name: str
    odd: Odd


class HolderStruct(msgspec.Struct):
    name: str
    odd: Odd


GOOD = '{"number": 7, "dollars": 2.5}'
BAD = '{"number": 7}'
VALUE = Invoice(7, 2.5)
FEATURES: dict[str, list[Any]] = {
    "schema": ["text", "tools", "output_schema"],
    "tool": ["text", "tools", "forced_tool"],
    "text": ["text"],
}
MODES = pytest.mark.parametrize("mode", list(FEATURES))


def final(**arguments: Any) -> Turn:
    return Turn(tool_calls=[{"name": FINAL_ANSWER, "arguments": arguments}])


def script(mode: str, *answers: str) -> list[Any]:
    """The answers as a model gives them in this mode."""
    return [final(**json.loads(answer)) if mode == "tool" else answer for answer in answers]


def build(mode: str, *answers: str, **options: Any) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel(script(mode, *answers), features=FEATURES[mode])
    return Agent(model, store="memory:", **options), model


async def check_replay(agent: Agent[Any], session: str = "s") -> None:
    report = await agent.session(session).replay()
    assert report.identical, report.difference


@pytest.mark.spec("L-10")
@pytest.mark.parametrize(
    ("type_", "answer", "value"),
    [
        (Invoice, GOOD, VALUE),
        (Pet, '{"name": "Rex"}', Pet(name="Rex")),
        (Leaf, '{"size": 4}', Leaf(4)),
        (Row, '{"id": 4}', {"id": 4}),
        (Pet | Leaf, '{"value": {"size": 4}}', Leaf(4)),
        (list[Leaf], '{"value": [{"size": 1}, {"size": 2}]}', [Leaf(1), Leaf(2)]),
        (int, '{"value": 3}', 3),
        (bool, '{"value": false}', False),
        (Invoice | None, '{"value": null}', None),
        (Literal["yes", "no"], '{"value": "yes"}', "yes"),
    ],
)
@MODES
async def test_the_output_is_of_the_type(mode: str, type_: Any, answer: str, value: Any) -> None:
    agent, model = build(mode, answer)
    result = await agent.run("Read it.", session="s", output_type=type_)
    assert result.output == value and type(result.output) is type(value)
    assert model.calls == 1
    await check_replay(agent)


@pytest.mark.spec("L-10")
@MODES
async def test_the_way_is_chosen_by_what_the_model_can_and_is_in_the_log(mode: str) -> None:
    agent, model = build(mode, GOOD, output_type=Invoice)
    await agent.run("Read it.", session="s")
    (started,) = [e.payload for e in await agent.session("s").entries() if e.kind == "run_started"]
    assert isinstance(started, RunStarted) and started.output_mode == mode
    schema = OutputType(Invoice).json_schema
    assert started.output_schema == schema
    (request,) = model.requests
    assert request.output_schema == (schema if mode == "schema" else None)
    offered = {spec.name: spec.parameter_schema for spec in request.tool_specs}
    assert offered.get(FINAL_ANSWER) == (schema if mode == "tool" else None)
    assert request.tool_choice == ("required" if mode == "tool" else None)
    shown = encode(request.messages).decode()
    assert ("fits this JSON schema" in shown) == (mode == "text")


@pytest.mark.spec("L-10")
@MODES
async def test_an_answer_that_does_not_fit_is_corrected_in_words(mode: str) -> None:
    agent, model = build(mode, BAD, GOOD, output_type=Invoice)
    result = await agent.run("Read it.", session="s")
    assert result.output == VALUE and model.calls == 2
    told = model.requests[1].messages[-1]
    assert "- dollars: is required but missing" in encode(told.parts).decode()
    assert result.usage is not None and result.usage.output_tokens > 0
    await check_replay(agent)


@pytest.mark.spec("L-10")
@MODES
@pytest.mark.parametrize("limit", [0, 2])
async def test_corrections_are_bounded(mode: str, limit: int) -> None:
    agent, model = build(mode, *[BAD] * 9, output_type=Invoice, limits=Limits(max_corrections=limit))
    with pytest.raises(AgentError, match=f"after {limit} corrections.*dollars: is required") as caught:
        await agent.run("Read it.", session="s")
    assert caught.value.code == "OutputInvalid"
    assert model.calls == limit + 1
    assert caught.value.result is not None
    with pytest.raises(AgentError):
        _ = caught.value.result.output
    await check_replay(agent)


@pytest.mark.spec("L-10")
@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [
        ("length", "OutputTruncated", GOOD),
        ("refusal", "ModelRefused", "I will not."),
        ("content_filter", "ModelContentFiltered", GOOD),
    ],
)
@MODES
async def test_a_stopped_answer_is_an_error_and_never_half_an_object(
    mode: str, reason: str, code: str, text: str
) -> None:
    model = ScriptedModel([Turn(text=text, finish_reason=reason)], features=FEATURES[mode])
    agent = Agent(model, store="memory:", output_type=Invoice)
    with pytest.raises(AgentError) as caught:
        await agent.run("Read it.", session="s")
    assert caught.value.code == code and caught.value.meta == {"finish_reason": reason}
    assert model.calls == 1
    await check_replay(agent)


@pytest.mark.spec("L-10", "D-5")
async def test_a_final_call_that_is_cut_by_its_length_has_the_same_name() -> None:
    chunks = [
        StreamStart(model_id="m"),
        CallStart(tool_call_id="1", tool_name=FINAL_ANSWER),
        CallArgs(tool_call_id="1", args_text_delta='{"number": 7, "dol'),
        StreamDone(finish_reason="length"),
    ]
    model = ScriptedModel([Turn(chunks=chunks)], features=FEATURES["tool"])
    agent = Agent(model, store="memory:", output_type=Invoice)
    with pytest.raises(AgentError) as caught:
        await agent.run("Read it.", session="s")
    assert caught.value.code == "OutputTruncated" and caught.value.meta == {"finish_reason": "length"}
    assert model.calls == 1
    await check_replay(agent)


async def test_an_older_log_of_a_length_stop_replays() -> None:
    """It has the error under the name that it had before."""
    agent = Agent(
        ScriptedModel([Turn(text=GOOD, finish_reason="length")]), store="memory:", output_type=Invoice
    )
    await agent.run("Read it.", session="s", check=False)
    *before, end = await agent.store.load("s")
    assert isinstance(end, RunEndedEntry) and end.payload.error is not None
    for code, identical in (("OutputInvalid", True), ("ModelRefused", False)):
        error = msgspec.structs.replace(end.payload.error, code=code)
        older = msgspec.structs.replace(end, payload=msgspec.structs.replace(end.payload, error=error))
        assert (await replay_entries([*before, older], "s")).identical is identical


async def test_a_model_that_talks_instead_of_calling_is_told_what_to_call() -> None:
    model = ScriptedModel(["Seven, I think.", final(number=7, dollars=2.5)], features=FEATURES["tool"])
    agent = Agent(model, store="memory:", output_type=Invoice)
    assert (await agent.run("Read it.", session="s")).output == VALUE
    assert f"Call {FINAL_ANSWER}" in model.requests[1].messages[-1].text
    await check_replay(agent)


@MODES
async def test_tools_are_used_before_the_output_is_given(mode: str) -> None:
    @tool
    def rate(currency: str) -> float:
        """The rate of a currency."""
        return 1.25

    look = Turn(tool_calls=[{"name": "rate", "arguments": {"currency": "EUR"}}])
    features = ["text", "tools", "output_schema"] if mode != "tool" else FEATURES["tool"]
    model = ScriptedModel([look, *script(mode, GOOD)], features=features)
    agent = Agent(model, tools=[rate], store="memory:", limits=Limits(max_tool_rounds=1))
    policy = ToolPolicy(max_calls_per_run=1)
    result = await agent.run("Read it.", session="s", output_type=Invoice, tool_policy=policy)
    assert result.output == VALUE
    await check_replay(agent)


# ── a check of the user's ──


def positive(invoice: Invoice) -> str | None:
    return None if invoice.dollars > 0 else "dollars: an invoice is over more than 0; read it again"


async def positive_later(invoice: Invoice) -> str | None:
    await asyncio.sleep(0)
    return positive(invoice)


def positive_or_raise(invoice: Invoice) -> None:
    if words := positive(invoice):
        raise ToolError(words)


@pytest.mark.spec("L-10")
@pytest.mark.parametrize("check", [positive, positive_later, positive_or_raise])
@MODES
async def test_a_check_may_say_again_because(mode: str, check: Any) -> None:
    agent, model = build(
        mode, '{"number": 7, "dollars": 0}', GOOD, output_type=OutputType(Invoice, check=check)
    )
    assert (await agent.run("Read it.", session="s")).output == VALUE
    assert "an invoice is over more than 0" in encode(model.requests[1].messages[-1].parts).decode()
    await check_replay(agent)


@MODES
async def test_a_check_that_breaks_ends_the_run_and_says_whose_fault_it_is(mode: str) -> None:
    def broken(invoice: Invoice) -> str | None:
        raise KeyError("customer")

    agent, _ = build(mode, GOOD, output_type=OutputType(Invoice, check=broken))
    with pytest.raises(AgentError, match="the check of output type Invoice raised KeyError") as caught:
        await agent.run("Read it.", session="s")
    assert caught.value.code == "HookFailed"
    await check_replay(agent)


async def test_text_may_be_checked_too() -> None:
    output = OutputType(str, check=lambda text: None if text.endswith(".") else "end with a full stop")
    agent, model = build("schema", "Hello", "Hello.", output_type=output)
    assert (await agent.run("Greet.", session="s")).output == "Hello."
    assert model.requests[0].output_schema is None
    assert model.requests[1].messages[-1].text.endswith("- end with a full stop\nAnswer again.")
    await check_replay(agent)


async def test_a_message_sent_while_the_output_is_checked_is_answered_first() -> None:
    async def slow(invoice: Invoice) -> None:
        if invoice.number == 7:
            await agent.send("s", "It was number 8.")

    model = ScriptedModel([GOOD, '{"number": 8, "dollars": 2.5}'])
    agent = Agent(model, store="memory:", output_type=OutputType(Invoice, check=slow))
    assert (await agent.run("Read it.", session="s")).output == Invoice(8, 2.5)
    await check_replay(agent)


# ── types ──


def test_a_type_without_a_schema_is_refused_where_it_is_given_and_the_field_is_named() -> None:
    agent, _ = build("schema")
    for type_ in (Holder, HolderStruct):
        for ask in (
            lambda type_=type_: Agent(ScriptedModel(), store="memory:", output_type=type_),
            lambda type_=type_: agent.run_stream("Go.", output_type=type_),
        ):
            with pytest.raises(AgentError, match="field 'odd'") as caught:
                ask()
            assert caught.value.code == "ConfigInvalid"


async def test_a_run_may_ask_for_another_type_than_its_agent_or_for_text() -> None:
    agent, _ = build("schema", GOOD, '{"name": "Rex"}', "Rex it is.", output_type=Invoice)
    session = agent.session("s")
    assert (await session.run("Read it.")).output == VALUE
    assert (await session.run("Whose dog?", output_type=Pet)).output == Pet(name="Rex")
    plain = await session.run("Say it.", output_type=str)
    assert plain.output == plain.text == "Rex it is."
    await check_replay(agent)


async def test_a_tool_of_the_same_name_is_refused_where_a_tool_gives_the_output() -> None:
    @tool(name=FINAL_ANSWER)
    def own() -> str:
        """Mine."""
        return "x"

    agent, _ = build("tool", GOOD, tools=[own], output_type=Invoice)
    with pytest.raises(AgentError, match="give your tool another"):
        await agent.run("Read it.")


# ── streams, the background, other processes ──


@pytest.mark.spec("L-10")
@MODES
async def test_partial_values_grow_start_again_and_end_with_the_checked_one(mode: str) -> None:
    agent, _ = build(mode, '{"number": 6}', GOOD)
    async with agent.run_stream("Read it.", output_type=Invoice) as run:
        seen = [value async for value in run.partial]
    numbers = [value.number for value in seen if value.number is not None]
    assert numbers[0] == 6 and seen[-1] == VALUE
    assert all(first != second for first, second in pairwise(seen))
    assert run.finished().output is not None


async def test_partial_values_of_a_failed_run_end_and_its_result_raises() -> None:
    agent, _ = build("schema", BAD, limits=Limits(max_corrections=0))
    async with agent.run_stream("Read it.", output_type=Invoice) as run:
        assert [value.number async for value in run.partial][-1] == 7
        with pytest.raises(AgentError, match="OutputInvalid"):
            await run.result()


def test_partial_values_without_an_event_loop() -> None:
    agent, _ = build("schema", GOOD)
    assert list(agent.run_stream_sync("Read it.", output_type=Invoice).partial)[-1] == VALUE


async def test_partial_text_of_a_run_without_a_type() -> None:
    agent, _ = build("schema", "One two.")
    async with agent.run_stream("Count.") as run:
        seen = [text async for text in run.partial]
    assert seen[-1] == "One two." and all(seen[-1].startswith(text) for text in seen)


async def test_watchers_see_the_output_and_the_log_tells_it_as_json() -> None:
    agent, _ = build("schema", '{"value": [1, 2]}', output_type=list[int])
    run = await agent.start("Count.", session="s")
    ended = [event async for event in run.events() if isinstance(event, RunEnded)]
    assert ended[0].result.output == [1, 2] == (await run.result()).output
    again = [event async for event in agent.session("s").events() if isinstance(event, RunEnded)]
    assert again[0].result.output == [1, 2]
    assert encode(again[0].result) == encode(ended[0].result)


@pytest.mark.spec("L-10")
@MODES
@pytest.mark.parametrize("typed", [True, False])
async def test_a_run_is_resumed_with_its_type_or_with_what_the_log_has_of_it(mode: str, typed: bool) -> None:
    agent, model = build(mode, BAD, GOOD)
    await agent.submit("Read it.", session="s", output_type=Invoice)
    session = agent.session("s")
    result = await session.resume(output_type=Invoice) if typed else await session.resume()
    assert result is not None and model.calls == 2
    assert result.output == (VALUE if typed else {"number": 7, "dollars": 2.5})
    await check_replay(agent)


async def test_a_run_that_was_asked_for_text_is_not_resumed_as_another_type() -> None:
    agent, _ = build("schema", "Done.")
    await agent.submit("Read it.", session="s")
    with pytest.raises(AgentError, match="started without an output type"):
        await agent.session("s").resume(output_type=Invoice)
    result = await agent.resume("s")
    assert result is not None and result.output == "Done."


async def test_a_run_is_resumed_with_a_model_that_takes_no_schema() -> None:
    stage = Stage(store=MortalStore())
    first = stage.agent([], output_type=Invoice)
    await first.submit("Read it.", session="s")
    other = ScriptedModel([BAD, GOOD], features=["text"])
    agent = Agent(other, store=stage.store, output_type=Invoice)
    result = await agent.resume("s")
    assert result is not None and result.output == VALUE
    assert [request.output_schema for request in other.requests] == [None, None]
    await check_replay(agent)


async def test_an_answer_whose_process_died_before_it_was_checked_is_not_asked_for_again() -> None:
    stage = Stage(store=MortalStore())

    def die(invoice: Invoice) -> None:
        assert isinstance(stage.store, MortalStore)
        stage.store.dead = True

    first = stage.agent([GOOD], output_type=OutputType(Invoice, check=die))
    with pytest.raises(AgentError):
        await first.run("Read it.", session="s")
    assert isinstance(stage.store, MortalStore)
    stage.store.dead = False
    model = ScriptedModel()
    result = await Agent(model, store=stage.store, output_type=Invoice).resume("s")
    assert result is not None and result.output == VALUE and model.calls == 0


# ── tools that end a run ──


@tool(ends_run=True)
def hand_over(to: str) -> str:
    """Hand the case over to a person."""
    if to == "nobody":
        raise ToolError("there is nobody; name somebody")
    return f"{to} takes over"


def hand(to: str) -> Turn:
    return Turn(tool_calls=[{"name": "hand_over", "arguments": {"to": to}}])


@pytest.mark.spec("L-10")
async def test_a_run_ends_when_the_record_of_a_tool_that_ends_it_is_in() -> None:
    model = ScriptedModel([hand("nobody"), hand("Ann"), "What else?"])
    agent = Agent(model, tools=[hand_over], store="memory:")
    result = await agent.run("Help me.", session="s")
    assert (result.status, result.output, model.calls) == ("completed", "Ann takes over", 2)
    assert [entry.kind for entry in await agent.session("s").entries()][-2:] == ["tool_results", "run_ended"]
    await check_replay(agent)
    assert (await agent.run("And now?", session="s")).text == "What else?"
    await check_replay(agent)


async def test_the_other_calls_of_the_answer_are_answered_before_the_run_ends() -> None:
    @tool
    def note(text: str) -> str:
        """Note something."""
        return "noted"

    both = [*hand("Ann").tool_calls, {"name": "note", "arguments": {"text": "handed over"}}]
    agent = Agent(ScriptedModel([Turn(tool_calls=both)]), tools=[hand_over, note], store="memory:")
    assert (await agent.run("Help me.", session="s")).output == "Ann takes over"
    kinds = [entry.kind for entry in await agent.session("s").entries()]
    assert kinds.count("tool_results") == 2
    await check_replay(agent)


async def test_what_a_tool_that_ends_the_run_returns_is_checked_against_the_type() -> None:
    @tool(ends_run=True)
    def book(number: int) -> Invoice:
        """Book an invoice."""
        return Invoice(number, 2.5)

    def asked(number: int) -> Turn:
        return Turn(tool_calls=[{"name": "book", "arguments": {"number": number}}])

    agent = Agent(ScriptedModel([asked(7)]), tools=[book], store="memory:", output_type=Invoice)
    assert (await agent.run("Book it.", session="s")).output == VALUE
    await check_replay(agent)


async def test_a_late_answer_of_a_tool_that_ends_the_run_ends_it() -> None:
    @tool(ends_run=True)
    def ask(question: str) -> ToolResult:
        """Ask a person."""
        return ToolResult.deferred("a person answers", question=question)

    model = ScriptedModel([Turn(tool_calls=[{"name": "ask", "arguments": {"question": "Yes?"}}])])
    agent = Agent(model, tools=[ask], store="memory:")
    assert (await agent.run("Go.", session="s")).status == "awaiting_human"
    (call,) = [e.payload for e in await agent.session("s").entries() if e.kind == "tool_deferred"]
    await agent.session("s").answer(call.tool_call_id, "Yes.")
    result = await agent.resume("s")
    assert result is not None and (result.status, result.output, model.calls) == ("completed", "Yes.", 1)
    await check_replay(agent)


async def test_the_request_of_a_run_without_a_type_is_as_it_was() -> None:
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return "Hello."

    agent = Agent(ScriptedModel(default=answer), store="memory:")
    result = await agent.run("Hello?", session="s")
    assert result.output == "Hello." and seen[0].output_schema is None and seen[0].tool_choice is None
    (started,) = [e for e in await agent.session("s").entries() if e.kind == "run_started"]
    assert b"output" not in encode(started)
