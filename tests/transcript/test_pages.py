"""What a reader finds on the pages of a session: the words, what was decided, what went wrong."""

from __future__ import annotations

import base64
import re

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, Entry
from turnlog.history import MemoryStore, Session
from turnlog.loop import fork_session
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import ScriptedModel, Turn
from turnlog.transcript import render_html, render_markdown
from turnlog.transcript._prose import plain_html, prose_html

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


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.split("<main>")[1]).split())


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
    html, markdown = text_of(render_html(entries)), render_markdown(entries)
    assert "approved by ann with other arguments: shipping" in html
    assert "ran with order: 4711, amount: 60 → refunded 60 for 4711" in html
    assert "waits for approval" in html
    assert "The call of refund was approved by ann with other arguments: shipping*" in markdown
    assert "- `amount`: `60`" in markdown and "- `amount`: `80`" in markdown
    assert "The call of refund waits for approval: tool 'refund' requires approval*" in markdown
    assert call.tool_call_id not in html + markdown


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
    for page in (render_markdown(entries), render_html(entries)):
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


async def test_an_image_of_a_tool_is_seen_without_opening_the_call() -> None:
    agent, store = await _tell(calls("chart"), "There.")
    await agent.run("Draw.", session="s1")
    entries = await _entries(store)
    (name,) = set(re.findall(r"sha256-[0-9a-f]{64}", render_markdown(entries)))
    page = render_html(entries, blobs={name: await store.get_blob(name)})
    assert re.search(r"</details><img alt=\"\" src=\"data:image/png;base64,", page)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("**so** `a < b` and `` ` ``", "<strong>so</strong> <code>a &lt; b</code> and <code>`</code>"),
        ("2 ** 3 ** 4 and `unclosed", "2 ** 3 ** 4 and `unclosed"),
        ("# A <i>title</i> #", "<h2>A &lt;i&gt;title&lt;/i&gt;</h2>"),
        ("#hashtag", "#hashtag"),
        (
            "| a | b |\n|---|:-:|\n| 1 | x\\|y |",
            '<tr>\n<td>1</td>\n<td style="text-align:center">x|y</td>\n</tr>',
        ),
        ("| no | table |\n| at | all |", "| no | table |<br />\n| at | all |"),
        ("```\n**a** | b\n```", "<pre>**a** | b</pre>"),
        ("```python\ndef f(): ...\n```", '<pre><span class="k">def</span>'),
        ("```<b>\n<i>\n```", "<pre>&lt;i&gt;</pre>"),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>"),
        ("[a](https://example.com/?a=1&b)", '<a href="https://example.com/?a=1&amp;b" rel='),
        ("[a](javascript:alert(1))", "[a](javascript:alert(1))"),
        ("[a](JaVaScript:alert(1))", "[a](JaVaScript:alert(1))"),
        ("[a](data:text/html,x)", "[a](data:text/html,x)"),
        ("[a](file:///etc/passwd) [b](/etc)", "[a](file:///etc/passwd) [b](/etc)"),
        ("![a](https://example.com/t.png)", "[image: a, https://example.com/t.png]"),
        ("https://example.com <https://example.com>", '<a href="https://example.com" rel='),
        ("~~~\nnever closed <b>", "<pre>never closed &lt;b&gt;</pre>"),
    ],
)
def test_the_marks_that_models_use(text: str, shown: str) -> None:
    assert shown in prose_html(text)


def test_what_a_user_wrote_stays_as_it_is_but_for_code() -> None:
    assert plain_html("**a**\n```\nb\n```\n# c") == (
        '<div class="text" dir="auto">**a**</div><pre>b</pre><div class="text" dir="auto"># c</div>'
    )


@pytest.mark.parametrize(
    "piece", ["`", "``a`", "**a ", "#", "# # x", "|", "| a ", "```\n", "~", "\\|", "*", "[", "<a "]
)
def test_no_text_takes_long_to_show(piece: str) -> None:
    prose_html(piece * 60_000)
    prose_html("# " + piece * 60_000 + "x")
    prose_html("|" + piece * 60_000 + "|\n|---|\n")


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
    assert "track.png" not in re.sub(r">[^<]*<", "><", html)


async def test_times_and_durations_are_told() -> None:
    agent, store = await _tell(calls("chart"), "There.")
    await agent.run("Draw.", session="s1")
    entries = await _entries(store)
    markdown, html = render_markdown(entries), render_html(entries)
    for entry in entries:
        if entry.kind in ("model_input", "model_output"):
            assert entry.timestamp[11:19] in markdown
            assert f'<time datetime="{entry.timestamp}"' in html
    assert re.search(r"\*\d\d:\d\d:\d\d, after \d+ ms\*", markdown)
    assert re.search(r"after \d+ ms · scripted", html)
    assert re.search(r"\*\*Result of `chart`\*\*, \d+ ms", markdown)


async def test_arguments_are_shown_as_they_read() -> None:
    body = "def f():\n    return '```'"
    agent, store = await _tell(calls("refund", order=body, amount=1))
    await agent.run("Pay.", session="s1")
    entries = await _entries(store)
    assert f"  ````\n  {body.replace(chr(10), chr(10) + '  ')}\n  ````" in render_markdown(entries)
    assert "<dt>order</dt><dd><pre>def f():\n    return &#x27;```&#x27;</pre></dd>" in render_html(entries)
    assert "<dt>amount</dt><dd><code>1</code></dd>" in render_html(entries)
