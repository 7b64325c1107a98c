"""Who may come in, and what happens to requests that nobody should send."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("uvicorn", reason="needs the extra 'server'")

import httpx2

from server.served import TOKEN, Served, served
from turnlog import Agent, AgentError
from turnlog.history import MemoryStore
from turnlog.models import ScriptedModel
from turnlog.server import create_app
from turnlog.testing import FaultStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    async with Agent(ScriptedModel(["Hello.", "Again."]), store=f"sqlite:{tmp_path / 'log.db'}") as agent:
        await agent.run("Hi", session="s1")
        async with served(agent) as running:
            yield running


async def ask(
    server: Served, method: str = "GET", path: str = "/api/sessions", **given: Any
) -> httpx2.Response:
    """A request without the token of the fixture's client."""
    async with httpx2.AsyncClient(base_url=server.address) as client:
        return await client.request(method, path, **given)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_without_the_token_nothing_of_a_session_is_shown(server: Served) -> None:
    for path in ("/api/sessions", "/api/sessions/s1", "/api/sessions/s1/events", "/api/inbox", "/api/about"):
        answer = await ask(server, path=path)
        assert answer.status_code == 401 and answer.json()["code"] == "TokenRefused"
        assert answer.headers["content-type"] == "application/problem+json"
        assert (await ask(server, path=path, headers=bearer("wrong"))).status_code == 401
    assert (await ask(server, headers=bearer(TOKEN))).status_code == 200
    assert (await ask(server, path="/api/health")).json() == {"ok": True}  # and nothing of how it is used
    assert (await server.get("/about"))["followers"] == 0


async def test_a_name_that_is_not_the_servers_is_refused(server: Served) -> None:
    """A page elsewhere whose name was made to lead here must not read anything."""
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:1", ""):
        answer = await ask(server, headers={**bearer(TOKEN), "host": host})
        assert answer.status_code in (400, 421), host


async def test_a_page_of_another_origin_changes_nothing(server: Served) -> None:
    login = await ask(server, "POST", "/api/login", json={"token": TOKEN})
    assert login.status_code == 204
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    held = {"cookie": cookie.partition(";")[0]}
    assert (await ask(server, headers=held)).status_code == 200
    path, body = "/api/sessions/s1/abort", {"reason": "x"}
    for origin in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
        answer = await ask(server, "POST", path, json=body, headers={**held, **origin})
        assert answer.status_code == 403, origin
    ours = {**held, "origin": server.address}
    assert (await ask(server, "POST", path, json=body, headers=ours)).status_code == 200
    upload = await ask(
        server, "POST", "/api/blobs", content=b"x", headers={**held, "origin": "http://evil.example"}
    )
    assert upload.status_code == 403
    # A form of another page can send no JSON.
    form = await ask(server, "POST", path, content=b"{}", headers={**ours, "content-type": "text/plain"})
    assert form.status_code == 415
    assert (await ask(server, "POST", "/api/login", json={"token": "wrong"})).status_code == 401


