"""The server over real HTTP: what it shows of sessions, and what can be done with runs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("uvicorn", reason="needs the extra 'server'")

from starlette.applications import Starlette
from starlette.routing import Mount

from server.served import Served, served
from turnlog import Agent, open_store, tool
from turnlog.models import ScriptedModel, Turn
from turnlog.server import create_app

CALL = Turn(text="Let me look.", tool_calls=[{"name": "look", "arguments": {"place": "attic"}}])
BETWEEN = ("model_delta", "tool_progress", "status")
PAY = Turn(tool_calls=[{"name": "pay", "arguments": {"amount": 80}}])


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"There is a lamp in the {place}."


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay money."""
    return f"paid {amount}"


def make_agent(path: Path, *answers: str | Turn) -> Agent:
    model = ScriptedModel(answers)
    store = f"sqlite:{path / 'log.db'}"
    return Agent(model, tools=[look, pay], store=store, instructions="You are a butler.")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[tuple[Served, Agent]]:
    async with make_agent(tmp_path, CALL, "A lamp.", PAY, "Paid.") as agent:
        await agent.run("What is in the attic?", session="attic", title="The attic")
        async with served(agent) as server:
            yield server, agent


async def until(server: Served, session: str, status: str) -> Any:
    """The session, once its run is in this state."""
    for _ in range(600):
        shown = await server.get(f"/sessions/{session}")
        if shown["state"]["status"] == status:
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(f"session {session} never became {status}: {shown['state']}")


async def test_a_session_is_shown_as_steps_with_its_entries(house: tuple[Served, Agent]) -> None:
    server, agent = house
    listed = await server.get("/sessions")
    assert [each["sessionId"] for each in listed["sessions"]] == ["attic"]
    shown = await server.get("/sessions/attic")
    steps = [(step["kind"], step["title"]) for step in shown["timeline"]["steps"]]
    assert ("input", "What is in the attic?") in steps
    assert ("tool", "attic") in steps
    assert ("model", "A lamp.") in steps
    assert shown["info"]["title"] == "The attic" and shown["canRun"]
    page = await server.get("/sessions/attic/entries")
    entries = await agent.session("attic").entries()
    assert [entry["id"] for entry in page["entries"]] == [entry.id for entry in entries]
    one = await server.get("/sessions/attic/entries/3")
    assert one["id"] == entries[2].id
    found = await server.get("/sessions", q="lamp in the")
    assert found["hits"][0]["sessionId"] == "attic" and "lamp" in found["hits"][0]["text"]
    assert (await server.get("/sessions", q="idempotency"))["sessions"] == []


async def test_what_the_model_saw_marks_what_is_new(house: tuple[Served, Agent]) -> None:
    server, agent = house
    saw = await server.get("/sessions/attic/context/2")
    view = await agent.session("attic").explain(2)
    assert saw["view"]["contextHash"] == view.recorded_hash and saw["view"]["matches"]
    assert saw["previous"] == 1 and saw["known"] == 1  # the question was in the first call too
    assert [each["kind"] for each in saw["view"]["origins"]] == ["user", "assistant", "tool results"]
    first = await server.get("/sessions/attic/context/1")
    assert first["known"] == 0
    missing = await server.get("/sessions/attic/context/9", status=404)
    assert "it has 2" in missing["detail"]


async def test_a_run_continues_without_its_client_and_can_be_followed_by_number(tmp_path: Path) -> None:
    async with make_agent(tmp_path, CALL, "A lamp.") as agent, served(agent) as server:
        started = await server.post("/sessions/s1/runs", {"text": "Look."}, status=201)
        seen = [each async for each in server.events("/sessions/s1/events", untilIdle="true")]
        kinds = [kind for _, kind, _ in seen]
        assert kinds[0] == "input" and kinds[-1] == "run_ended" and "tool_result" in kinds
        numbers = [number for number, _, _ in seen if number is not None]
        assert numbers == sorted(set(numbers))
        assert {data["runId"] for _, _, data in seen} == {started["runId"]}
        # A client that lost its connection in the middle gets the rest, and nothing twice.
        middle = next(number for number, kind, _ in seen if kind == "tool_result")
        assert middle is not None
        rest = [each async for each in server.events("/sessions/s1/events", last=middle, untilIdle="true")]
        lasting = [each for each in seen if each[1] not in BETWEEN and (each[0] or 0) > middle]
        assert [each for each in rest if each[1] not in BETWEEN] == lasting


