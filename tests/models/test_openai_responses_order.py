"""Events of a Responses stream twice, late, lost and of any kind: a whole answer, or an error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.responses_wire import (
    FAMILY,
    SEARCH,
    USAGE,
    answer,
    created,
    ended,
    function_call,
    hear,
    made,
    message,
    reasoning,
    said,
    sse,
    streamed,
    without,
)
from turnlog.contract import AgentError
from turnlog.models.openai_responses._stream import ResponsesReader
from turnlog.models.wire import ToolNames

ARGS = '{"city":"Bern"}'


# ── order ──


@pytest.mark.spec("D-4", "D-5")
@pytest.mark.parametrize("numbered", [True, False])
async def test_events_that_come_twice(numbered: bool) -> None:
    items = [reasoning("Hm, hm.", encrypted_content="e"), message("Hello, you."), function_call()]
    events = [{**one, "sequence_number": at} for at, one in enumerate(answer(*items))]
    whole = await hear(sse(events))
    if numbered:
        for twice in ([one for one in events for _ in (1, 2)], [*events[:9], *events[2:]]):
            heard = await hear(sse(twice))
            assert heard.parts == whole.parts, heard.error
        return
    # Without numbers a repeated event is only seen where what it says in whole is known.
    calm = without(
        [one for one in events for _ in range(1 if ".delta" in one["type"] else 2)], "sequence_number"
    )
    assert (await hear(calm, numbered=False)).parts == whole.parts
    doubled = without([one for one in events for _ in (1, 2)], "sequence_number")
    heard = await hear(doubled, numbered=False)
    assert heard.error is not None
    assert heard.error.error_code == "ModelProtocolError"


@pytest.mark.spec("D-4")
@pytest.mark.parametrize("step", [2, 3, 5])
async def test_events_in_a_wrong_order(step: int) -> None:
    items = [reasoning("Hm, hm.", encrypted_content="e"), message("Hello, you."), function_call()]
    events = [{**one, "sequence_number": at} for at, one in enumerate(answer(*items))]
    whole = await hear(sse(events))
    mixed = [one for at in range(0, len(events), step) for one in reversed(events[at : at + step])]
    heard = await hear(sse(mixed))
    if heard.error is None:
        assert (said(heard), made(heard)) == (said(whole), made(whole))
    else:
        assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)


@pytest.mark.spec("D-4")
@pytest.mark.parametrize("numbers", [lambda _: 0, lambda at: -at, lambda at: at * 7, lambda at: at // 2, str])
async def test_numbers_that_mean_nothing(numbers: Any) -> None:
    events = [{**one, "sequence_number": numbers(at)} for at, one in enumerate(answer(message("Hi Hi Hi.")))]
    heard = await hear(sse(events))
    assert (said(heard), heard.finish) == ([("text", "Hi Hi Hi.")], "stop")


@pytest.mark.spec("D-4", "D-5")
async def test_events_that_were_lost() -> None:
    events = [
        {**one, "sequence_number": at}
        for at, one in enumerate(answer(message("Hello, you."), function_call()))
    ]
    places = [at for at, one in enumerate(events) if ".delta" in one["type"]]
    for lost in places:
        heard = await hear(sse([*events[:lost], *events[lost + 1 :]]))
        if heard.error is None:  # the last piece is told again by the event that follows
            assert (said(heard), made(heard)) == ([("text", "Hello, you.")], [("weather", ARGS)])
        else:
            assert heard.error.error_code == "ModelProtocolError"
            assert heard.error.retryable


@pytest.mark.spec("D-6")
async def test_items_that_interleave() -> None:
    """OpenRouter says that the thinking is over after the message is."""
    thought = reasoning(id="rs_tmp", content=[{"type": "reasoning_text", "text": "Two and two."}])
    first, second = streamed(0, thought), streamed(1, message("Four."))
    heard = await hear([*created(), *first[:3], *second, *first[3:], ended(thought, message("Four."))])
    assert "".join(text for kind, text in said(heard) if kind == "thinking") == "Two and two."
    assert ("text", "Four.") in said(heard)
    kept = [data["item"] for _, _, data in heard.shape if data and "item" in data]
    assert kept == [thought]


# ── anything ──

_KINDS = [
    one["type"]
    for one in answer(reasoning("a", content=[{"type": "reasoning_text", "text": "b"}]), message())
]
_KINDS += [one["type"] for one in answer(function_call())] + [
    "response.incomplete",
    "response.refusal.delta",
    "",
]
_LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.text("ab{}", max_size=3)
_ITEMS = st.sampled_from(
    [message("ab"), reasoning("a"), function_call(), function_call(id="fc_2"), SEARCH, {}]
)
_PART = st.sampled_from([{"type": "output_text", "text": "ab"}, {"type": "refusal", "refusal": "b"}, {}])
_RESPONSE = st.fixed_dictionaries(
    {},
    optional={
        "output": st.lists(_ITEMS, max_size=3) | _LEAVES,
        "usage": st.just(USAGE) | _LEAVES,
        "error": _LEAVES,
        "status": st.sampled_from(["completed", "incomplete", "failed"]) | _LEAVES,
        "incomplete_details": st.just({"reason": "max_output_tokens"}) | _LEAVES,
    },
)
_EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(sorted(set(_KINDS)))},
    optional={
        "sequence_number": _LEAVES,
        "output_index": _LEAVES,
        "content_index": _LEAVES,
        "summary_index": _LEAVES,
        "item_id": st.sampled_from(["msg_1", "fc_1", "rs_1"]) | _LEAVES,
        "delta": st.text("ab", max_size=2) | _LEAVES,
        "text": _LEAVES,
        "arguments": st.just(ARGS) | _LEAVES,
        "item": _ITEMS | _LEAVES,
        "part": _PART | _LEAVES,
        "response": _RESPONSE | _LEAVES,
    },
)


@pytest.mark.spec("D-4", "P-4")
@settings(max_examples=300)
@given(st.lists(_EVENT | _LEAVES, max_size=8))
def test_nothing_a_server_says_breaks_the_reader(values: list[Any]) -> None:
    reader = ResponsesReader("m", names=ToolNames([]), provider="p", origin={"origin": FAMILY}, limit=5)
    with contextlib.suppress(AgentError):
        for value in values:
            reader.push("", json.dumps(value).encode())


_WHOLE = answer(reasoning("Hm, hm.", encrypted_content="e"), message("Hello, you."), function_call())
_HURTS = st.lists(
    st.tuples(st.sampled_from(["drop", "twice", "later", "swap"]), st.integers(0, len(_WHOLE) - 1)),
    max_size=4,
)


@pytest.mark.spec("D-4", "D-5", "D-6")
@settings(max_examples=400)
@given(_HURTS, st.booleans())
def test_an_answer_is_whole_or_an_error(hurts: list[tuple[str, int]], bare: bool) -> None:
    events = [{**one, "sequence_number": at} for at, one in enumerate(_WHOLE)]
    for how, at in hurts:
        at = min(at, len(events) - 1)
        match how:
            case "drop":
                del events[at]
            case "twice":
                events.insert(at, events[at])
            case "later":
                events.insert(min(at + 4, len(events) - 1), events.pop(at))
            case _:
                events[at : at + 2] = reversed(events[at : at + 2])
    if bare and any(how != "drop" for how, _ in hurts):
        bare = False  # without numbers nobody can tell that two equal pieces are one
    reader = ResponsesReader("m", names=ToolNames([]), provider="p", origin={"origin": FAMILY})
    chunks: list[Any] = []
    with contextlib.suppress(AgentError):
        for one in without(events, "sequence_number") if bare else events:
            chunks += reader.push("", json.dumps(one).encode())
    if reader.ended:
        found = {"text_delta": "", "args_text_delta": ""}
        for chunk in chunks:
            for name in found:
                found[name] += getattr(chunk, name, "") if "Thinking" not in type(chunk).__name__ else ""
        assert found == {"text_delta": "Hello, you.", "args_text_delta": ARGS}
