"""Where cache marks stand in a request."""

from __future__ import annotations

import pytest

from models.anthropic_wire import (
    HELLO,
    WEATHER,
    ask,
    calls,
    check_official,
    marks,
    results,
    says,
    thought,
)
from turnlog.contract import Message, text_part
from turnlog.models import CacheConfig, PromptPart


def rounds(count: int) -> list[Message]:
    history = list(HELLO)
    for number in range(count):
        history += [says(calls(f"c{number}")), results((f"c{number}", "ok"))]
    return history


@pytest.mark.spec("P-7")
async def test_marks_stand_where_a_later_call_finds_them() -> None:
    for count in range(40):
        body = await ask(rounds(count), [WEATHER], "Be brief.")
        places = marks(body)
        total = 2 * count + 1
        assert len(places) <= 4
        assert "system" in places
        assert places[-1] == str(total - 1)
        if count:  # the last block of the call before this one
            assert str(total - 3) in places
        anchors = list(range(14, total - 3, 15))
        assert (str(anchors[-1]) in places) if anchors else ("tools" in places)
    check_official(body)


async def test_marks_never_stand_on_thinking() -> None:
    answer = says(thought("t", signature="s"), calls("c1"))
    body = await ask([*HELLO, answer, results(("c1", "x"))])
    assert marks(body) == ["tools", "0", "3"]
    thoughtful = says("a", thought("t", signature="s"), "b")
    assert marks(await ask([*HELLO, thoughtful])) == ["0", "4"]


async def test_marks_can_be_changed_and_switched_off() -> None:
    hour = await ask(HELLO, config={"cache_config": CacheConfig(ttl="1h")})
    check_official(hour)
    assert hour["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert marks(await ask(HELLO, system="s", config={"cache_config": CacheConfig(strategy="off")})) == []
    assert marks(await ask(HELLO, cache_control={"type": "ephemeral"})) == []
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "late", "defer_loading": True}]
    body = await ask(HELLO, config={"server_tools": tools})
    assert ["cache_control" in tool for tool in body["tools"]] == [True, False]


def segment(text: str) -> Message:
    return Message(run_id="", role="user", parts=[text_part(text)], timestamp="", meta={"stable": True})


@pytest.mark.spec("P-7")
async def test_a_mark_stands_after_what_folds_leave_alone() -> None:
    for count in range(25):
        body = await ask([segment("one"), segment("two"), *rounds(count)], [WEATHER], "Be brief.")
        places = marks(body)
        assert len(places) <= 4
        assert "system" in places and "1" in places, "after the last segment"


@pytest.mark.spec("P-1", "P-7")
async def test_a_prompt_in_parts_is_marked_where_its_author_says() -> None:
    parts = [PromptPart(text="Rules.", cache=True), PromptPart(text="Today is Monday.")]
    body = await ask(HELLO, system="replaced", system_prompt_content=parts)
    check_official(body)
    assert body["system"] == [
        {"type": "text", "text": "Rules.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Today is Monday."},
    ]