async def test_followers_see_entries_and_deltas_as_they_come(tmp_path: Path) -> None:
    async with make_agent(tmp_path, "One two three four.", CALL, "A lamp.") as agent, served(agent) as server:
        await server.post("/sessions/s1/runs", {"text": "Count."}, status=201)
        await until(server, "s1", "completed")

        here, all_here = 0, asyncio.Event()

        async def follow() -> list[tuple[int | None, str]]:
            nonlocal here
            seen: list[tuple[int | None, str]] = []
            async for number, kind, data in server.events("/sessions/s1/events", view="entries"):
                here += not seen
                if here == 20:
                    all_here.set()
                seen.append((number, kind))
                if kind == "entry" and data["kind"] == "run_ended" and data["seq"] > 8:
                    break
            return seen

        followers = [asyncio.create_task(follow()) for _ in range(20)]
        await all_here.wait()
        await server.post("/sessions/s1/runs", {"text": "And the attic?"}, status=201)
        seen = await asyncio.gather(*followers)
        log = await agent.session("s1").entries()
        for each in seen:
            entries = [number // 1_000_000 for number, kind in each if kind == "entry" and number is not None]
            assert entries == [entry.seq for entry in log]  # all, in order, none twice
        assert all(any(kind == "model_delta" for _, kind in each) for each in seen)


async def test_a_run_of_another_process_is_followed_from_the_log(tmp_path: Path) -> None:
    async with make_agent(tmp_path, CALL, "A lamp.") as agent:
        await agent.run("Look.", session="s1")
        async with open_store(f"sqlite:{tmp_path / 'log.db'}") as other, served(other) as server:
            assert (await server.get("/sessions/s1"))["canRun"] is False
            refused = await server.post("/sessions/s1/runs", {"text": "Go."}, status=409)
            assert refused["code"] == "NoAgent"
            last = len(await agent.session("s1").entries()) * 1_000_000
            events = server.events("/sessions/s1/events", view="entries", after=last)
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0.1)
            said = [entry for entry in await agent.session("s1").entries() if entry.kind == "model_input"]
            await agent.session("s1").redact([said[0].id], by="ann")
            _, kind, data = await waiting
            assert (kind, data["kind"]) == ("entry", "redaction")
            await events.aclose()
            page = await server.get("/sessions/s1/entries")
            assert "Look." not in str(page)


async def test_a_message_that_was_taken_is_in_the_store_while_its_run_is_busy(tmp_path: Path) -> None:
    busy, free = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        busy.set()
        await free.wait()
        return "done"

    model = ScriptedModel([Turn(tool_calls=[{"name": "wait", "arguments": {}}]), "Both done."])
    async with (
        Agent(model, tools=[wait], store=f"sqlite:{tmp_path / 'log.db'}") as agent,
        served(agent) as server,
    ):
        await server.post("/sessions/s/runs", {"text": "Do it."}, status=201)
        await busy.wait()
        await server.post("/sessions/s/send", {"text": "And that too."}, status=204)
        [posted] = await agent.store.posted("s")
        assert "And that too." in str(posted.data)
        free.set()
        await until(server, "s", "completed")
        said = [message.text for message in await agent.session("s").messages() if message.role == "user"]
        assert said == ["Do it.", "And that too."]


