"""C. Context."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import AgentError
from turnlog.context import ContextOptions
from turnlog.contract import Message, encode
from turnlog.testing import Turn

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(200))
SMALL = ContextOptions(window=8_000)


def wire(request: Any) -> bytes:
    return encode([request.system_prompt, list(request.tool_specs), list(request.messages)])


def paired(messages: list[Message]) -> bool:
    """Every call is followed by its result, and no result stands without its call."""
    owed: list[str] = []
    for message in messages:
        if [part.payload.tool_call_id for part in message.tool_results] != owed:
            return False
        owed = [part.payload.tool_call_id for part in message.tool_calls]
    return owed == []


@pytest.mark.spec("C-2")
async def test_what_the_model_saw_at_any_call_can_be_shown_again() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("look", place="gate")), "Quiet.", "Bye.")
    await agent.run("Look.", session="s")
    await agent.run("Thanks.", session="s")
    assert desk.model is not None
    for number, request in enumerate(desk.model.requests, 1):
        view = await agent.session("s").explain(call=number)
        assert view.matches
        assert encode(list(view.messages)) == encode(list(request.messages))


@pytest.mark.spec("C-3")
async def test_the_wire_only_grows() -> None:
    desk = Desk()
    agent = desk.agent(
        asks_for(call("look", place="gate"), call("look", place="sea")), "Quiet.", "Two.", "Three."
    )
    for text in ("Look.", "And?", "And now?"):
        await agent.run(text, session="s")
    assert desk.model is not None and len(desk.model.requests) == 4
    for earlier, later in pairwise(desk.model.requests):
        assert encode(list(later.messages)).startswith(encode(list(earlier.messages))[:-1])
        assert (later.system_prompt, later.tool_specs) == (earlier.system_prompt, earlier.tool_specs)


async def long_session(desk: Desk, turns: int, **options: Any) -> None:
    agent = desk.agent(
        *[turn for n in range(turns) for turn in (asks_for(call("look", place=f"{n} {LONG}")), f"Seen {n}.")],
        context=SMALL,
        **options,
    )
    for n in range(turns):
        await agent.run(f"Question {n}: what of place {n}?", session="s")


@pytest.mark.spec("C-5")
async def test_pairs_stay_whole_and_the_users_words_stay_verbatim_over_many_folds() -> None:
    desk = Desk()
    await long_session(desk, 14)
    assert len(await desk.of_kind("fold")) >= 2
    assert desk.model is not None
    for request in desk.model.requests:
        messages = list(request.messages)
        assert paired(messages[:-1] if messages[-1].role == "user" else messages)
    seen = encode(desk.seen).decode()
    for n in range(14):
        assert f"Question {n}: what of place {n}?" in seen


@pytest.mark.spec("C-5")
@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_pairs_stay_whole_at_every_step_of_an_overflow(steps: int) -> None:
    """A provider that refuses one, two or three times: each step folds more, none parts a pair."""
    desk = Desk()
    await long_session(desk, 4)
    overflow = Turn(error={"code": "ModelContextOverflow", "message": "too long"})
    agent = desk.agent(*[overflow] * steps, "Fits.", context=ContextOptions(window=60_000))
    before = len(await desk.of_kind("fold"))
    assert (await agent.run("One more question.", session="s")).text == "Fits."
    assert len(await desk.of_kind("fold")) == before + steps
    assert desk.model is not None
    sizes = [len(wire(request)) for request in desk.model.requests]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes), "each is smaller"
    for request in desk.model.requests:
        assert paired(list(request.messages)[:-1])
        assert "One more question." in encode(list(request.messages)).decode()


@pytest.mark.spec("C-5")
async def test_a_pending_approval_is_never_folded_away() -> None:
    desk = Desk()
    await long_session(desk, 4)
    first = desk.agent(asks_for(call("pay", amount=5)), context=SMALL)
    assert (await first.run("Pay.", session="s")).status == "awaiting_human"
    [waiting] = await first.session("s").pending()
    await first.session("s").approve(waiting, by="ann")
    overflow = Turn(error={"code": "ModelContextOverflow", "message": "too long"})
    result = await desk.agent(overflow, "Paid.", context=SMALL).resume("s")
    assert result is not None and result.text == "Paid."
    assert (False, "paid 5") in results_in(desk.seen)


async def test_an_overflow_that_no_fold_mends_is_a_typed_error_after_three_steps() -> None:
    desk = Desk()
    await long_session(desk, 4)
    overflow = Turn(error={"code": "ModelContextOverflow", "message": "too long"})
    result = await desk.agent(*[overflow] * 9).run("And?", session="s", check=False)
    assert result.last_error is not None and result.last_error.code == "ContextOverflow"
    assert len(await desk.of_kind("model_call_failed")) <= 4


async def test_one_message_that_is_too_large_by_itself_is_shrunk() -> None:
    desk = Desk()
    overflow = Turn(error={"code": "ModelContextOverflow", "message": "too long"})
    result = await desk.agent(overflow, "I see.").run(f"Read this:\n{LONG * 10}", session="s")
    assert result.text == "I see."
    assert desk.model is not None
    first, second = desk.model.requests
    assert len(wire(second)) < len(wire(first))


@pytest.mark.spec("C-7")
async def test_runtime_data_is_stable_and_hints_enter_when_they_changed_and_stay() -> None:
    desk = Desk()
    agent = desk.agent("One.", "Two.", "Three.")
    for hints in ({"time": "noon"}, {"time": "noon"}, {"time": "night"}):
        await agent.run("Go.", session="s", runtime_data={"os": "linux"}, runtime_hints=hints)
    assert desk.model is not None
    prompts = {request.system_prompt for request in desk.model.requests}
    assert len(prompts) == 1 and "linux" in (prompts.pop() or "")
    first, second, third = (encode(list(request.messages)).decode() for request in desk.model.requests)
    assert (first.count("noon"), second.count("noon")) == (1, 1), "unchanged hints are not said again"
    assert third.count("noon") == 1 and third.count("night") == 1


async def test_what_was_folded_is_found_by_words_the_same_every_time() -> None:
    desk = Desk()
    await desk.agent("Noted.", context=SMALL).run("The gate opens with zebra-741.", session="s")
    await long_session(desk, 12)
    assert await desk.of_kind("fold")
    found: list[Any] = []
    for _ in range(2):
        agent = desk.agent(asks_for(call("recall", query="zebra gate")), "Found.", context=SMALL)
        await agent.run("What opens the gate?", session="s")
        found.append(results_in(desk.seen)[-1])
    assert not found[0][0] and "zebra-741" in found[0][1]
    assert found[1][1].count("zebra-741") >= 1
    assert (await desk.agent().session("s").replay()).identical


async def test_a_head_that_leaves_no_room_is_refused_in_words() -> None:
    desk = Desk()
    agent = desk.agent("Hi.", instructions="word " * 20_000, context=SMALL)
    with pytest.raises(AgentError, match="system prompt and tools"):
        await agent.run("Hi.", session="s")
