"""Logs carried out and in again: JSONL byte for byte, Markdown and HTML to read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from history.history_log import answer, call, code_of, open_session, results, write_everything
from turnlog.contract import (
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    RunEnded,
    text_part,
    thinking_part,
    user_message,
)
from turnlog.history import (
    MemoryStore,
    export_jsonl,
    fork,
    import_jsonl,
    open_store,
    verify,
)
from turnlog.system import SystemClock, SystemIds
from turnlog.transcript import render_html, render_markdown

URLS = ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"]
CLOCK, IDS = SystemClock(), SystemIds()
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


async def _filled(store: Any, session_id: str = "s1") -> None:
    session = await open_session(store, session_id, title="A <talk>", ids=IDS)
    image = ImagePart(payload=Image(mime_type="image/png", data=base64.b64encode(PNG).decode()))
    session.append_model_input(user_message([text_part("see this 漢字 \u2028 🜁"), image]))
    await session.commit()
    await write_everything(session)


@pytest.mark.spec("H-12")
@pytest.mark.parametrize("source", URLS)
@pytest.mark.parametrize("target", URLS)
async def test_a_log_goes_out_and_in_byte_for_byte(tmp_path: Path, source: str, target: str) -> None:
    one, two = open_store(source.format(tmp_path / "a")), open_store(target.format(tmp_path / "b"))
    await _filled(one)
    data = await export_jsonl(one, "s1")
    assert data.startswith(b"\n".join(row.body for row in await one.read("s1")))
    assert await import_jsonl(two, data) == "s1"
    assert await two.read("s1") == await one.read("s1")
    assert await export_jsonl(two, "s1") == data
    assert await verify(two, "s1") == []
    assert await import_jsonl(two, data) == "s1"  # again: nothing to do
    assert await export_jsonl(two, "s1", blobs=False) == data[: data.index(b'{"blob"')]
    await one.close()
    await two.close()


@pytest.mark.spec("H-12", "H-7")
async def test_forks_keep_their_shared_past_once() -> None:
    one, two = MemoryStore(), MemoryStore()
    await _filled(one)
    first = await fork(one, "s1", 5, "first", clock=CLOCK, ids=IDS)
    second = await fork(one, "s1", 9, "second", clock=CLOCK, ids=IDS)
    leaf = await fork(one, second, clock=CLOCK, ids=IDS)
    exports = {name: await export_jsonl(one, name) for name in ("s1", first, second, leaf)}
    for name, data in exports.items():
        assert await import_jsonl(two, data, trust=True) == name
    for name, data in exports.items():
        assert await export_jsonl(two, name) == data
        assert await verify(two, name) == []
    assert len(two._logs["s1"].own) == len(one._logs["s1"].own)
    assert len(two._logs[leaf].own) == 1


async def test_an_import_continues_a_log_and_never_changes_one() -> None:
    one, two = MemoryStore(), MemoryStore()
    session = await open_session(one, ids=IDS)
    session.append_custom("note", {"n": 1})
    await session.commit()
    early = await export_jsonl(one, "s1")
    session.append_custom("note", {"n": 2})
    await session.commit()
    late = await export_jsonl(one, "s1")
    await import_jsonl(two, early)
    await import_jsonl(two, late)
    await import_jsonl(two, early)
    assert await export_jsonl(two, "s1") == late
    other = MemoryStore()
    rival = await open_session(other, ids=IDS)
    rival.append_custom("note", {"n": "other"})
    await rival.commit()
    with pytest.raises(AgentError, match="differs from the import from entry 1") as error:
        await import_jsonl(other, late)
    assert code_of(error) == "InvalidEntry"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "holds no entry"),
        (lambda lines: [b"hello"], "line 1"),
        (lambda lines: lines[1:], "entry 1 is missing"),
        (lambda lines: [lines[0], *lines[2:]], "entry 2 is missing"),
        (lambda lines: [lines[0], lines[1].replace(b"see this", b"saw that"), *lines[2:]], "was changed"),
        (lambda lines: [lines[0].replace(b'sion":1', b'sion":8'), *lines[1:]], "upgrade turnlog"),
        (lambda lines: [*lines[:-1], b'{"blob":"sha256-x","data":"%"}'], "line 25"),
    ],
)
async def test_a_broken_import_writes_nothing(change: Any, words: str) -> None:
    one, two = MemoryStore(), MemoryStore()
    await _filled(one)
    lines = (await export_jsonl(one, "s1")).splitlines()
    with pytest.raises(AgentError, match=words):
        await import_jsonl(two, b"\n".join(change(lines)))
    assert await two.sessions() == []
    assert two._blobs == {}


@pytest.mark.spec("H-9")
async def test_an_export_leaves_redacted_content_behind() -> None:
    one, two = MemoryStore(), MemoryStore()
    await _filled(one)
    session = await open_session(one, ids=IDS)
    session.redact([session.entries[1].id])
    await session.commit()
    data = await export_jsonl(one, "s1")
    assert b"see this" not in data
    assert base64.b64encode(PNG)[:40] not in data
    await import_jsonl(two, data)
    assert await verify(two, "s1") == []
    assert await export_jsonl(two, "s1") == data


@pytest.mark.spec("H-12")
async def test_the_markdown_reads_as_a_conversation() -> None:
    store = MemoryStore()
    await _filled(store)
    page = render_markdown(await store.load("s1"))
    assert page.startswith("# A \\<talk>\n")
    order = [
        "## User",
        "## System",
        "find it",
        "## Assistant (gpt-5.2)",
        "**Calls `look`**",
        "found the words",
    ]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "approved by ana" in page
    assert "10 tokens in, 5 out, $0.2500" in page


async def test_code_in_a_result_cannot_end_its_block() -> None:
    session = await open_session(MemoryStore())
    session.append_model_output(answer(call("c1")))
    session.append_tool_results(results(("c1", "```\nnot the end\n`````\n")))
    await session.commit()
    page = render_markdown(session.entries)
    assert "``````\n```\nnot the end\n`````\n\n``````" in page


class _Tags(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.style = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        elif self.open[-1:] == ["script"]:
            self.scripts[-1] += data


@pytest.mark.spec("H-12")
async def test_the_html_is_one_safe_file() -> None:
    store = MemoryStore()
    attacks = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</style><script>alert(2)</script>",
        "<!-- ]]> {braces} {{more}} {0} &amp;",
        "javascript:alert(1)",
    ]
    session = await open_session(store, title=attacks[0], metadata={"x": attacks[0]}, ids=IDS)
    image = ImagePart(payload=Image(mime_type="image/png", data=base64.b64encode(PNG).decode()))
    remote = ImagePart(payload=Image(mime_type="image/png", url="https://evil.example/track.png"))
    vector = ImagePart(payload=Image(mime_type="image/svg+xml", data=base64.b64encode(b"<svg/>").decode()))
    file = FileRefPart(payload=FileRef(path=attacks[1]))
    for attack in attacks:
        session.set_system_instruction(attack)
        session.append_model_input(user_message([text_part(attack), image, remote, vector, file]))
        id = IDS.call()
        session.append_model_output(
            answer(
                thinking_part(attack),
                attack,
                call(id, attack, **{attack: attack}),
                finish_reason="tool_calls",
            )
        )
        session.append_tool_results(results((id, attack), name=attack))
        session.append_model_output(answer(f"code:\n```html\n{attack}\n```\nend"))
    await session.commit()
    name = re.search(rb"sha256-[0-9a-f]{64}", await export_jsonl(store, "s1"))
    assert name is not None
    blobs = {name[0].decode(): await store.get_blob(name[0].decode())}
    page = render_html(session.entries, blobs=blobs)
    parsed = _Tags()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    assert parsed.tags.count("script") == 2 and "img" not in parsed.tags  # the data, and the page's own
    assert set(parsed.links) == {"data:,"}
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for kind, text in (("script", parsed.scripts[1]), ("style", parsed.style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy  # and nothing else runs
    held = json.loads(parsed.scripts[0])
    said = [
        part["payload"].get("text") for entry in held["entries"] if entry["kind"] == "model_output"
        for part in entry["payload"]["message"]["parts"]
    ]  # fmt: skip
    assert set(attacks) <= set(said)
    assert list(held["pictures"].values()) == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]


async def test_an_empty_log_has_pages_too() -> None:
    assert render_markdown([]).startswith("# Conversation")
    assert "<title>Conversation</title>" in render_html([])


async def test_failures_are_told_to_the_reader() -> None:
    session = await open_session(MemoryStore())
    from history.history_log import FAILED, STARTED

    session.start_run("run_1", STARTED)
    session.append_model_input(user_message("go"))
    session.append_model_output(answer(call("c1")))
    session.fail_open_calls("no such <tool>")
    session.end_run(RunEnded(status="failed", error=FAILED))
    await session.commit()
    for page in (render_markdown(session.entries), render_html(session.entries)):
        assert "Run failed: ModelTimeout: no byte came" in page
        assert "failed" in page