async def test_an_approval_is_decided_once_and_the_run_continues(house: tuple[Served, Agent]) -> None:
    server, _ = house
    await server.post("/sessions/attic/runs", {"text": "Pay the butler."}, status=201)
    await until(server, "attic", "awaiting_human")
    waiting = await server.get("/inbox")
    asked = waiting["approvals"]
    note = waiting["notes"][asked[0]["entryId"]]
    assert note["title"] == "The attic" and note["seq"] > 0
    assert [each["requested"]["toolName"] for each in asked] == ["pay"]
    call = asked[0]["requested"]
    body = {"toolCallId": call["toolCallId"], "digest": call["digest"], "action": "approve", "by": "ann"}
    wrong = await server.post("/sessions/attic/decide", {**body, "digest": "0" * 64}, status=409)
    assert "not what was shown" in wrong["detail"]
    decided = await asyncio.gather(
        *[server.client.post("/api/sessions/attic/decide", json=body) for _ in range(4)]
    )
    assert sorted(each.status_code for each in decided) == [200, 409, 409, 409]
    shown = await until(server, "attic", "completed")
    paid = [step for step in shown["timeline"]["steps"] if step.get("tool") == "pay"]
    assert [(step["status"], step["by"]) for step in paid] == [("done", "ann")]


async def test_a_run_that_waits_is_told_once_to_those_who_come_back(house: tuple[Served, Agent]) -> None:
    """No entry says that a run was let go; a client that lost its connection just before gets it."""
    server, agent = house
    path = "/sessions/attic/events"
    await server.post("/sessions/attic/runs", {"text": "Pay the butler."}, status=201)
    live = [each async for each in server.events(path, untilIdle="true")]
    number, kind, data = live[-1]
    assert kind == "run_ended" and data["payload"]["result"]["status"] == "awaiting_human"
    asked = next(number for number, kind, _ in live if kind == "approval_requested")

    async def again(reader: Served, last: int | None) -> list[tuple[int | None, str, Any]]:
        seen = [each async for each in reader.events(path, last=last, untilIdle="true")]
        return [(number, kind, each["payload"]) for number, kind, each in seen]

    once = [(number, "run_ended", data["payload"])]
    assert await again(server, asked) == once
    assert await again(server, number) == []
    async with served(agent.store) as elsewhere:  # a process that never saw the run
        assert await again(elsewhere, asked) == once
        assert (await again(elsewhere, None))[-1:] == once
        said = next(
            entry.id for entry in await agent.session("attic").entries() if entry.kind == "model_input"
        )
        await agent.session("attic").redact([said], by="ann")  # the log grows, and the wait is the same
        assert await again(elsewhere, number) == []
        assert await again(elsewhere, asked) == once
    call = (await server.get("/inbox"))["approvals"][0]["requested"]
    body = {"toolCallId": call["toolCallId"], "digest": call["digest"], "action": "approve"}
    await server.post("/sessions/attic/decide", body)
    await until(server, "attic", "completed")
    rest = await again(server, number)
    assert [kind for _, kind, _ in rest if kind in ("approval_decided", "run_ended")] == [
        "approval_decided",
        "run_ended",
    ]
    assert rest[-1][2]["result"]["status"] == "completed"


async def test_branches_are_made_compared_and_deleted(house: tuple[Served, Agent]) -> None:
    server, _ = house
    made = await server.post("/sessions/attic/fork", {"at": 5, "session": "other"}, status=201)
    assert made["sessionId"] == "other"
    both = await server.get("/compare", a="attic", b="other")
    assert both["shared"] <= 5 and both["stepsA"] and both["stepsB"] == []
    refused = await server.client.delete("/api/sessions/attic")
    assert refused.status_code == 409 and refused.json()["meta"]["forks"] == ["other"]
    gone = await server.client.delete("/api/sessions/other")
    assert gone.status_code == 204
    assert (await server.get("/sessions/other", status=404))["code"] == "SessionNotFound"


async def test_a_session_can_be_taken_along_in_every_format(house: tuple[Served, Agent]) -> None:
    server, agent = house
    for form in ("jsonl", "html", "markdown", "openai", "anthropic"):
        answer = await server.client.get("/api/sessions/attic/export", params={"format": form})
        assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
        assert "lamp" in answer.text
    assert (await server.client.get("/api/sessions/attic/export")).content == await agent.session(
        "attic"
    ).export()


