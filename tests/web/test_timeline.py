"""The timeline in a real browser: what it shows, how it is steered, and that nothing a model wrote runs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("uvicorn", reason="needs the extra 'server'")
playwright: Any = pytest.importorskip("playwright.async_api", reason="needs the package playwright")

from server.served import TOKEN, served  # noqa: E402
from turnlog import Agent, AgentError, tool  # noqa: E402
from turnlog.history import MemoryStore  # noqa: E402
from turnlog.models import ScriptedModel, Turn  # noqa: E402
from turnlog.testing import FaultStore  # noqa: E402

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PAYLOADS = [
    "<script>window.hit=1</script>",
    "<img src=x onerror='window.hit=1'>",
    "<svg onload=window.hit=1></svg>",
    "[click](javascript:window.hit=1)",
    "<a href='javascript:window.hit=1'>x</a>",
    "![x](http://127.0.0.1:9/beacon.png)",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<style>@import 'http://127.0.0.1:9/x.css'</style>",
    "`</code><script>window.hit=1</script>`",
    "```html\n</pre><script>window.hit=1</script>\n```",
    "<details open ontoggle=window.hit=1>",
    "{{constructor.constructor('window.hit=1')()}}",
]


@tool
def look(place: str) -> str:
    """Look at a place."""
    if "script" in place:
        return place
    return f"There is a lamp in the {place}."


@tool(requires_approval=True)
def edit_file(path: str, old: str, new: str) -> str:
    """Edit a file."""
    return f"edited {path}"


def calls(name: str, **arguments: Any) -> Turn:
    return Turn(text="Let me see.", tool_calls=[{"name": name, "arguments": arguments}])


EDIT = calls("edit_file", path="store.py", old="return rows", new="return [with_key(row) for row in rows]")


class Browser:
    """One page of a real Chromium, signed in; what it complains about fails the test."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    async def open(self, place: str) -> Any:
        await self.page.goto(f"{self.address}/{place}")
        return self.page


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    model = ScriptedModel(
        [calls("look", place="attic"), "A **lamp**.\n\n- old\n- dusty", EDIT, "Done.", "One more."]
    )
    store = f"sqlite:{tmp_path / 'log.db'}"
    async with Agent(model, tools=[look, edit_file], store=store, instructions="You are a butler.") as made:
        await made.run("What is in the attic?", session="attic", title="The attic")
        yield made


@pytest.fixture
async def browser(agent: Agent) -> AsyncIterator[Browser]:
    async with served(agent) as server, playwright.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await chromium.new_page(viewport={"width": 1440, "height": 900})
        opened = Browser(page, server.address)
        await opened.open(f"#token={TOKEN}")
        await page.wait_for_selector(".srow")
        yield opened
        assert opened.problems == []
        outside = [url for url in opened.asked if not url.startswith((server.address, "data:"))]
        assert outside == []
        await chromium.close()


@in_browser
async def test_a_session_is_found_and_read(browser: Browser) -> None:
    page = browser.page
    assert "#token" not in page.url  # what lets in does not stay in the address
    assert await page.inner_text(".srow b") == "The attic"
    await page.click(".srow")
    await page.wait_for_selector(".prose strong")
    conversation = await page.inner_text(".conv")
    for words in ("What is in the attic?", "Let me see.", "look", "attic", "A lamp.", "Completed"):
        assert words in conversation
    assert await page.locator(".prose li").count() == 2
    await page.wait_for_selector(".msgs li.new")
    detail = await page.inner_text(".detail")
    assert "tokens sent to call 2" in detail and "byte for byte what was sent" in detail
    assert "There is a lamp in the attic." in detail


