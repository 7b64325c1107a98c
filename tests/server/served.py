"""A real server on a free port of this machine, and a client that may use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from turnlog import Agent
from turnlog.contract import Store
from turnlog.server import serve

TOKEN = "a-token-for-tests"


@dataclass
class Served:
    """``client`` sends the token; ``address`` is the server's own."""

    client: httpx2.AsyncClient
    address: str

    async def get(self, path: str, status: int = 200, **params: Any) -> Any:
        answer = await self.client.get(f"/api{path}", params=params)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: object = None, status: int = 200, **more: Any) -> Any:
        answer = await self.client.post(f"/api{path}", json=body if body is not None else {}, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def events(
        self, path: str, *, last: int | None = None, **params: Any
    ) -> AsyncIterator[tuple[int | None, str, Any]]:
        """Server-sent events as number, name and data."""
        headers = {} if last is None else {"last-event-id": str(last)}
        async with self.client.stream("GET", f"/api{path}", params=params, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            held: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if not line and "data" in held:
                    number = int(held["id"]) if "id" in held else None
                    yield number, held.get("event", "message"), json.loads(held["data"])
                name, _, value = line.partition(": ")
                held = {**held, name: value} if line and name else {}


@asynccontextmanager
async def served(agent: Agent[Any] | Store, **options: Any) -> AsyncGenerator[Served]:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(address: str, token: str | None) -> None:
        listening.set_result(address)

    task = asyncio.create_task(serve(agent, port=0, token=TOKEN, ready=ready, **options))
    try:
        await asyncio.wait([listening, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        address = listening.result().rstrip("/")
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
            yield Served(client, address)
    finally:
        task.cancel()
        await asyncio.wait([task])