async def test_uploaded_bytes_come_back_and_are_never_run(house: tuple[Served, Agent]) -> None:
    server, _ = house
    page = b"<script>alert(1)</script>"
    stored = (await server.client.post("/api/blobs", content=page)).json()
    answer = await server.client.get(f"/api/blobs/{stored['name']}")
    assert answer.content == page
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "attachment" in answer.headers["content-disposition"]
    assert (await server.client.post("/api/blobs", content=b"")).status_code == 400


async def test_an_uploaded_file_goes_with_a_message(house: tuple[Served, Agent]) -> None:
    server, agent = house
    dot = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    files: list[dict[str, str]] = []
    for name, data in (("dot.png", dot), ("poem.txt", b"Soft paws at dawn.")):
        answer = await server.client.post("/api/blobs", content=data, params={"name": name})
        assert answer.status_code == 201
        files.append({"blob": answer.json()["name"], "name": name})
    await server.post("/sessions/pets/runs", {"text": "What is this?", "files": files}, status=201)
    await until(server, "pets", "awaiting_human")
    said = next(e for e in await agent.session("pets").entries() if e.kind == "model_input").payload.message
    assert [part.kind for part in said.parts] == ["text", "image", "file_ref"]
    assert said.parts[1].payload.url == f"blob:{files[0]['blob']}"
    seen = (await agent.session("pets").explain(1)).messages[0]
    assert seen.parts[1].payload.name == "dot.png" and seen.parts[2].payload.path == "poem.txt"
    await server.post("/sessions/pets/send", {"files": files[1:]}, status=204)
    # What no model can read is refused before it is kept, and so is a file that was never posted.
    for name, data, words in (
        ("a.bin", b"\x00\x01\x02\xff\xfe", "is no picture"),
        ("a.pdf", b"<html>", "not the PDF"),
    ):
        refused = await server.client.post("/api/blobs", content=data, params={"name": name})
        assert refused.status_code == 422 and words in refused.json()["detail"]
    missing = {"text": "x", "files": [{"blob": "sha256-" + "0" * 64, "name": "a.txt"}]}
    assert (await server.post("/sessions/pets/send", missing, status=404))["code"] == "NoBytes"
    many = {"text": "x", "files": files * 11}
    assert (await server.post("/sessions/pets/send", many, status=400))["code"] == "BodyInvalid"


async def test_a_rerun_is_previewed_before_it_is_made(house: tuple[Served, Agent]) -> None:
    server, agent = house
    entries = await agent.session("attic").entries()
    at = next(entry.seq for entry in entries if entry.kind == "tool_results")
    told = await server.post("/sessions/attic/rerun/preview", {"at": at, "result": "nothing"})
    assert told["call"] == 2 and told["inputTokens"] > 0 and told["recorded"] == []
    assert await agent.store.sessions(parent="attic") == []
    wrong = await server.post("/sessions/attic/rerun/preview", {"at": 1, "text": "x"}, status=400)
    assert "is not what a run was asked" in wrong["detail"]


async def test_it_is_mounted_in_an_app_of_the_users_own(tmp_path: Path) -> None:
    import httpx2

    async with make_agent(tmp_path, "Hello.") as agent:
        await agent.run("Hi", session="s1")
        inner = create_app(agent, hosts=["testserver"])
        app = Starlette(routes=[Mount("/agents", inner)])
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://testserver",  # pyright: ignore
        ) as client:
            assert (await client.get("/agents/api/sessions")).status_code == 401
            headers = {"authorization": f"Bearer {inner.state.token}"}
            answer = await client.get("/agents/api/sessions", headers=headers)
            assert [each["sessionId"] for each in answer.json()["sessions"]] == ["s1"]
            described = (await client.get("/agents/api/openapi.json")).json()
            assert described["servers"] == [{"url": "/agents"}]