@in_browser
async def test_keys_move_between_steps_and_tabs(browser: Browser) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row.sel")
    await page.keyboard.press("g")
    await page.keyboard.press("g")
    assert await page.get_attribute(".row.sel", "class") != ""
    first = await page.get_attribute(".row.sel", "data-seq")
    await page.keyboard.press("J")
    assert int(await page.get_attribute(".row.sel", "data-seq")) > int(first)
    await page.keyboard.press("j")
    await page.keyboard.press("2")
    await page.wait_for_selector(".raw")
    selected = await page.get_attribute(".tabs [aria-selected=true]", "role")
    assert selected == "tab" and "Raw" in await page.inner_text(".tabs [aria-selected=true]")
    await page.keyboard.press("?")
    await page.wait_for_selector("dialog[aria-label=Keys]")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await page.fill("dialog input", "lamp in the")
    await page.wait_for_selector("dialog [role=option]:has-text('The attic')")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog", state="detached")


@in_browser
async def test_a_run_is_watched_live_and_its_call_decided_in_the_browser(
    browser: Browser, agent: Agent
) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row.sel")
    await page.fill(".comp input:not([type=file])", "Please edit the store.")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".scroll .ask")
    card = await page.inner_text(".scroll .ask")
    assert "store.py" in card and "return rows" in card and "with_key" in card
    await page.keyboard.press("Escape")
    await page.click(".row.k-run_started >> nth=0")
    await page.keyboard.press("a")
    assert (await agent.session("attic").state()).status == "awaiting_human"  # a key alone decides nothing
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".conv :text('Done.')")
    entries = await agent.session("attic").entries()
    decided = [entry for entry in entries if entry.kind == "approval_decided"]
    assert len(decided) == 1
    await page.wait_for_selector(".st.done")


@in_browser
async def test_another_reader_sees_a_run_of_this_process_as_it_happens(
    browser: Browser, agent: Agent
) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row.sel")
    await agent.run("Go on.", session="attic", check=False)
    await page.wait_for_selector(".scroll .ask")
    assert "Go on." in await page.inner_text(".conv")


@in_browser
async def test_another_result_is_tried_in_a_branch_and_compared(browser: Browser, agent: Agent) -> None:
    page = await browser.open("#/s/attic")
    await page.click(".row.k-tool")
    await page.keyboard.press("w")
    await page.fill("dialog textarea", "nothing in the attic")
    assert "turnlog rerun attic" in await page.inner_text("dialog .cmd")
    await page.wait_for_selector("dialog .will :text('from model call 2')")
    assert "tokens" in await page.inner_text("dialog .will")
    assert await agent.store.sessions(parent="attic") == []  # so far nothing was made
    await page.click("dialog >> text=Arguments")
    await page.fill("dialog textarea", '{"place": "shed"}')
    await page.wait_for_selector("dialog .warn:has-text('look was not recorded with these arguments')")
    await page.click("dialog >> text=Tool result")
    await page.click("text=Run the branch")
    await page.wait_for_selector(".pair.differs")
    await page.wait_for_selector(".cfacts")
    tree = await page.inner_text(".btree")
    assert "main" in tree and "#" in tree and await page.locator(".ab[aria-current]").count() == 2
    branches = await agent.store.sessions(parent="attic")
    assert len(branches) == 1
    entries = await agent.session(branches[0].session_id).entries()
    assert any(
        "nothing in the attic" in str(entry.payload) for entry in entries if entry.kind == "tool_results"
    )


@in_browser
async def test_files_are_picked_and_sent_with_a_message(browser: Browser, agent: Agent) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row.sel")
    picked = {"name": "dot.png", "mimeType": "image/png", "buffer": PNG}
    await page.set_input_files(".comp input[type=file]", [picked])
    await page.wait_for_selector(".attached li:has-text('dot.png')")
    wrong = {"name": "a.bin", "mimeType": "application/octet-stream", "buffer": b"\x00\x01\xff\xfe"}
    await page.set_input_files(".comp input[type=file]", [wrong])
    await page.wait_for_selector(".mid [role=alert]:has-text('a.bin is no picture')")
    await page.fill(".comp input:not([type=file])", "What is this?")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".row.k-input img[alt='dot.png']")
    assert await page.evaluate("document.querySelector('.row.k-input img').decode().then(() => true)")
    assert await page.locator(".attached li").count() == 0
    said = [entry for entry in await agent.session("attic").entries() if entry.kind == "model_input"][-1]
    assert [part.kind for part in said.payload.message.parts] == ["text", "image"]


