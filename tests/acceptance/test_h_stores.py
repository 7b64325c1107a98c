"""H. History and sessions: stores, versions, crashes, failed batches, messages of other systems."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from postgres_server import PostgresServer
from reliability.crash_runs import lose_power
from turnlog import AgentError, open_store, tool
from turnlog.contract import (
    SCHEMA_VERSION,
    RunInput,
    StoredEntry,
    chain_hash,
    digest,
    encode,
    user_message,
)
from turnlog.history import MemoryStore, PostgresStore, Session, default_store_url, verify
from turnlog.loop import AgentLoop, LoopParts
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import FixedClock, OutsideRecord, ScriptedModel, check_session, check_store
from turnlog.tools import ToolContext, ToolExecutor, ToolRegistry
from turnlog.transcript import export_messages, import_messages

# ── H-6 ──


@pytest.mark.spec("H-6")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_stores_pass_one_suite(url: str, tmp_path: Path) -> None:
    assert len(await check_store(lambda: open_store(url.format(tmp_path)))) > 20


@pytest.mark.spec("H-6")
async def test_postgresql_passes_the_same_suite(postgres: PostgresServer) -> None:
    url = postgres.url()
    assert len(await check_store(lambda: open_store(url))) > 20


@pytest.mark.spec("H-6")
def test_sqlite_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNLOG_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store_url().startswith(f"sqlite:{tmp_path}")


WRITER = """
import asyncio, sys
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

