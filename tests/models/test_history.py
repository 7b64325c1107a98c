"""Histories made fit for a provider, and the encoded wire that is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.contract import (
    Image,
    Message,
    ToolCall,
    ToolCallPart,
    ToolResultPayload,
    ToolSpec,
    text_part,
    tool_result_part,
    user_message,
)
from turnlog.models._turns import FoldCache, Wire
from turnlog.models.wire import (
    NO_RESULT,
    ToolNames,
    complete_calls,
    data_url,
    is_strict,
    object_schema,
    own_data,
    result_text,
    safe_name,
    settled,
    short_id,
    split_data_url,
    split_system,
)


def assistant(*calls: str, text: str = "") -> Message:
    parts: list[Any] = [text_part(text)] if text else []
    parts += [
        ToolCallPart(payload=ToolCall(tool_call_id=one, tool_name="t", arguments={}, raw_args_text="{}"))
        for one in calls
    ]
    return Message(run_id="r", role="assistant", parts=parts, timestamp="t")


def tool(*calls: str) -> Message:
    return Message(
        run_id="r", role="tool", parts=[tool_result_part(one, f"of {one}") for one in calls], timestamp="t"
    )


def shape(messages: list[Message]) -> list[Any]:
    shown: list[Any] = []
    for one in messages:
        if one.role == "tool":
            shown.append(
                [
                    f"{p.payload.tool_call_id}{'?' * (p.payload.content == NO_RESULT)}"
                    for p in one.tool_results
                ]
            )
        else:
            shown.append(one.role[0] + "".join(p.payload.tool_call_id for p in one.tool_calls))
    return shown


U = user_message("u")
CASES: list[tuple[str, list[Message], list[Any]]] = [
    ("whole", [U, assistant("1", "2"), tool("1", "2"), assistant()], ["u", "a12", ["1", "2"], "a"]),
    ("out of order", [assistant("1", "2"), tool("2", "1")], ["a12", ["1", "2"]]),
    ("apart", [assistant("1", "2"), tool("1"), tool("2"), U], ["a12", ["1", "2"], "u"]),
    ("late", [assistant("1"), U, tool("1"), U], ["a1", ["1"], "u", "u"]),
    ("missing", [assistant("1", "2"), tool("2"), U], ["a12", ["1?", "2"], "u"]),
    ("none at all", [assistant("1"), assistant("2")], ["a1", ["1?"], "a2", ["2?"]]),
    ("twice", [assistant("1"), tool("1"), tool("1")], ["a1", ["1"]]),
    ("nobody's", [tool("9"), U, assistant("1"), tool("1", "8")], ["u", "a1", ["1"]]),
    (
        "of an earlier call",
        [assistant("1"), tool("1"), assistant("2"), tool("1", "2")],
        ["a1", ["1"], "a2", ["2"]],
    ),
]


@pytest.mark.spec("P-9")
@pytest.mark.parametrize(
    ("messages", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_every_call_has_its_result(messages: list[Message], expected: list[Any]) -> None:
    assert shape(complete_calls(messages)) == expected


def test_a_good_history_stays_the_same_objects() -> None:
    messages = [U, assistant("1", "2"), tool("1", "2"), assistant(text="x"), U, assistant("3"), tool("3")]
    assert all(one is other for one, other in zip(complete_calls(messages), messages, strict=True))


_STEPS = st.lists(st.sampled_from("uaAtTs"), max_size=14)


def _play(steps: list[str]) -> list[Message]:
    messages: list[Message] = []
    count = 0
    for step in steps:
        match step:
            case "u":
                messages.append(user_message(f"{len(messages)}"))
            case "s":
                messages.append(Message(run_id="r", role="system", parts=[text_part("s")], timestamp="t"))
            case "a":
                messages.append(assistant(text="x"))
            case "A":
                count += 2
                messages.append(assistant(str(count - 1), str(count)))
            case "t":
                messages.append(tool(str(count)))
            case _:
                messages.append(tool(str(count - 1), str(count)))
    return messages


def _encode(message: Message, before: Any) -> bytes:
    return f"{shape([message])}{message.text}".encode()


def _fold(cache: FoldCache[Wire], key: object, messages: tuple[Message, ...], encode: Any = _encode) -> Wire:
    return cache.fold(key, messages, lambda: Wire(encode, b"seed"), b"seed")  # type: ignore[arg-type]


@pytest.mark.spec("C-3", "C-8")
@given(_STEPS, st.lists(st.integers(0, 14), max_size=4))
def test_what_was_kept_is_what_would_be_encoded(steps: list[str], stops: list[int]) -> None:
    messages = tuple(_play(steps))
    cache: FoldCache[Wire] = FoldCache()
    for stop in [*sorted(stops), len(messages)]:
        part = messages[:stop]
        fresh, kept = _fold(FoldCache(), "k", part), _fold(cache, "k", part)
        assert (kept.data, kept.digest()) == (fresh.data, fresh.digest())
        assert fresh.data == b",".join(_encode(one, None) for one in complete_calls(part))
    assert settled(messages) <= len(messages)


def test_only_new_messages_are_encoded() -> None:
    seen: list[Message] = []

    def encode(message: Message, before: Any) -> bytes:
        seen.append(message)
        return b"x"

    cache: FoldCache[Wire] = FoldCache()
    messages: tuple[Message, ...] = ()
    for _ in range(50):
        messages = (*messages, user_message("u"), assistant(text="a"))
        _fold(cache, "k", messages, encode)
    assert len(seen) == 100
    _fold(cache, "other", messages, encode)
    assert len(seen) == 200
    changed = (user_message("else"), *messages[1:])
    assert _fold(cache, "k", changed, encode).digest() == _fold(cache, "k", messages, encode).digest()
    assert len(seen) == 400
    cache.fold("k", messages, lambda: Wire(encode, b"other"), b"other")
    assert len(seen) == 500, "another seed encodes all anew"


def test_the_cache_is_bounded() -> None:
    cache: FoldCache[Wire] = FoldCache(max_bytes=1000)
    seen: list[int] = []

    def fold(number: int) -> None:
        def encode(*_: Any) -> bytes:
            seen.append(number)
            return b"x" * 100

        _fold(cache, number, (user_message("u"),), encode)

    for number in range(100):
        fold(number)
    assert cache.size <= 1000
    seen.clear()
    for number in (99, 98, 0):
        fold(number)
    assert seen == [0], "the newest are kept, the oldest are gone"


@pytest.mark.spec("P-9")
@given(st.text(min_size=1, max_size=100))
def test_names_fit_and_come_back(name: str) -> None:
    wire = safe_name(name)
    assert 1 <= len(wire) <= 64
    assert wire.isascii()
    assert all(sign.isalnum() or sign in "_-" for sign in wire)
    spec = ToolSpec(name=name, description="", parameter_schema={})
    assert ToolNames([spec]).ours(wire) == name


def test_names_stay_apart() -> None:
    names = ["a.b", "a b", "a_b", "x" * 65, "x" * 66, "ä", "ö"]
    assert len({safe_name(name) for name in names}) == len(names)
    assert len(short_id("call_1", 9, "abc")) == 9
    assert short_id("call_1", 9, "abcdefgh") != short_id("call_2", 9, "abcdefgh")


@pytest.mark.spec("M-7")
def test_data_of_others_is_not_read() -> None:
    assert own_data({"origin": "a", "x": 1}, "a") == {"origin": "a", "x": 1}
    assert own_data({"origin": "b"}, "a") is None
    assert own_data({}, "a") is None
    assert own_data(None, "a") is None


def test_images_and_results() -> None:
    assert data_url(Image(mime_type="image/png", data="AA")) == "data:image/png;base64,AA"
    assert data_url(Image(mime_type="image/png", url="blob:sha256-0")) is None
    assert split_data_url("data:image/png;base64,AA") == ("image/png", "AA")
    assert split_data_url("https://x") is None
    assert result_text(ToolResultPayload(tool_call_id="1", is_error=False, content={"a": 1})) == (
        '{"a":1}',
        [],
    )


def test_the_system_prompt_apart() -> None:
    system = Message(run_id="r", role="system", parts=[text_part("s")], timestamp="t")
    texts, rest = split_system([system, U, system], "p")
    assert texts == ["p", "s"]
    assert list(rest) == [U, system]
    assert split_system([U], None) == ([], [U])


def test_schemas() -> None:
    assert object_schema({}) == {"type": "object", "properties": {}}
    closed = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
    assert is_strict(closed)
    assert not is_strict({**closed, "required": []})
    assert not is_strict({**closed, "additionalProperties": True})
    assert not is_strict({**closed, "properties": {"a": {"type": "object", "properties": {}}}})
    assert is_strict({**closed, "properties": {"a": {"enum": [{"type": "object"}]}}})