@in_browser
async def test_two_browsers_decide_at_once_and_one_of_them_is_told(browser: Browser, agent: Agent) -> None:
    await agent.run("Please edit the store.", session="attic", check=False)
    other = await browser.page.context.browser.new_page()
    await other.goto(f"{browser.address}/#token={TOKEN}")
    await other.wait_for_selector(".srow")
    for page in (browser.page, other):
        await page.goto(f"{browser.address}/#/s/attic")
        await page.wait_for_selector(".scroll .approve")
    await asyncio.gather(*[page.click(".scroll .approve") for page in (browser.page, other)])
    for page in (browser.page, other):
        await page.wait_for_selector(".conv :text('Done.')")
        await page.wait_for_selector(".scroll .ask", state="detached")
    entries = await agent.session("attic").entries()
    assert [entry.kind for entry in entries].count("approval_decided") == 1
    assert [entry.kind for entry in entries].count("tool_results") == 2


@in_browser
async def test_a_session_that_waits_opens_where_it_waits_and_the_inbox_tells_of_it(
    browser: Browser, agent: Agent
) -> None:
    words = "Paragraph.\n\n" * 60
    async with Agent(ScriptedModel([words, EDIT]), tools=[edit_file], store=agent.store) as other:
        await other.run("Write much.", session="long", title="A long one")
        await other.run("Now edit.", session="long", check=False)
    page = await browser.open("#/s/long")
    await page.wait_for_selector(".scroll .approve")
    await page.wait_for_timeout(300)
    shown = await page.evaluate(
        "() => { const card = document.querySelector('.scroll .ask').getBoundingClientRect();"
        " const box = document.querySelector('.scroll').getBoundingClientRect();"
        " return card.bottom <= box.bottom + 1 && card.top >= box.top; }"
    )
    assert shown
    await browser.open("#/inbox")
    await page.wait_for_selector(".inbox .ask:has-text('A long one')")
    assert "Let me see." in await page.inner_text(".inbox .ask")  # what the model said before it


@in_browser
async def test_what_is_erased_leaves_an_open_page_too(browser: Browser, agent: Agent) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row:has-text('What is in the attic?')")
    said = next(entry for entry in await agent.session("attic").entries() if entry.kind == "model_input")
    await agent.session("attic").purge([said.id], by="ann")
    await page.wait_for_selector(".row:has-text('What is in the attic?')", state="detached")
    await page.wait_for_selector(".conv strong:text('lamp')")  # the answer is drawn again, as Markdown
    await page.keyboard.press("1")
    await page.wait_for_selector(".detail :text('a part of it was hidden since')")
    assert "What is in the attic?" not in await page.inner_text("#app")


@in_browser
async def test_a_page_stays_readable_while_the_store_is_away(chromium: Any) -> None:
    away = False

    def hook(when: str, method: str, number: int) -> None:
        if away and when == "before":
            raise AgentError("SessionReadFailed", "the disk is gone", retryable=True)

    store = FaultStore(MemoryStore(), hook=hook)
    async with Agent(ScriptedModel(["Hello.", "Back."]), store=store) as agent:
        await agent.run("Hi", session="s1")
        async with served(agent) as server:
            page = await chromium.new_page()
            await page.goto(f"{server.address}/#token={TOKEN}")
            await page.click(".srow")
            await page.wait_for_selector(".conv :text('Hello.')")
            away = True
            await page.wait_for_selector(".banner:has-text('the disk is gone')")
            assert "Hello." in await page.inner_text(".conv")
            away = False
            await page.wait_for_selector(".banner", state="detached")
            await agent.run("Are you there?", session="s1")
            await page.wait_for_selector(".conv :text('Back.')")


