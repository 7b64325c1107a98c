"""Messages: the role rules, meta, what JSON cannot carry."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from turnlog.contract import (
    PART_KINDS,
    ROLE_PARTS,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    MessagePart,
    TokenUsage,
    ToolCall,
    ToolCallPart,
    decode,
    encode,
    find_unjson,
    request_of,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.contract._base import META_LIMIT, check_meta

PARTS: dict[str, Any] = {
    "text": text_part("hello"),
    "thinking": thinking_part("hm"),
    "tool_call": ToolCallPart(
        payload=ToolCall(tool_call_id="call_1", tool_name="add", arguments={}, raw_args_text="{}")
    ),
    "tool_result": tool_result_part("call_1", "3"),
    "image": ImagePart(payload=Image(mime_type="image/png", data="aGk=")),
    "file_ref": FileRefPart(payload=FileRef(path="/tmp/a.txt")),
}

# Written out once more, so that a change of the table in the contract is noticed here.
ALLOWED = {
    ("system", "text"),
    ("system", "thinking"),
    ("user", "text"),
    ("user", "image"),
    ("user", "file_ref"),
    ("assistant", "text"),
    ("assistant", "thinking"),
    ("assistant", "tool_call"),
    ("tool", "tool_result"),
}


def make(role: str, *parts: Any, **fields: Any) -> Message:
    return Message(run_id="run_1", role=role, parts=list(parts), timestamp="t", **fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.spec("M-2")
def test_the_kinds_are_six() -> None:
    assert tuple(PARTS) == PART_KINDS
    assert {cls.kind for cls in get_args(MessagePart)} == set(PART_KINDS)


@pytest.mark.spec("M-3")
@pytest.mark.parametrize("role", ROLE_PARTS)
@pytest.mark.parametrize("kind", PART_KINDS)
def test_role_rules(role: str, kind: str) -> None:
    wire = b'{"runId":"r","role":"%b","parts":[%b],"timestamp":"t"}' % (role.encode(), encode(PARTS[kind]))
    if (role, kind) in ALLOWED:
        assert make(role, PARTS[kind]).parts == [PARTS[kind]]
        assert decode(wire, Message).role == role
        return
    fill = next(PARTS[other] for other in sorted(ROLE_PARTS[role]))
    with pytest.raises(AgentError) as caught:
        make(role, fill, PARTS[kind])
    assert caught.value.code == "InvalidMessage"
    assert f"a {role} message cannot hold a {kind} part (part 1)" in caught.value.message
    assert caught.value.meta == {"role": role, "part": kind, "index": 1}
    with pytest.raises(AgentError, match=f"a {role} message cannot hold a {kind} part"):
        decode(wire, Message)


def test_a_role_that_does_not_exist() -> None:
    with pytest.raises(
        AgentError, match="role 'boss' does not exist; roles are system, user, assistant, tool"
    ):
        make("boss")


@pytest.mark.parametrize("wrong", ["hello", {"kind": "text"}, None, PARTS["text"].payload])
def test_what_is_not_a_part_is_named(wrong: object) -> None:
    with pytest.raises(AgentError, match=r"part 0 of a user message is a \w+, not a message part"):
        make("user", wrong)


@pytest.mark.spec("M-4")
def test_part_order_is_kept() -> None:
    parts = [text_part("a"), thinking_part("b"), text_part("c"), PARTS["tool_call"], text_part("d")]
    message = make("assistant", *parts)
    assert decode(encode(message), Message).parts == parts
    assert message.text == "acd"
    assert message.tool_calls == [PARTS["tool_call"]]


def test_views_of_a_message() -> None:
    assert user_message("hi").text == "hi"
    assert user_message([PARTS["image"], text_part("what is it?")]).text == "what is it?"
    assert make("tool", PARTS["tool_result"]).tool_results == [PARTS["tool_result"]]


# ── meta ──


@pytest.mark.spec("M-5")
@pytest.mark.parametrize("key", ["usage", "parse_errors", "a", "a1_b2", "trace__id"])
def test_meta_keys_that_are_snake_case(key: str) -> None:
    assert make("user", meta={key: 1}).meta == {key: 1}


@pytest.mark.spec("M-5")
@pytest.mark.parametrize("key", ["", "Usage", "traceId", "a-b", "a b", "_a", "1a", "ä", "a\n", 5])
def test_meta_keys_that_are_not(key: Any) -> None:
    with pytest.raises(AgentError, match="is not snake_case") as caught:
        make("user", meta={key: 1})
    assert caught.value.code == "InvalidMessage"


@pytest.mark.spec("M-5")
def test_meta_is_at_most_two_kilobytes() -> None:
    overhead = len(encode({"note": ""}))
    fits = make("user", meta={"note": "x" * (META_LIMIT - overhead)})
    assert len(encode(fits.meta)) == META_LIMIT == 2048
    with pytest.raises(
        AgentError, match="meta takes 2049 bytes, the limit is 2048; put large data"
    ) as caught:
        make("user", meta={"note": "x" * (META_LIMIT - overhead + 1)})
    assert caught.value.code == "MetaTooLarge"
    with pytest.raises(AgentError, match="MetaTooLarge"):
        make("user", meta={"note": "é" * 1024})  # bytes count, not characters
    with pytest.raises(AgentError, match="MetaTooLarge"):
        decode(
            b'{"runId":"","role":"user","parts":[],"timestamp":"","meta":{"a":"%b"}}' % (b"x" * 2050), Message
        )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "not finite"),
        (b"bytes", "a bytes is not JSON"),
        ({1: 2}, "the key 1 is not text"),
        ("\ud800", "unpaired surrogate"),
        (object(), "a object is not JSON"),
    ],
)
def test_meta_is_plain_json(value: Any, why: str) -> None:
    with pytest.raises(AgentError, match=why):
        make("user", meta={"a": [value]})


def test_meta_of_entries_is_called_an_entry() -> None:
    check_meta(None, "custom entry")
    check_meta({}, "custom entry")
    with pytest.raises(AgentError, match="custom entry: meta key") as caught:
        check_meta({"A": 1}, "custom entry", "InvalidEntry")
    assert caught.value.code == "InvalidEntry"


# ── what JSON cannot carry ──


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**53 + 1, 2**64, -(2**70), 1.5, -0.0, 1e308, "", "é", "\u0000", [], {}, [[1]],
        {"a": {"b": [None]}}, (1, 2),
    ],
)  # fmt: skip
def test_what_json_carries(value: object) -> None:
    assert find_unjson(value) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("inf"), "not finite"),
        (-float("inf"), "not finite"),
        ({"a": [1, float("nan")]}, "not finite (under 'a')"),
        ({1: 1}, "the key 1 is not text"),
        ({"\udc00": 1}, "unpaired surrogate"),
        ([10**5000], "thousands of digits"),
        ({1, 2}, "a set is not JSON"),
        (b"a", "a bytes is not JSON"),
    ],
)
def test_what_json_does_not_carry(value: object, why: str) -> None:
    assert why in (find_unjson(value) or "")


def test_depth_is_bounded_far_from_the_stack() -> None:
    def nest(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = {"a": value}
        return value

    assert find_unjson(nest(200)) is None
    assert "deeper than 200" in (find_unjson(nest(201)) or "")
    assert "deeper than 200" in (find_unjson(nest(50_000)) or "")


@pytest.mark.spec("M-4")
@pytest.mark.parametrize(
    "build",
    [
        lambda bad: make("user", text_part(bad if isinstance(bad, str) else "x", {"a": bad})),
        lambda bad: make("assistant", thinking_part("", {"a": {"b": bad}})),
        lambda bad: make("tool", tool_result_part("c", {"a": bad})),
        lambda bad: make(
            "assistant",
            ToolCallPart(
                payload=ToolCall(tool_call_id="c", tool_name="t", arguments={"a": bad}, raw_args_text="")
            ),
        ),
    ],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "\ud800"])
def test_what_would_not_come_back_is_refused(build: Any, bad: Any) -> None:
    with pytest.raises(AgentError) as caught:
        encode(build(bad))
    assert caught.value.code == "InvalidMessage"


@pytest.mark.spec("M-2")
def test_an_image_has_one_source() -> None:
    for fields in ({}, {"data": "a", "url": "b"}):
        with pytest.raises(AgentError, match="exactly one of data and url"):
            Image(mime_type="image/png", **fields)


# ── typed views ──


@pytest.mark.spec("M-6")
def test_a_call_as_a_request() -> None:
    call = ToolCall(tool_call_id="c", tool_name="add", arguments={"a": 1}, raw_args_text='{"a":1}')
    assert encode(request_of(call)) == (
        b'{"toolName":"add","toolCallId":"c","rawArguments":"{\\"a\\":1}","arguments":{"a":1}}'
    )
    broken = ToolCall(tool_call_id="c", tool_name="add", arguments=None, raw_args_text='{"a":')
    assert encode(broken) == b'{"toolCallId":"c","toolName":"add","arguments":null,"rawArgsText":"{\\"a\\":"}'
    assert request_of(broken).raw_arguments == '{"a":'
    assert request_of(broken).parse_error == "the arguments did not parse"
    assert request_of(broken, "line 1").parse_error == "line 1"


@pytest.mark.spec("M-6")
def test_usage_adds_up() -> None:
    first = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3, cost=0.5)
    second = TokenUsage(input_tokens=10, output_tokens=20, total_tokens=30, cached_input_tokens=4)
    assert first + second == TokenUsage(
        input_tokens=11, output_tokens=22, total_tokens=33, cached_input_tokens=4, cost=0.5
    )
    assert (first + first).cost == 1.0
    assert (second + second).cost is None