async def test_a_message_that_is_too_large_is_refused_before_it_is_read(server: Served) -> None:
    large = json.dumps({"text": "x" * 50_000_000}).encode()
    headers = {**bearer(TOKEN), "content-type": "application/json"}
    answer = await ask(server, "POST", "/api/sessions/s1/runs", content=large, headers=headers)
    assert answer.status_code == 413 and "10,000,000" in answer.json()["detail"]

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * 1_000_000

    answer = await ask(server, "POST", "/api/sessions/s1/runs", content=drip(), headers=headers)
    assert answer.status_code == 413
    assert len(await server.get("/sessions/s1/entries")) == 2  # the server still answers


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/sessions?limit=0", None, 400),
        ("GET", "/api/sessions?limit=no", None, 400),
        ("GET", "/api/sessions?colour=red", None, 400),
        ("GET", "/api/sessions?status=asleep", None, 400),
        ("GET", "/api/sessions?after=nonsense", None, 400),
        ("GET", "/api/sessions?since=yesterday", None, 400),
        ("GET", "/api/sessions/s1/entries/0", None, 404),
        ("GET", "/api/sessions/s1/entries/x", None, 400),
        ("GET", "/api/sessions/%00/entries", None, 404),
        ("GET", "/api/sessions/s1/context/0", None, 404),
        ("GET", "/api/blobs/..%2f..%2fetc%2fpasswd", None, 404),
        ("GET", "/api/blobs/nothing", None, 404),
        ("GET", "/api/nowhere", None, 404),
        ("PUT", "/api/sessions", None, 405),
        ("POST", "/api/sessions/s1/runs", {}, 400),
        ("POST", "/api/sessions/s1/runs", {"text": ""}, 400),
        ("POST", "/api/sessions/s1/runs", {"text": "x", "colour": "red"}, 400),
        ("POST", "/api/sessions/s1/runs", {"text": 5}, 400),
        ("POST", "/api/sessions/s1/runs", [], 400),
        ("POST", "/api/sessions/s1/resume", None, 409),
        ("POST", "/api/sessions/s1/send", {"text": "x"}, 404),
        ("POST", "/api/sessions/s1/decide", {"toolCallId": "x", "digest": "y", "action": "approve"}, 409),
        ("POST", "/api/sessions/s1/decide", {"toolCallId": "x", "digest": "y", "action": "maybe"}, 400),
        ("POST", "/api/sessions/s1/answer", {"toolCallId": "x", "content": 1}, 422),
        ("POST", "/api/sessions/s1/fork", {"at": 999}, 422),
        ("POST", "/api/sessions/s1/redact", {"entryIds": ["x"]}, 422),
        ("DELETE", "/api/sessions/nobody", None, 404),
    ],
)
async def test_bad_requests_get_a_problem_document(
    server: Served, method: str, path: str, body: object, status: int
) -> None:
    answer = await ask(server, method, path, json=body, headers=bearer(TOKEN))
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status and problem["detail"] and problem["code"]


