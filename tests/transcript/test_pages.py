"""What a reader finds on the pages of a session: the words, what was decided, what went wrong."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, Entry
from turnlog.history import MemoryStore, Session
from turnlog.loop import fork_session
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import ScriptedModel, Turn
from turnlog.transcript import render_html, render_markdown

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@tool(requires_approval=True)
def refund(order: str, amount: float) -> str:
    """Pay back."""
    return f"refunded {amount:.0f} for {order}"


@tool
def chart() -> bytes:
    """Draw."""
    return PNG


def calls(name: str, **arguments: object) -> Turn:
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


async def _tell(*turns: object) -> tuple[Agent, MemoryStore]:
    store = MemoryStore()
    return Agent(ScriptedModel(list(turns)), tools=[refund, chart], store=store), store  # pyright: ignore[reportArgumentType]


async def _entries(store: MemoryStore, session: str = "s1") -> list[Entry]:
    return await store.load(session)


def session_in(page: str) -> Any:
    """The data that the timeline in a file works with."""
    return json.loads(page.split('<script type="application/json" id="session">')[1].split("</script>")[0])


def plain_in(page: str) -> str:
    """What is read where no script runs."""
    return unescape(page.split('<pre class="plain">')[1].split("</pre>")[0])


async def test_a_decision_is_told_with_its_call_and_what_ran_instead() -> None:
    ask = calls("refund", order="4711", amount=80)
    agent, store = await _tell(ask, "Paid.", ask)
    await agent.run("Refund 4711.", session="s1")
    (call,) = await agent.pending("s1")
    await agent.decide(
        "s1",
        call.tool_call_id,
        "modify",
        by="ann",
        arguments={"order": "4711", "amount": 60},
        note="shipping",
    )
    await agent.resume("s1")
    await agent.run("And again.", session="s1")
    entries = await _entries(store)
    page, markdown = render_html(entries), render_markdown(entries)
    assert plain_in(page) == markdown
    view = session_in(page)["view"]
    steps = [step for step in view["timeline"]["steps"] if step["kind"] == "tool"]
    assert [(step["status"], step.get("decision"), step.get("by")) for step in steps] == [
        ("done", "modify", "ann"),
        ("waiting", None, None),
    ]
    assert [each["requested"]["toolName"] for each in view["pending"]] == ["refund"]
    assert "The call of refund was approved by ann with other arguments: shipping*" in markdown
    assert "- `amount`: `60`" in markdown and "- `amount`: `80`" in markdown
    assert "The call of refund waits for approval: tool 'refund' requires approval*" in markdown
    assert call.tool_call_id not in markdown


async def test_what_was_hidden_cut_failed_or_forked_is_told() -> None:
    broken = AgentError("ModelAuthError", "no key")
    agent, store = await _tell("Hello.", Turn(text="Once upon", finish_reason="length"), broken)
    await agent.run("My number is 4711.", session="s1", check=False)
    session = await Session.open(store, "s1", clock=SystemClock(), ids=SystemIds())
    session.redact([entry.id for entry in session.entries if entry.kind == "model_input"], "a number", "ann")
    await session.commit()
    await agent.run("A story.", session="s1", check=False)
    await agent.run("Go on.", session="s1", check=False)
    await fork_session(store, "s1", target="s2")
    entries = await _entries(store, "s2")
    assert "4711" not in render_html(entries)
    for page in (render_markdown(entries), plain_in(render_html(entries))):
        assert "4711" not in page
        assert "1 entry hidden by ann: a number" in page
        assert "This answer stopped at its length limit" in page
        assert page.count("ModelAuthError: no key") == 1 and "Run failed" in page
        assert f"Forked from session s1 after its entry {len(await _entries(store))}" in page


async def test_a_page_is_named_after_its_title_or_the_first_words() -> None:
    agent, store = await _tell("Yes.")
    await agent.run("Is  it\n<b>true</b>?", session="s1")
    entries = await _entries(store)
    assert render_markdown(entries).startswith("# Is it \\<b>true\\</b>?\n")
    assert "<title>Is it &lt;b&gt;true&lt;/b&gt;?</title>" in render_html(entries)


async def test_pictures_are_in_the_file_and_no_other_bytes() -> None:
    agent, store = await _tell(calls("chart"), "There.")
    await agent.run("Draw.", session="s1")
    entries = await _entries(store)
    (name,) = set(re.findall(r"sha256-[0-9a-f]{64}", render_markdown(entries)))
    page = render_html(entries, blobs={name: await store.get_blob(name), "sha256-0": b"<svg onload=x>"})
    assert session_in(page)["pictures"] == {name: f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}


async def test_the_file_has_what_the_model_saw_at_every_call_once() -> None:
    agent, store = await _tell(calls("chart"), "There.", "Again.")
    await agent.run("Draw.", session="s1", instructions="Be kind.")
    await agent.run("Once more.", session="s1")
    held = session_in(render_html(await _entries(store)))
    shown: list[int] = []
    for call in held["calls"]:
        shown[call["known"] :] = call["added"]
        view = await agent.session("s1").explain(call["call"])
        found = [
            held["entries"][-place - 1]["payload"]["message"] if place < 0 else held["messages"][place]
            for place in shown
        ]
        assert [message["role"] for message in found] == [message.role for message in view.messages]
        assert call["contextHash"] == view.context_hash and len(call["gauge"]) == len(view.gauge)
        assert held["heads"][call["head"]]["systemPrompt"] == view.system_prompt
    assert held["calls"][0]["added"][0] < 0  # what an entry has is not there twice
    assert render_html(await _entries(store)) == render_html(await _entries(store))


async def test_branches_are_listed_in_the_file() -> None:
    agent, _ = await _tell("Hello.")
    await agent.run("Hi.", session="s1")
    await agent.session("s1").fork(3, session="other")
    page = (await agent.session("s1").export(format="html")).decode()
    assert [branch["sessionId"] for branch in session_in(page)["view"]["branches"]] == ["other"]
    with pytest.raises(AgentError, match="jsonl, html, markdown"):
        await agent.session("s1").export(format="pdf")  # pyright: ignore[reportArgumentType]


ATTACKS = [
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b[2J\x9b31m\x7f\u202e",
    "<script>alert(1)</script>",
    "text <iframe src=x></iframe> and `<b>` code <meta http-equiv=refresh content=0>",
    "> <script>\n> x\n\n- <b onclick=x>\n\n      <i>",
    "``<b>` <script>``` <i>",
    "![](https://example.com/track.png) ![a][b]\n\n[b]: https://example.com/track.png",
    "<!-- x -->\n<?php ?>\n<![CDATA[x]]>",
    "```\n<b>in a fence</b>\n```\n<b>",
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_in_a_page_runs_loads_or_moves_a_terminal(attack: str) -> None:
    from markdown_it import MarkdownIt

    agent, store = await _tell(attack, calls("refund", order=attack, amount=1))
    await agent.run(attack, session="s1", title=attack)
    await agent.run("Again.", session="s1")
    entries = await _entries(store)
    markdown, html = render_markdown(entries), render_html(entries)
    for page in (markdown, html):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        for kind in (token.type, *(child.type for child in token.children or ())):
            assert kind not in ("html_block", "html_inline", "image"), markdown
    data, outside = html.split('id="session">')[1].split("</script>")[0], html.count("<script")
    assert outside == 2 and "<" not in data and ">" not in data  # the page's own, and nothing that ends it
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", html.split('<script type="module">')[0])


async def test_times_and_durations_are_told() -> None:
    agent, store = await _tell(calls("chart"), "There.")
    await agent.run("Draw.", session="s1")
    entries = await _entries(store)
    markdown, html = render_markdown(entries), render_html(entries)
    for entry in entries:
        if entry.kind in ("model_input", "model_output"):
            assert entry.timestamp[11:19] in markdown
            assert entry.timestamp in html
    assert re.search(r"\*\d\d:\d\d:\d\d, after \d+ ms\*", markdown)
    assert all(
        "ms" in step for step in session_in(html)["view"]["timeline"]["steps"] if step["kind"] == "tool"
    )
    assert re.search(r"\*\*Result of `chart`\*\*, \d+ ms", markdown)


async def test_arguments_are_shown_as_they_read() -> None:
    body = "def f():\n    return '```'"
    agent, store = await _tell(calls("refund", order=body, amount=1))
    await agent.run("Pay.", session="s1")
    entries = await _entries(store)
    assert f"  ````\n  {body.replace(chr(10), chr(10) + '  ')}\n  ````" in render_markdown(entries)
