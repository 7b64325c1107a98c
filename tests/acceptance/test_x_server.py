"""X-3. The HTTP server, started as the library starts it when nothing is chosen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("uvicorn", reason="needs the extra 'server'")

import httpx2

from acceptance.desk import Desk, asks_for, call
from server.served import Served
from turnlog import Agent
from turnlog.contract import Store
from turnlog.server import serve

BETWEEN = ("model_delta", "tool_progress", "status")
"""Kinds of events between two entries, which a reader who was away may miss."""


@asynccontextmanager
async def opened(agent: Agent[Any] | Store) -> AsyncGenerator[Served]:
    """A server with its defaults but for the port, and a client that has the token it made."""
    listening: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(agent, port=0, ready=lambda *given: listening.set_result(given)))
    try:
        await asyncio.wait([listening, task], return_when=asyncio.FIRST_COMPLETED)
        address, token = listening.result()
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=address.rstrip("/"), headers=headers, timeout=60) as client:
            yield Served(client, address.rstrip("/"))
    finally:
        task.cancel()
        await asyncio.wait([task])


def is_lasting(kind: str, data: Any) -> bool:
    """Whether an event is made of an entry: one that tells of a wait for a human is not."""
    if kind == "run_ended":
        return data["payload"]["result"]["status"] != "awaiting_human"
    return kind not in BETWEEN


async def followed(server: Served, path: str, **more: Any) -> list[tuple[int | None, str, Any]]:
    """The events that no reader may miss, until no run is in progress."""
    seen = [each async for each in server.events(path, untilIdle="true", **more)]
    return [each for each in seen if is_lasting(each[1], each[2])]


@pytest.mark.spec("X-3")
async def test_without_the_token_nothing_is_told_or_done_and_each_start_makes_a_new_one() -> None:
    desk = Desk()
    agent = desk.agent("Hi.", "Never.")
    await agent.run("Hello?", session="s")
    before = await desk.entries()
    async with opened(agent) as server:
        token = server.client.headers.pop("authorization")
        described = await server.get("/openapi.json")
        asked = [
            (method.upper(), path.replace("{session}", "s"))
            for path, methods in described["paths"].items()
            for method in methods
            if path not in ("/api/openapi.json", "/api/health", "/api/login")
        ]
        assert len(asked) > 20 and ("POST", "/api/sessions/s/runs") in asked
        for method, path in asked:
            answer = await server.client.request(method, path, json={"text": "x"})
            assert answer.status_code == 401, f"{method} {path}: {answer.text}"
            assert "Hello?" not in answer.text
        await server.post("/login", {"token": "guessed"}, status=401)
        assert not server.client.cookies
    async with opened(agent) as server:
        assert (await server.get("/sessions/s"))["info"]["sessionId"] == "s"
        assert len(token) >= len("Bearer ") + 20 and server.client.headers["authorization"] != token
        for other in (token, server.client.headers["authorization"][:-1], "Bearer", "Bearer None"):
            answer = await server.client.get("/api/sessions/s", headers={"authorization": other})
            assert answer.status_code == 401
    assert await desk.entries() == before


@pytest.mark.spec("X-3")
async def test_it_listens_on_this_machine_alone() -> None:
    desk = Desk()
    async with opened(desk.store) as server:
        where = urlsplit(server.address)
        assert where.hostname == "127.0.0.1" and where.port is not None
        # A server on every address would answer at another one of this machine too.
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.2", where.port)
        # A page elsewhere whose name leads here reads nothing, even with the token.
        answer = await server.client.get("/api/sessions", headers={"host": f"evil.example:{where.port}"})
        assert answer.status_code == 421


@pytest.mark.spec("X-3")
async def test_a_run_is_started_approved_and_followed_by_a_reader_who_was_away(tmp_path: Path) -> None:
    desk = Desk.on_disk(tmp_path)
    turns = (asks_for(call("look", place="attic")), asks_for(call("pay", amount=80)), "Paid.", "Bye.")
    async with desk.agent(*turns) as agent, opened(agent) as server:
        started = await server.post("/sessions", {"text": "Look, then pay."}, status=201)
        session, run = started["sessionId"], started["runId"]
        path = f"/sessions/{session}/events"
        first: list[tuple[int | None, str, Any]] = []
        async with aclosing(server.events(path)) as live:  # cut in the middle of the run
            async for event in live:
                first += [event] if is_lasting(event[1], event[2]) else []
                if event[1] == "tool_result":
                    break
        before = await followed(server, path, last=first[-1][0])
        assert desk.done == ["look attic"], "what needs approval waits"
        [asked] = (await server.get("/inbox"))["approvals"]
        assert (asked["sessionId"], asked["requested"]["arguments"]) == (session, {"amount": 80})
        shown = {key: asked["requested"][key] for key in ("toolCallId", "digest")}
        decision = {**shown, "action": "approve", "by": "ann"}
        assert (await server.post(f"/sessions/{session}/decide", decision))["resumed"] is True
        await server.post(f"/sessions/{session}/decide", decision, status=409)
        after = await followed(server, path, last=before[-1][0])
        assert after[-1][1] == "run_ended" and desk.done == ["look attic", "pay 80"]
        # What came in three connections is what one gets that never broke.
        whole = await followed(server, path)
        assert first + before + after == whole
        assert {data["runId"] for _, _, data in whole} == {run}
        assert await followed(server, path, last=whole[-1][0]) == []
        listed = (await server.get("/sessions"))["sessions"]
        assert [(each["sessionId"], each["status"]) for each in listed] == [(session, "completed")]
        assert "Paid." in json.dumps(await server.get(f"/sessions/{session}/entries"))

    # The numbers belong to the session: another server continues where the first one ended.
    async with desk.agent("Bye.") as later, opened(later) as server:
        await server.post(f"/sessions/{session}/runs", {"text": "Anything else?"}, status=201)
        rest = await followed(server, path, last=whole[-1][0])
        assert whole + rest == await followed(server, path)
        assert rest[0][1] == "input" and rest[-1][1] == "run_ended"


@pytest.mark.spec("X-3")
async def test_a_call_that_is_denied_does_not_run_and_the_model_is_told() -> None:
    desk = Desk()
    async with desk.agent(asks_for(call("pay", amount=80)), "Not paid.") as agent, opened(agent) as server:
        await server.post("/sessions/s/runs", {"text": "Pay."}, status=201)
        await followed(server, "/sessions/s/events")
        [asked] = (await server.get("/inbox"))["approvals"]
        shown = {key: asked["requested"][key] for key in ("toolCallId", "digest")}
        other = {**shown, "digest": "0" * 64, "action": "approve"}
        await server.post("/sessions/s/decide", other, status=409)
        await server.post("/sessions/s/decide", {**shown, "action": "deny", "note": "too much"})
        seen = await followed(server, "/sessions/s/events")
        assert seen[-1][1] == "run_ended" and desk.done == []
        assert "too much" in str(desk.seen[-1])
        assert (await server.get("/inbox"))["approvals"] == []