@in_browser
async def test_nothing_that_a_model_or_a_tool_wrote_runs(browser: Browser, agent: Agent) -> None:
    text = "\n\n".join(PAYLOADS)
    model = ScriptedModel([calls("look", place=text), text])
    async with Agent(model, tools=[look], store=agent.store) as hostile:
        await hostile.run(text, session="hostile", title=PAYLOADS[1])
    page = await browser.open("#/")
    await page.wait_for_selector(".srow >> nth=1")
    await page.click(".srow:has-text('onerror')")
    await page.wait_for_selector(".prose")
    for tab in "12345":
        await page.keyboard.press(tab)
    await page.click(".row.k-tool")
    await page.keyboard.press("3")
    await page.wait_for_timeout(300)
    assert await page.evaluate("window.hit") is None
    assert await page.locator(".main script, .main iframe, .main img, .main style").count() == 0
    links = await page.evaluate("[...document.querySelectorAll('.conv a')].map(a => a.getAttribute('href'))")
    assert not [link for link in links if link.startswith("javascript")]
    assert PAYLOADS[0] in await page.inner_text(".conv")  # it is shown as it was written


@in_browser
async def test_a_long_session_keeps_the_page_small(browser: Browser, agent: Agent) -> None:
    async with Agent(ScriptedModel([], default="Fine."), store=agent.store) as talker:
        for number in range(300):
            await talker.run(f"Question {number}", session="long")
    page = await browser.open("#/s/long")
    await page.wait_for_selector(".row:has-text('Question 299')")
    assert await page.locator(".row").count() < 120
    await page.keyboard.press("g")
    await page.keyboard.press("g")
    await page.wait_for_selector(".row:has-text('Question 0')")
    assert await page.locator(".row").count() < 120
    await page.focus(".bars")
    assert "entry" in await page.get_attribute(".bars", "aria-valuetext")


@in_browser
@pytest.mark.parametrize("width", [420, 1024])
async def test_narrow_screens_show_all_without_scrolling_sideways(browser: Browser, width: int) -> None:
    page = browser.page
    await page.set_viewport_size({"width": width, "height": 860})
    for place in ("#/", "#/s/attic", "#/inbox"):
        await browser.open(place)
        await page.wait_for_timeout(300)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await browser.open("#/s/attic")
    await page.click(".row.k-tool")
    await page.wait_for_selector(".detail :text('tokens sent')")


@in_browser
async def test_without_the_token_the_page_asks_for_it(agent: Agent) -> None:
    async with served(agent) as server, playwright.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await chromium.new_page()
        await page.goto(f"{server.address}/#/s/attic")
        await page.fill("input[name=token]", "wrong")
        await page.click("text=Enter")
        await page.wait_for_selector("[role=alert]")
        assert "lamp" not in await page.content()
        await page.fill("input[name=token]", TOKEN)
        await page.click("text=Enter")
        await page.wait_for_selector(".conv")
        await chromium.close()


@in_browser
async def test_a_session_that_is_deleted_while_it_is_open_says_so(browser: Browser, agent: Agent) -> None:
    page = await browser.open("#/s/attic")
    await page.wait_for_selector(".row.sel")
    await agent.session("attic").delete()
    await page.wait_for_selector("text=This session is not here")


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        launched = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        await launched.close()


