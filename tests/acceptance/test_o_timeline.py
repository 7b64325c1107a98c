"""O-4. The timeline: in a browser and in a terminal, of a run that another process drives."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("textual", reason="needs the extra 'tui'")
playwright: Any = pytest.importorskip("playwright.async_api", reason="needs the package playwright")

from cli.watched import watching  # noqa: E402
from server.served import TOKEN, served  # noqa: E402
from turnlog.history import open_store  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PROGRAM = """
import asyncio, json, pathlib
from turnlog import Agent, Approvals, load_model, tool
from turnlog.testing import Loopback, LoopbackAnswer

def answer(cached, text, call=None):
    usage = {"input_tokens": 1000 - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    events = [
        {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
    ]
    if call is not None:
        name, arguments = call
        block = {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}
        piece = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        events += [
            {"type": "content_block_start", "index": 1, "content_block": block},
            {"type": "content_block_delta", "index": 1, "delta": piece},
            {"type": "content_block_stop", "index": 1},
        ]
    why = "tool_use" if call is not None else "end_turn"
    events += [
        {"type": "message_delta", "delta": {"stop_reason": why}, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    ]
    return LoopbackAnswer.sse("".join(f"event: {e['type']}\\ndata: {json.dumps(e)}\\n\\n" for e in events))

async def ask(request):
    await asyncio.sleep(600)

@tool
async def look(place: str) -> str:
    "Look at a place."
    pathlib.Path("inside").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return f"There is a lamp in the {place}."

@tool(requires_approval=True)
def edit(path: str, old: str, new: str) -> str:
    "Edit a file."
    return f"edited {path}"

async def main():
    change = {"path": "store.py", "old": "return rows", "new": "return list(rows)"}
    answers = [
        answer(0, "Let me see.", ("look", {"place": "attic"})),
        answer(600, "Now the change.", ("edit", change)),
        answer(800, "All is done."),
    ]
    async with Loopback(*answers) as server:
        model = load_model("anthropic:claude-sonnet-4-5", api_key="sk-none-of-ours-0", base_url=server.url)
        parts = {"tools": [look, edit], "store": "sqlite:log.db", "approvals": Approvals(handler=ask)}
        async with Agent(model, **parts) as agent:
            print((await agent.run("What is in the attic?", session="s", title="The attic")).status)
        await model.close()

asyncio.run(main())
"""


@asynccontextmanager
async def run_elsewhere(folder: Path) -> AsyncIterator[Any]:
    """A process that drives session ``s``. It is inside its first tool until ``folder/go`` is there; then it
    asks before it edits."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    try:
        while not (folder / "inside").exists():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.spec("O-4")
async def test_the_terminal_shows_a_run_live_and_decides_on_its_call(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    async with run_elsewhere(tmp_path) as process, watching(url, "s", size=(180, 45)) as watch:
        await watch.until("Running", "What is in the attic?", "look attic", "● running")  # its entries, live
        await watch.until("1,000 tokens sent to call 1", "Let me see.")  # what the model saw, and answered
        (tmp_path / "go").touch()
        await watch.until("There is a lamp in the attic.", "Waits for your decision", "return list(rows)")
        await watch.until("60 % from cache", "New since call 1", "look: There is a lamp in the attic.")
        await watch.press("a")
        await watch.until_focused("approve")
        await watch.press("enter")
        text = await watch.until("Completed in", "approved by", "All is done.")
        assert "47 % cached" in text and "$" in text  # of all calls: reuse and cost
        out, _ = await process.communicate()
        assert out == b"completed\n", "the other process went on with the decision"
        await watch.press("k", "4")
        await watch.until("Input", "1,000 tokens", "From the cache", "800 tokens, 80 %", "Cost", "Took")


@pytest.mark.spec("O-4")
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
async def test_the_page_shows_a_run_live_and_decides_on_its_call(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/log.db")
    async with (
        run_elsewhere(tmp_path) as process,
        served(store) as server,
        playwright.async_playwright() as driver,
    ):
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await chromium.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(f"{server.address}/#token={TOKEN}")
        await page.click(".srow")
        await page.wait_for_selector(".tool .now")  # the tool is running
        (tmp_path / "go").touch()
        await page.wait_for_selector(".ask")
        conversation = await page.inner_text(".conv")
        for words in ("What is in the attic?", "Let me see.", "lamp in the attic", "return list(rows)"):
            assert words in conversation
        await page.keyboard.press("n")  # to what needs a person
        await page.wait_for_selector(".msgs li.new")
        detail = await page.inner_text(".detail")
        assert "tokens sent to call 2" in detail and "60 % from cache" in detail
        await page.click(".ask .approve")
        await page.wait_for_selector(".runline.end")
        out, _ = await process.communicate()
        assert out == b"completed\n"
        head = await page.inner_text(".shead")
        assert "$" in head and "cached" in head
        await chromium.close()
    await store.close()  # type: ignore[attr-defined]
