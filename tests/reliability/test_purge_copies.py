"""What is purged or redacted is gone with every copy that our own code made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop.context_stage import ContextStage
from turnlog import Agent, tool
from turnlog.context import ContextOptions
from turnlog.contract import AgentError, Entry, Store, encode
from turnlog.history import (
    export_jsonl,
    fork,
    import_jsonl,
    open_store,
    verify,
    visible_entries,
)
from turnlog.loop import compact_session, explain, fork_session, purge_entries, redact_entries, replay
from turnlog.testing import ScriptedModel, Turn
from turnlog.transcript import render_html, render_markdown
from turnlog.widgets import MemoryNotebookWidget, TodoWidget

SECRET = "opens with 7-4-1-9"
SESSION = "s1"
WORDS = " ".join(f"crate-{n} weighs {n * 3}" for n in range(600))
FOLDS = ContextOptions(preview_at=100_000, fold_at=4_000, min_freed_tokens=200)


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path}/store/log"


async def bytes_of(store: Store, folder: Path) -> bytes:
    """Whatever the store keeps: its rows, and its files as they are while it is still open."""
    names = [info.session_id for info in await store.sessions()]
    rows = b"".join([row.body for name in names for row in await store.read(name)])
    files = sorted(path for path in (folder / "store").rglob("*") if path.is_file())
    return rows + b"".join(path.read_bytes() for path in files)


@tool(timeout=None)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return f"hall {hall}: {WORDS}"


def call(name: str, /, **arguments: Any) -> Turn:
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


def agent_on(store: Store | str, *turns: Any, **options: Any) -> Agent:
    options.setdefault("widgets", [MemoryNotebookWidget(), TodoWidget()])
    return Agent(ScriptedModel(turns), store=store, tools=[stock], context=FOLDS, **options)


async def noted_by_model(store: Store) -> str:
    """The model writes it down; folds show it again and again. Returns the id of the event."""
    agent = agent_on(
        store,
        call("notebook_write", name="gate", text=SECRET),
        *[call("stock", hall=n) for n in range(4)],
        "Done.",
        "Still.",
    )
    await agent.run("Go.", session=SESSION)
    await agent.run("And now?", session=SESSION)
    return first(await store.load(SESSION), "widget_event").id


async def noted_by_host(store: Store) -> str:
    agent = agent_on(store, "Hello.", *[call("stock", hall=n) for n in range(4)], "Done.")
    await agent.run("Hi.", session=SESSION)
    entry = await agent.update_notebook(SESSION, {"gate": SECRET})
    assert entry is not None
    await agent.run("Go.", session=SESSION)
    return entry.id


def first(entries: list[Entry], kind: str) -> Any:
    return next(entry for entry in entries if entry.kind == kind)


NOTED: list[Callable[[Store], Any]] = [noted_by_model, noted_by_host]


@pytest.mark.spec("H-9", "H-5")
@pytest.mark.parametrize("noted", NOTED)
async def test_a_purged_note_is_in_no_byte_of_the_store(url: str, noted: Any, tmp_path: Path) -> None:
    store = open_store(url)
    event = await noted(store)
    entries = await store.load(SESSION)
    assert any(SECRET in (e.payload.screen or "") for e in entries if e.kind == "fold")  # it was copied
    await fork_session(store, SESSION, target="branch")
    await agent_on(store, call("stock", hall=9), "Branched.").run("More.", session="branch")
    assert SECRET.encode() in await bytes_of(store, tmp_path)
    logged = await purge_entries(store, SESSION, [event], by="ana", reason="asked to")
    assert SECRET.encode() not in await bytes_of(store, tmp_path)
    for name in (SESSION, "branch"):
        assert await verify(store, name) == []
        report = await replay(store, name, options=FOLDS)
        assert report.identical and report.unproven, report
    # What was not asked for is still there, and the log names all that is not.
    after = await store.load(SESSION)
    assert isinstance(logged.payload, type(after[-1].payload))
    gone, trimmed = set(after[-1].payload.entry_ids), set(after[-1].payload.trimmed)
    assert event in gone and trimmed
    for before, now in zip(entries, after, strict=False):
        assert before.payload == now.payload or now.id in gone | trimmed
    said = [e.payload.message.text for e in after if e.kind in ("model_input", "model_output")]
    assert said[0] in ("Go.", "Hi.") and said[-1] in ("Still.", "Done.")
    # The session goes on, and what it does from here is proven again.
    model = ScriptedModel([call("notebook_write", name="gate", text="is shut"), "Good."])
    agent = Agent(model, store=store, widgets=[MemoryNotebookWidget(), TodoWidget()], context=FOLDS)
    assert (await agent.run("Go on.", session=SESSION)).text == "Good."
    assert "is shut" in str(model.requests[-1].messages) and SECRET not in str(model.requests)
    assert await verify(store, SESSION) == []
    again = await replay(store, SESSION, options=FOLDS)
    assert again.identical and again.contexts >= 2
    await store.close()


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("noted", NOTED)
async def test_a_redacted_note_is_in_no_view_export_or_context(noted: Any, tmp_path: Path) -> None:
    store = open_store("memory:")
    event = await noted(store)
    await redact_entries(store, SESSION, [event], by="ana")
    entries = await store.load(SESSION)
    model = ScriptedModel(["Good."])
    agent = Agent(model, store=store, widgets=[MemoryNotebookWidget(), TodoWidget()], context=FOLDS)
    await agent.run("Go on.", session=SESSION)
    calls = sum(entry.kind == "model_call_started" for entry in entries)
    export = await export_jsonl(store, SESSION)
    for view in (
        b"".join(encode(entry) for entry in visible_entries(entries)),
        export,
        render_markdown(entries).encode(),
        render_html(entries).encode(),
        *[encode(explain(entries, n + 1, options=FOLDS)) for n in range(calls)],
        str(model.requests).encode(),
    ):
        assert SECRET.encode() not in view
    assert await verify(store, SESSION) == []
    assert (await replay(store, SESSION, options=FOLDS)).identical
    # What is carried away has the same proof.
    elsewhere = open_store(f"sqlite:{tmp_path}/elsewhere.db")
    await import_jsonl(elsewhere, export)
    assert await verify(elsewhere, SESSION) == []
    await elsewhere.close()


@pytest.mark.spec("H-9", "H-5")
async def test_what_a_purge_leaves_of_an_entry_cannot_be_changed_unseen() -> None:
    store = open_store("memory:")
    event = await noted_by_host(store)
    await purge_entries(store, SESSION, [event], by="ana")
    trimmed = next(e for e in await store.load(SESSION) if e.kind == "model_input" and e.trimmed_digest)
    bodies = {row.seq: row.body for row in await store.read(SESSION)}
    changed = bodies[trimmed.seq].replace(b'"Go."', b'"No."')
    assert changed != bodies[trimmed.seq]
    await store.erase(SESSION, {trimmed.seq: changed})
    (problem,) = await verify(store, SESSION)
    assert (problem.code, problem.seq) == ("changed", trimmed.seq)


@pytest.mark.spec("H-9")
async def test_a_purge_that_is_cut_off_is_seen_and_finished_by_doing_it_again(url: str) -> None:
    inner = open_store(url)
    event = await noted_by_model(inner)

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        async def erase(self, *args: Any) -> None:
            raise AgentError("SessionWriteFailed", "the disk is gone")

    with pytest.raises(AgentError, match="the disk is gone"):
        await purge_entries(Dying(), SESSION, [event], by="ana")  # pyright: ignore[reportArgumentType]
    assert {problem.code for problem in await verify(inner, SESSION)} == {"purge"}
    await purge_entries(inner, SESSION, [event], by="ana")
    assert await verify(inner, SESSION) == []
    await inner.close()


@pytest.mark.spec("H-9", "C-4")
async def test_what_was_recalled_and_read_on_goes_with_what_it_was_read_from(
    url: str, tmp_path: Path
) -> None:
    """A long result is kept apart; the model reads on in it, and recalls it once it was folded."""
    store = open_store(url)
    text = "\n".join(f"line {n}: {SECRET} {n * 7}" for n in range(2_000))

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        return text

    agent = Agent(ScriptedModel([call("fetch"), "Long."]), store=store, tools=[fetch])
    await agent.run("Fetch.", session=SESSION)
    fetched = first(await store.load(SESSION), "tool_results")
    artifact = fetched.payload.outcomes[0].artifact
    assert artifact and SECRET.encode() in await store.get_blob(artifact)
    reads = [call("read_artifact", artifact=artifact), f"It is kept as {artifact}."]
    await agent_on(store, *reads, widgets=[]).run("Read on.", session=SESSION)
    assert await compact_session(store, SESSION)
    await agent_on(store, call("recall", entry=f"#{fetched.seq}"), "So it was.").run("?", session=SESSION)
    results = [entry for entry in await store.load(SESSION) if entry.kind == "tool_results"]
    assert [SECRET.encode() in encode(entry) for entry in results] == [True, True, True]
    await purge_entries(store, SESSION, [fetched.id], by="ana")
    assert SECRET.encode() not in await bytes_of(store, tmp_path)
    with pytest.raises(AgentError, match="SessionReadFailed"):
        await store.get_blob(artifact)
    assert await verify(store, SESSION) == []
    await store.close()


async def read_on_in_a_fork(store: Store) -> str:
    """A long result that was read on in before a fork and in the fork. Returns the id of its entry."""

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        return "\n".join(f"line {n}: {SECRET} {n * 7}" for n in range(2_000))

    await Agent(ScriptedModel([call("fetch"), "Long."]), store=store, tools=[fetch]).run("?", session=SESSION)
    fetched = first(await store.load(SESSION), "tool_results")
    reads = call("read_artifact", artifact=fetched.payload.outcomes[0].artifact)
    await agent_on(store, reads, "So it is.", widgets=[]).run("Read on.", session=SESSION)
    await fork_session(store, SESSION, target="fork")
    await agent_on(store, reads, "Still.", widgets=[]).run("And now?", session="fork")
    return fetched.id


@pytest.mark.spec("H-9", "H-6")
@pytest.mark.parametrize("purged_in", [SESSION, "fork"])
async def test_a_purge_takes_what_forks_made_of_a_shared_past(
    url: str, purged_in: str, tmp_path: Path
) -> None:
    store = open_store(url)
    fetched = await read_on_in_a_fork(store)
    await purge_entries(store, purged_in, [fetched], by="ana")
    assert SECRET.encode() not in await bytes_of(store, tmp_path)
    for name in (SESSION, "fork"):
        entries = await store.load(name)
        gone = {entry.id for entry in entries if entry.purged_digest is not None}
        assert gone == set(first(entries, "purge").payload.entry_ids), "each log names all that is gone"
        assert await verify(store, name) == []
    await store.close()


@pytest.mark.spec("H-9", "H-6")
@pytest.mark.parametrize("purged_in", [SESSION, "fork"])
async def test_a_purge_that_dies_between_forks_is_finished_by_doing_it_again(
    url: str, purged_in: str, tmp_path: Path
) -> None:
    inner = open_store(url)
    fetched = await read_on_in_a_fork(inner)
    erased: list[str] = []

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        async def erase(self, session_id: str, *args: Any) -> None:
            if erased:
                raise AgentError("SessionWriteFailed", "the disk is gone")
            erased.append(session_id)
            await inner.erase(session_id, *args)

    with pytest.raises(AgentError, match="the disk is gone"):
        await purge_entries(Dying(), purged_in, [fetched], by="ana")  # pyright: ignore[reportArgumentType]
    assert await verify(inner, SESSION) != []
    await purge_entries(inner, purged_in, [fetched], by="ana")
    assert SECRET.encode() not in await bytes_of(inner, tmp_path)
    for name in (SESSION, "fork"):
        assert await verify(inner, name) == []
    await inner.close()


@pytest.mark.spec("H-9", "A-3")
async def test_a_fork_whose_call_has_no_result_yet_keeps_the_purge_from_all() -> None:
    from loop.scenarios import Stage

    stage = Stage()
    agent = stage.agent([call("send", to="bob", text=SECRET), "So be it."])
    await agent.run("Go.", session=SESSION)
    await fork(stage.store, SESSION, target="fork", clock=stage.clock, ids=stage.ids)
    (waiting,) = await agent.pending(SESSION)
    await agent.decide(SESSION, waiting.tool_call_id, "deny", by="carol")
    await agent.resume(SESSION)
    before = [await stage.store.read(name) for name in (SESSION, "fork")]
    asked = first(await stage.store.load(SESSION), "model_output")
    with pytest.raises(AgentError, match=r"in session 'fork' have no result yet"):
        await purge_entries(stage.store, SESSION, [asked.id], by="ana")
    assert [await stage.store.read(name) for name in (SESSION, "fork")] == before


@pytest.mark.spec("H-9", "A-3")
async def test_a_call_that_has_no_result_yet_is_not_robbed_of_its_arguments() -> None:
    from loop.scenarios import Stage

    stage = Stage()
    agent = stage.agent([call("send", to="bob", text=SECRET), "So be it."])
    await agent.run("Go.", session=SESSION)
    asked = first(await stage.store.load(SESSION), "model_output")
    with pytest.raises(AgentError, match=r"have no result yet.*resume or abort the run, then purge"):
        await purge_entries(stage.store, SESSION, [asked.id], by="ana")
    (waiting,) = await agent.pending(SESSION)
    await agent.decide(SESSION, waiting.tool_call_id, "deny", by="carol")
    await agent.resume(SESSION)
    await purge_entries(stage.store, SESSION, [asked.id], by="ana")
    assert SECRET.encode() not in b"".join(row.body for row in await stage.store.read(SESSION))
    assert await verify(stage.store, SESSION) == []


@pytest.mark.spec("H-9", "C-6")
async def test_a_recap_saw_all_that_came_before_it() -> None:
    """Also what it stands before: whoever wrote it was shown the whole conversation."""
    stage = ContextStage()
    agent = stage.play(["One.", "Two.", "Three."])
    for text in ("First.", "Second.", f"The gate {SECRET}."):
        await agent.run(text, session=SESSION)
    recap = ScriptedModel([f"They spoke of the gate: it {SECRET}."])
    await compact_session(stage.store, SESSION, model=recap, clock=stage.clock, ids=stage.ids)
    said = [entry for entry in await stage.entries() if entry.kind == "model_input"][-1]
    await purge_entries(stage.store, SESSION, [said.id], by="ana")
    assert SECRET.encode() not in b"".join(row.body for row in await stage.store.read(SESSION))
    assert await verify(stage.store, SESSION) == []


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("before", [purge_entries, redact_entries])
async def test_a_fold_over_something_that_went_before_does_not_keep_what_goes_now(before: Any) -> None:
    """Views hide the fold for what it folded; its screen shows something else, and is cut out of it."""
    store = open_store("memory:")
    await agent_on(store, "Hello.").run("An older secret.", session=SESSION)
    older = first(await store.load(SESSION), "model_input")
    await before(store, SESSION, [older.id], by="ana")
    writes = [call("notebook_write", name="roof", text="red"), call("notebook_write", name="g", text=SECRET)]
    await agent_on(store, *writes, "Done.").run("Go.", session=SESSION)
    await compact_session(store, SESSION)
    entries = await store.load(SESSION)
    fold = first(entries, "fold").payload
    assert SECRET in fold.screen and not any(SECRET in segment.text for segment in fold.segments)
    noted = [entry for entry in entries if entry.kind == "widget_event"][-1]
    await purge_entries(store, SESSION, [noted.id], by="ana")
    assert SECRET.encode() not in b"".join(row.body for row in await store.read(SESSION))
    assert await verify(store, SESSION) == []


@pytest.mark.spec("H-9", "W-4")
async def test_a_fork_from_before_a_purge_shows_its_screens() -> None:
    store = open_store("memory:")
    writes = [call("notebook_write", name="roof", text="red"), call("notebook_write", name="g", text=SECRET)]
    await agent_on(store, *writes, "Done.").run("Go.", session=SESSION)
    entries = await store.load(SESSION)
    noted = [entry for entry in entries if entry.kind == "widget_event"][-1]
    await purge_entries(store, SESSION, [noted.id], by="ana")
    await fork_session(store, SESSION, at=entries[-1].seq, target="fork")
    model = ScriptedModel([call("notebook_write", name="door", text="blue"), "Fine."])
    await Agent(model, store=store, widgets=[MemoryNotebookWidget()]).run("And the door?", session="fork")
    assert "**roof**: red" in encode(list(model.requests[0].messages)).decode()
    assert "**door**: blue" in encode(list(model.requests[1].messages)).decode()
    assert await verify(store, "fork") == []


@pytest.mark.spec("H-9")
async def test_a_purge_leaves_the_arguments_that_were_only_hidden() -> None:
    store = open_store("memory:")
    await agent_on(store, call("notebook_write", name="g", text=SECRET), "Done.").run("Go.", session=SESSION)
    entries = await store.load(SESSION)
    asked = first(entries, "model_output")
    await redact_entries(store, SESSION, [first(entries, "widget_event").id], by="ana")
    await purge_entries(store, SESSION, [first(entries, "model_input").id], by="ana")
    assert (await store.load(SESSION))[asked.seq - 1].payload == asked.payload
    assert (await replay(store, SESSION)).identical
    exported = open_store("memory:")
    await import_jsonl(exported, await export_jsonl(store, SESSION))
    for each in (store, exported):
        assert await verify(each, SESSION) == []


@pytest.mark.spec("H-9")
async def test_a_result_that_recalls_the_call_of_a_purged_note_goes_with_it() -> None:
    store = open_store("memory:")
    writes = call("notebook_write", name="g", text=SECRET)
    await agent_on(store, writes, call("stock", hall=1), "Done.").run("Go.", session=SESSION)
    entries = await store.load(SESSION)
    wrote, noted = first(entries, "model_output"), first(entries, "widget_event")
    assert await compact_session(store, SESSION)
    await agent_on(store, call("recall", entry=f"#{wrote.seq}"), "So it was.").run("?", session=SESSION)
    results = [entry for entry in await store.load(SESSION) if entry.kind == "tool_results"]
    assert SECRET in str(results[-1].payload.message)
    await purge_entries(store, SESSION, [noted.id], by="ana")
    assert SECRET.encode() not in b"".join(row.body for row in await store.read(SESSION))
    assert await verify(store, SESSION) == []