@in_browser
async def test_an_exported_session_opens_from_a_file_and_asks_nobody(
    chromium: Any, agent: Agent, tmp_path: Path
) -> None:
    text = "\n\n".join(PAYLOADS)
    model = ScriptedModel([calls("look", place=text), text, EDIT])
    async with Agent(model, tools=[look, edit_file], store=agent.store) as hostile:
        await hostile.run(text, session="s1", title="</script><script>window.hit=1</script>")
        await hostile.run("Please edit the store.", session="s1")
    secret = next(entry for entry in await agent.session("s1").entries() if entry.kind == "model_input")
    await agent.session("s1").fork(4, session="other")
    await agent.session("s1").redact([secret.id], by="ann")
    await agent.session("s1").export(tmp_path / "s1.html", format="html")
    page = await chromium.new_page(viewport={"width": 1440, "height": 900})
    opened = Browser(page, f"file://{tmp_path}")
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    await opened.open("s1.html")
    await page.wait_for_selector(".row.k-tool .ask")
    card = await page.inner_text(".scroll .ask")
    assert "with_key" in card and await page.locator(".ask button, .comp, .whatif, .top nav").count() == 0
    assert "other" in await page.inner_text(".tree")
    for key in "12345":
        await page.keyboard.press(key)
    await page.keyboard.press("g")
    await page.keyboard.press("g")
    await page.click(".row.k-tool >> nth=0")
    await page.keyboard.press("3")
    await page.keyboard.press("1")
    await page.wait_for_selector(".detail :text('tokens sent to call 1')")
    assert "[redacted]" in await page.inner_text(".conv")
    assert await page.evaluate("window.hit") is None
    assert PAYLOADS[0] in await page.inner_text(".conv")
    await page.keyboard.press("Control+k")
    await page.fill("dialog input", "with_key")
    await page.wait_for_selector("dialog [role=option]")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".row.sel .ask, .row.sel.k-model")
    assert opened.problems == [] and not [said for said in refused if "Content Security" in said]
    assert [url for url in opened.asked if not url.startswith("data:")] == [f"file://{tmp_path}/s1.html"]


@in_browser
async def test_an_exported_session_is_printed_whole_and_read_without_scripts(
    chromium: Any, agent: Agent, tmp_path: Path
) -> None:
    async with Agent(ScriptedModel([], default="Fine."), store=agent.store) as talker:
        for number in range(60):
            await talker.run(f"Question {number}", session="long")
    await agent.session("long").export(tmp_path / "long.html", format="html")
    page = await chromium.new_page(viewport={"width": 1440, "height": 900})
    await page.goto(f"file://{tmp_path}/long.html")
    await page.wait_for_selector(".row:has-text('Question 59')")
    assert "Question 0\n" not in await page.inner_text(".conv")
    await page.evaluate("dispatchEvent(new Event('beforeprint'))")
    words = await page.inner_text(".conv")
    assert all(f"Question {number}" in words for number in range(60))
    plain = await chromium.new_page(java_script_enabled=False)
    await plain.goto(f"file://{tmp_path}/long.html")
    words = await plain.inner_text("noscript, .plain")
    assert "Question 0" in words and "Question 59" in words


def test_the_built_page_is_that_of_its_sources() -> None:
    """`npm run build` in web/ writes the hash of what it read."""
    web = ROOT / "web"
    names = ["index.html", "package.json", "vite.config.ts"]
    names += [f"src/{path.name}" for path in sorted((web / "src").iterdir(), key=lambda path: path.name)]
    found = hashlib.sha256()
    for name in names:
        found.update(f"{name}\n".encode())
        found.update((web / name).read_bytes())
    built = ROOT / "src" / "turnlog" / "web"
    assert (built / "sources.sha256").read_text().strip() == found.hexdigest()
    assert sum(path.stat().st_size for path in built.rglob("*")) < 400_000


async def test_the_page_is_served_with_a_policy_that_lets_nothing_else_in(agent: Agent) -> None:
    async with served(agent) as server:
        answer = await server.client.get("/")
        policy = answer.headers["content-security-policy"]
        assert answer.status_code == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        for asset in ("timeline.js", "timeline.css"):
            assert (await server.client.get(f"/assets/{asset}")).status_code == 200
        assert (await server.client.get("/assets/../../pyproject.toml")).status_code == 404
        await asyncio.sleep(0)
