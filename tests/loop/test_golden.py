"""Each scenario writes its golden file again to the byte, and each file replays as identical."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loop.scenarios import SESSION, TRACES, Stage, call
from turnlog.contract import Entry, ModelOutput, decode, encode
from turnlog.loop import replay_entries
from turnlog.testing import Turn, check_trace, read_trace

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = GOLDEN / "traces"
OLDER = sorted((GOLDEN / "older").glob("*.jsonl"))


def path_of(trace: str) -> Path:
    return FILES / f"{trace.lower()}_{TRACES[trace][0]}.jsonl"


@pytest.mark.parametrize("trace", [pytest.param(name, marks=pytest.mark.spec(name)) for name in TRACES])
async def test_scenario_writes_its_golden_trace(trace: str) -> None:
    stage = Stage()
    await TRACES[trace][1](stage)
    check_trace(path_of(trace), await stage.store.load(SESSION))


@pytest.mark.parametrize(
    "trace", [pytest.param(name, marks=pytest.mark.spec(name, "H-11")) for name in TRACES]
)
async def test_golden_trace_replays_identically(trace: str) -> None:
    entries = read_trace(path_of(trace))
    report = await replay_entries(entries, SESSION)
    assert report.identical, report.difference
    assert report.entries == len(entries)
    assert report.contexts == sum(entry.kind == "model_call_started" for entry in entries)


async def tree(stage: Stage) -> None:
    """An editor asks two agents at once; one of them has to ask a person before it can answer."""

    def researcher(turns: list[Any]) -> Any:
        agent = stage.agent(turns, name="researcher", instructions="Find facts.")
        return agent.as_tool("Finds facts about a topic.")

    def sender(turns: list[Any]) -> Any:
        agent = stage.agent(turns, name="sender", instructions="Send messages.")
        return agent.as_tool("Sends a message.", concurrent=True)

    asked = Turn(tool_calls=[call("researcher", input="Bees?"), call("sender", input="Tell Ann.")])
    letter = Turn(tool_calls=[call("send", to="ann", text="Bees dance.")])
    tools = [researcher([Turn(tool_calls=[call("look", place="hive")]), "They dance."]), sender([letter])]
    waits = await stage.agent([asked], tools=tools).run("Tell Ann of bees.", session=SESSION)
    assert waits.status == "awaiting_human"
    editor = stage.agent(["Ann knows."], tools=[researcher([]), sender(["Sent."])])
    (pending,) = await editor.session(SESSION).pending()
    await editor.session(SESSION).approve(pending, by="bob")
    result = await editor.resume(SESSION)
    assert result is not None and result.text == "Ann knows."


TREE = {"": "tree_parent", "researcher": "tree_first_child", "sender": "tree_second_child"}


@pytest.mark.spec("L-11", "H-11")
async def test_a_tree_of_three_sessions_writes_its_golden_traces_which_replay_identically() -> None:
    stage = Stage()
    await tree(stage)
    names = [info.session_id for info in await stage.store.sessions()]
    found = {name.rpartition("-")[0]: await stage.store.load(name) for name in names}
    assert found.keys() == TREE.keys()
    children = [entry.payload.child_session_id for entry in found[""] if entry.kind == "tool_started"]
    assert sorted(set(children)) == sorted(set(names) - {SESSION})
    for name, entries in found.items():
        path = FILES / f"{TREE[name]}.jsonl"
        check_trace(path, entries)
        report = await replay_entries(read_trace(path), entries[0].session_id)
        assert report.identical and report.entries == len(entries), report.difference


@pytest.mark.spec("H-8")
@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.stem)
async def test_a_log_of_an_older_version_is_read_and_replayed_to_the_byte(path: Path) -> None:
    entries = read_trace(path)
    check_trace(path, entries)
    report = await replay_entries(entries, SESSION)
    assert report.identical, report.difference


@pytest.mark.spec("H-11")
@pytest.mark.parametrize("trace", list(TRACES))
async def test_replay_notices_any_changed_entry(trace: str) -> None:
    """Each entry the loop writes or computes is compared: change one and replay names it or a later one."""
    entries = read_trace(path_of(trace))
    for position, entry in enumerate(entries):
        changed = _changed(entry)
        if changed is None:
            continue
        report = await replay_entries([*entries[:position], changed, *entries[position + 1 :]], SESSION)
        assert not report.identical, f"a changed {entry.kind} (entry {entry.seq}) went unnoticed"
        assert report.seq is not None and report.seq >= entry.seq
        assert report.difference


def _changed(entry: Entry) -> Entry | None:
    """The entry with one computed or shown thing changed; None where all of it is taken from the log."""
    match entry.kind:
        case "model_call_started":
            change = {"context_hash": "0" * 64}
        case "tool_started":
            change = {"args_digest": "0" * 64}
        case "run_ended" if "stayed behind" not in encode(entry.payload).decode():
            change = {"status": "failed" if entry.payload.status == "completed" else "completed"}
        case "model_output" if isinstance(entry.payload, ModelOutput) and entry.payload.message.tool_calls:
            change = {"model_call_index": 7}
        case "approval_requested":
            change = {"digest": "0" * 64}
        case _:
            return None
    payload = msgspec.structs.replace(entry.payload, **change)
    return decode(encode(msgspec.structs.replace(entry, payload=payload)), Entry)