async def main(url):
    session = await Session.open(open_store(url), "s", clock=SystemClock(), ids=SystemIds())
    while True:
        session.append_custom("note", {})
        await session.commit()
        print(session.entries[-1].id, flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def killed_while_writing(url: str, count: int = 25) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, url, stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    told = [await writer.stdout.readline() for _ in range(count)]
    writer.kill()
    told += (await writer.stdout.read()).splitlines(keepends=True)
    await writer.wait()
    acknowledged = [line.decode().strip() for line in told if line.endswith(b"\n")]
    store = open_store(url)
    entries = await store.load("s")
    assert len(acknowledged) >= count
    assert [entry.id for entry in entries][1 : len(acknowledged) + 1] == acknowledged
    assert await verify(store, "s") == []
    await store.close()  # type: ignore[attr-defined]


@pytest.mark.spec("H-6")
@pytest.mark.parametrize("url", ["jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_what_append_returned_survives_a_kill(url: str, tmp_path: Path) -> None:
    await killed_while_writing(url.format(tmp_path))


@pytest.mark.spec("H-6")
async def test_it_survives_a_kill_on_postgresql(postgres: PostgresServer) -> None:
    await killed_while_writing(postgres.url())


@pytest.mark.spec("H-6")
def test_it_survives_power_loss_on_sqlite() -> None:
    """Every write and sync is recorded; the power goes at any of them, what was not synced may be lost."""
    report = lose_power("one_tool", "sqlite", images=80, holes=True)
    assert report.failures == [] and report.images == 80 and report.acknowledged > 5
    assert lose_power("one_tool", "sqlite", images=40, forgetful=True).failures, (
        "the proof finds a lost write"
    )


@pytest.mark.spec("H-6")
async def test_postgresql_syncs_what_it_acknowledges(postgres: PostgresServer) -> None:
    """Power loss is the server's to survive, by what it does before a commit returns: we ask for no less.

    A trigger that runs at the commit of every append writes down what the transaction was set to.
    """
    store = PostgresStore(postgres.url())
    session = await Session.open(store, "s", clock=SystemClock(), ids=SystemIds())
    session.append_custom("note", {})
    await session.commit()
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as link:
        await link.execute(f"SET search_path TO {store.address.schema}".encode())
        await link.execute("CREATE TABLE seen (setting TEXT)")
        await link.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "
            f"{store.address.schema}.seen VALUES (current_setting('synchronous_commit')); "
            "RETURN NULL; END $$".encode()
        )
        await link.execute(
            "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION note()"
        )
        session.append_custom("note", {})
        await session.commit()
        seen = await (await link.execute("SELECT setting FROM seen")).fetchall()
        about = "SELECT boot_val, reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
        [(default, here)] = await (await link.execute(about)).fetchall()
    assert default == "on" and seen == [(here,)]
    await store.close()


# ── H-8 ──


def old_log(version: int) -> list[StoredEntry]:
    """A log as an older version wrote it: the header's field and a message's text had other names."""
    message = {"runId": "r", "role": "user", "content": "hello from long ago", "timestamp": "t"}
    header = {"version": version} if version == 0 else {"schemaVersion": version}
    payloads: list[tuple[str, Any]] = [("session_header", header), ("model_input", {"message": message})]
    if version:
        payloads.pop()
    rows: list[StoredEntry] = []
    previous = ""
    for seq, (kind, payload) in enumerate(payloads, 1):
        place = {"id": f"old_{seq}", "session_id": "old", "seq": seq, "timestamp": "2020-01-01T00:00:00.000Z"}
        parent = f"old_{seq - 1}" if seq > 1 else None
        previous = chain_hash(
            *(previous,),
            **place,
            parent_id=parent,
            kind=kind,
            run_id=None,
            payload_digest=digest(encode(payload)),
            meta_digest=None,
        )
        wire = {"kind": kind, "id": place["id"], "sessionId": "old", "seq": seq, "payload": payload}
        wire |= {
            "timestamp": place["timestamp"],
            "hash": previous,
            **({"parentId": parent} if parent else {}),
        }
        rows.append(StoredEntry(seq, f"old_{seq}", kind, encode(wire)))
    return rows


@pytest.mark.spec("H-8")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_an_old_log_is_read_as_todays_and_a_newer_one_refused(url: str, tmp_path: Path) -> None:
    desk = Desk(url.format(tmp_path), SystemIds())
    await desk.agent("Hi.").run("Hi.", session="new")
    assert (await desk.of_kind("session_header", "new"))[0].payload.schema_version == SCHEMA_VERSION
    await desk.store.append("old", old_log(0), expected_tail=0)
    [header, said] = await desk.entries("old")
    assert header.payload.schema_version == 0
    assert said.payload.message.text == "hello from long ago", "migrated when it is read"
    assert (await desk.store.read("old")) == old_log(0), "and not where it is stored"
    await desk.agent("Hello from today.").run("And now?", session="old")
    assert "hello from long ago" in encode(desk.seen).decode()
    assert (await desk.store.read("old"))[:2] == old_log(0), "nor when the session grows"
    assert await verify(desk.store, "old") == []
    versions = [entry.payload.schema_version for entry in await desk.of_kind("session_header", "old")]
    assert versions == sorted(versions) and versions[-1] == SCHEMA_VERSION, "forward only"
    newer = [row._replace(id="new_1", body=row.body.replace(b"old", b"new")) for row in old_log(9)]
    await desk.store.append("newer", newer, expected_tail=0)
    with pytest.raises(AgentError, match=r"version 9.*reads up to \d.*upgrade") as caught:
        await desk.entries("newer")
    assert caught.value.code == "SessionMigrationFailed"
    await desk.store.close()  # type: ignore[attr-defined]


# ── H-10 ──


class Counted(MemoryStore):
    """Remembers where each acknowledged write ended: a process may die right after any of them."""

    def __init__(self, clock: FixedClock) -> None:
        super().__init__(clock=clock)
        self.borders: list[int] = []

    async def append(self, session_id: str, batch: Any, **more: Any) -> None:
        await super().append(session_id, batch, **more)
        self.borders.append(batch[-1].seq)


def calls_in(entries: list[Any]) -> dict[int, str]:
    """The context of each model call."""
    started = [entry.payload for entry in entries if entry.kind == "model_call_started"]
    return {each.model_call_index: each.context_hash for each in started}


TURNS = [
    asks_for(call("look", place="gate"), call("mark", number=1), text="I look."),
    asks_for(call("mark", number=2)),
    "All is done.",
]


@pytest.mark.spec("H-10")
async def test_a_run_that_died_anywhere_goes_on_and_does_nothing_twice() -> None:
    desk = Desk(ids=SystemIds())
    marked: dict[str, int] = {}

    @tool(timeout=None)
    async def mark(number: int, ctx: ToolContext) -> str:
        """Make a mark."""
        marked[ctx.idempotency_key] = marked.get(ctx.idempotency_key, 0) + 1
        return f"marked {number}"

    desk.store = store = Counted(desk.clock)
    tools = [*desk.tools(), mark]
    await desk.agent(*TURNS, tools=tools).run("Go.", session="s")
    rows = await store.read("s")
    whole = await store.load("s")
    assert len(store.borders) >= 8
    repeated = 0
    for border in store.borders:
        marked.clear()
        for entry in whole[:border]:  # what had run before the crash
            if entry.kind == "tool_started" and entry.payload.tool_name == "mark":
                marked[entry.payload.idempotency_key] = 1
        left = Desk(ids=SystemIds())
        await left.store.append("s", rows[:border], expected_tail=0)
        said = sum(entry.kind == "model_output" for entry in whole[:border])
        result = await left.agent(*TURNS[said:], "All is done.", tools=tools).resume("s")
        assert result is None or result.status == "completed", border
        entries = await left.entries()
        assert encode(entries[:border]) == encode(whole[:border]), "no message is lost"
        assert (await left.agent().session("s").state()).pending_tool_calls == [], "no call is left open"
        assert set(marked.values()) <= {1}, f"a tool ran twice after a crash at {border}"
        before, after = (calls_in(part) for part in (whole[:border], entries[border:]))
        assert all(after[index] == before[index] for index in after.keys() & before.keys())
        repeated += len(after.keys() & before.keys())
        await check_session(left.store, "s", outside=OutsideRecord(effects=dict(marked), watched=["mark"]))
    assert repeated >= 3, "some calls were made again, on the same context"


@pytest.mark.spec("H-10")
async def test_a_call_that_may_have_run_is_not_run_again(tmp_path: Path) -> None:
    """A process is killed inside a tool; another one resumes."""
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys, pathlib\n"
        "from turnlog import Agent, tool\n"
        "from turnlog.testing import ScriptedModel, Turn\n"
        "@tool\n"
        "def pay() -> str:\n"
        '    """Pay."""\n'
        "    with open('paid', 'a') as file: file.write('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "call = Turn(tool_calls=[{'name': 'pay', 'arguments': {}}])\n"
        "Agent(ScriptedModel([call]), tools=[pay], store='sqlite:log.db').run_sync('Pay.', session='s')\n",
        encoding="utf-8",
    )
    died = await asyncio.create_subprocess_exec(sys.executable, str(script), cwd=tmp_path)
    assert await died.wait() == -signal.SIGKILL
    paid: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        paid.append("again")
        return "paid"

    desk = Desk.on_disk(tmp_path)
    result = await desk.agent("I cannot tell.", tools=[pay]).resume("s")
    assert result is not None and result.text == "I cannot tell."
    assert paid == [] and (tmp_path / "paid").read_text() == "x"
    [(failed, words)] = results_in(desk.seen)
    assert failed and "unknown" in words
    await desk.store.close()  # type: ignore[attr-defined]


# ── H-13 ──


class Broken(ToolExecutor):
    """Fails as a whole, whatever it is asked to do."""

    async def execute(self, *args: Any, **more: Any) -> Any:
        raise ConnectionError("the tool server is gone")


@pytest.mark.spec("H-13")
async def test_a_batch_that_fails_as_a_whole_is_a_failed_result_for_each_call() -> None:
    desk = Desk()
    model = ScriptedModel([asks_for(call("look", place="a"), call("look", place="b")), "I see."])
    registry = ToolRegistry(desk.tools())
    parts = LoopParts(model=model, store=desk.store, registry=registry, executor=Broken(registry))
    async with asyncio.timeout(60):
        result = await AgentLoop(parts).run(RunInput(session_id="s", input_messages=[user_message("Look.")]))
    assert result.text == "I see."
    outcomes = [o for entry in await desk.of_kind("tool_results") for o in entry.payload.outcomes]
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
    assert [failed for failed, _ in results_in(list(model.requests[-1].messages))] == [True, True]


@pytest.mark.spec("H-13")
async def test_what_did_not_line_up_is_noted_in_meta() -> None:
    desk = Desk()
    await desk.agent(asks_for(call("pay", amount=1), call("pay", amount=2))).run("Pay.", session="s")
    session = await Session.open(desk.store, "s", clock=SystemClock(), ids=SystemIds())
    owed = [each.call.tool_call_id for each in session.state.open_calls]
    entry = session.fail_open_calls("the tool server is gone", unmatched=["call_of_nobody"])
    assert entry is not None
    payload: Any = entry.payload
    assert [part.payload.tool_call_id for part in payload.message.tool_results] == owed
    assert all(part.payload.is_error for part in payload.message.tool_results)
    assert payload.execute_error == "the tool server is gone"
    assert entry.meta is not None and "call_of_nobody" in str(entry.meta)


# ── H-16 ──

OPENAI: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is the weather in Rome?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "assistant", "content": "Sun."},
]
ANTHROPIC: dict[str, Any] = {
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "How is the weather in Rome?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
        {"role": "assistant", "content": "Sun."},
    ],
}
LANGCHAIN: list[Any] = [
    {"type": "system", "data": {"content": "Be brief."}},
    {"type": "human", "data": {"content": "How is the weather in Rome?"}},
    {
        "type": "ai",
        "data": {
            "content": "I look.",
            "tool_calls": [{"id": "c1", "name": "weather", "args": {"city": "Rome"}}],
        },
    },
    {"type": "tool", "data": {"content": "sunny", "tool_call_id": "c1", "name": "weather"}},
    {"type": "ai", "data": {"content": "Sun."}},
]


@pytest.mark.spec("H-16")
@pytest.mark.parametrize("form", ["openai", "anthropic", "langchain"])
async def test_messages_of_other_systems_come_in_and_go_out(form: Any) -> None:
    given: Any = {"openai": OPENAI, "anthropic": ANTHROPIC, "langchain": LANGCHAIN}[form]
    desk = Desk()
    await import_messages(desk.store, "s", given, format=form)
    entries = await desk.entries()
    assert all(entry.meta == {"imported": form} for entry in entries), "every entry says so"
    said = [message.text for message in await desk.agent().session("s").messages()]
    assert said[-1] == "Sun." and "How is the weather in Rome?" in said
    assert (await desk.agent("More.").run("Go on.", session="s")).text == "More."
    assert "sunny" in encode(desk.seen).decode()
    for other in ("openai", "anthropic", "langchain"):
        out: Any = export_messages(await desk.entries(), format=other)
        there = Desk()
        await import_messages(there.store, "t", out, format=other)
        again = await there.agent().session("t").messages()
        told = await desk.agent().session("s").messages()
        assert [(m.role, m.text) for m in again] == [(m.role, m.text) for m in told]
        assert b"sunny" in encode(out) and b"Rome" in encode(out)