async def test_no_generated_request_makes_the_server_fail(server: Served) -> None:
    """Every endpoint of the document, with values of the right and of the wrong kind."""
    document = (await ask(server, path="/api/openapi.json")).json()
    values: list[Any] = ["", "x" * 300, "\u0000", "-1", "9" * 30, None, {}]
    tried = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path.endswith(("/events", "/blobs")):
                continue
            for at, value in enumerate(values):
                filled = path
                query: dict[str, str] = {}
                for parameter in operation["parameters"]:
                    text = "s1" if parameter["name"] == "session" and at % 2 else str(value)
                    if parameter["in"] == "path":
                        filled = filled.replace("{" + parameter["name"] + "}", quote(text or "-", safe=""))
                    else:
                        query[parameter["name"]] = text
                shape = operation.get("requestBody")
                body = None
                if shape is not None:
                    name = shape["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                    body = dict.fromkeys(document["components"]["schemas"][name]["properties"], value)
                if method == "delete" and "s1" in filled:
                    continue
                answer = await server.client.request(method.upper(), filled, params=query, json=body)
                assert answer.status_code < 500, (method, filled, body, answer.text)
                tried += 1
    assert tried > 150


# The server makes its ids in another thread of this process meanwhile, which looks like chance in a strategy.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("tries", [3, pytest.param(100, marks=pytest.mark.soak)])
async def test_requests_made_from_the_document_never_make_the_server_fail(server: Served, tries: int) -> None:
    """schemathesis fills every operation with values that fit its schema and with some that do not."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs the package schemathesis")
    from hypothesis import HealthCheck, given, settings

    document = (await ask(server, path="/api/openapi.json")).json()
    # A stream of events has no end, and the session is needed until all were tried.
    left_out = {"/api/sessions/{session}/events", "/api/sessions/{session}"}
    seen: Counter[int] = Counter()

    def attack() -> None:
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path in left_out and operation.method.upper() != "GET":
                continue
            if operation.path.endswith("/events"):
                continue

            def probe(case: Any) -> None:
                answer = case.call(base_url=server.address, headers=bearer(TOKEN), timeout=60)
                assert answer.status_code < 500 or answer.status_code == 501, (case.path, answer.text)
                seen[answer.status_code] += 1

            strategy = operation.as_strategy()
            unhealthy = list(HealthCheck)
            run = settings(max_examples=tries, deadline=None, database=None, derandomize=True,
                           suppress_health_check=unhealthy)  # fmt: skip
            run(given(case=strategy)(probe))()

    await asyncio.to_thread(attack)
    assert seen.total() > 80 and seen[200] and seen[400] and seen[404]
    assert (await server.get("/sessions/s1"))["info"]["sessionId"] == "s1"


async def test_a_store_that_cannot_be_read_is_told_and_used_again_when_it_is_back() -> None:
    away = False

    def hook(when: str, method: str, number: int) -> None:
        if away and when == "before":
            raise AgentError("SessionReadFailed", "the disk is gone", retryable=True)

    store = FaultStore(MemoryStore(), hook=hook)
    async with Agent(ScriptedModel(["Hello.", "Again."]), store=store) as agent:
        await agent.run("Hi", session="s1")
        async with served(agent) as server:
            last = len(await agent.session("s1").entries()) * 1_000_000
            events = server.events("/sessions/s1/events", view="entries", after=last)
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0.1)
            away = True
            _, kind, data = await asyncio.wait_for(waiting, 30)
            assert (kind, data["code"]) == ("gone", "SessionReadFailed")
            await events.aclose()
            for path in (
                "/sessions",
                "/sessions/s1",
                "/sessions/s1/entries",
                "/sessions/s1/events",
                "/inbox",
            ):
                refused = await server.get(path, status=503)
                assert refused["code"] == "SessionReadFailed" and refused["retryable"]
            refused = await server.post("/sessions/s1/runs", {"text": "Go."}, status=503)
            away = False
            await server.post("/sessions/s1/runs", {"text": "Go."}, status=201)
            seen = [kind async for _, kind, _ in server.events("/sessions/s1/events", untilIdle="true")]
            assert seen.count("run_ended") == 2


async def test_a_reader_that_does_not_read_holds_nobody_up_and_misses_no_entry(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(12_000))
    async with Agent(ScriptedModel([words]), store="memory:") as agent, served(agent) as server:
        host, port = server.address.removeprefix("http://").split(":")
        await server.post("/sessions/s1/runs", {"text": "Talk."}, status=201)
        reader, writer = await asyncio.open_connection(host, int(port), limit=1_000)
        writer.write(
            f"GET /api/sessions/s1/events?view=entries&untilIdle=true HTTP/1.1\r\nhost: {host}:{port}\r\n"
            f"authorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        seen = [kind async for _, kind, _ in server.events("/sessions/s1/events", untilIdle="true")]
        assert seen[-1] == "run_ended"  # another reader, while the first one has read nothing
        late = await reader.read()
        writer.close()
        numbers = [int(found) for found in re.findall(rb"id: (\d+)000000\n", late)]
        assert numbers == [entry.seq for entry in await agent.session("s1").entries()]


async def test_a_follower_of_a_session_that_is_deleted_is_told(tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["Hello."]), store=f"jsonl:{tmp_path / 'logs'}") as agent:
        await agent.run("Hi", session="s1")
        async with served(agent) as server:
            events = server.events("/sessions/s1/events", view="entries", after=99_000_000)
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0.1)
            await agent.session("s1").delete()
            _, kind, data = await asyncio.wait_for(waiting, 30)
            assert kind == "gone" and data["code"] == "SessionNotFound"
            await events.aclose()


async def test_too_many_followers_are_refused_and_idle_ones_cost_nothing(tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["Hello."]), store="memory:") as agent:
        await agent.run("Hi", session="s1")
        app = create_app(agent, token=False, hosts=["t"], max_followers=3)
        app.state.server.feeds.get("s1", "events").followers = 3
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://t",  # pyright: ignore
        ) as client:
            answer = await client.get("/api/sessions/s1/events")
            assert answer.status_code == 503 and answer.json()["retryable"] is True


async def test_wrong_options_are_refused_when_the_app_is_made() -> None:
    for wrong in ({"token": ""}, {"token": 5}):
        with pytest.raises(AgentError, match="token"):
            create_app(Agent(ScriptedModel([]), store="memory:"), **wrong)  # pyright: ignore
    with pytest.raises(AgentError, match="Agent or a Store"):
        create_app("sqlite:x.db")  # pyright: ignore
