"""A support bot behind a web server: events over SSE, a refund that waits for a person, a crash in between.

Start it: `python examples/support_bot.py serve sqlite:shop.db 8080`, and open http://127.0.0.1:8080. Decide
from another terminal: `python examples/support_bot.py decide sqlite:shop.db`. Kill the server at any moment
and start it again: the page continues where it was. The store may be PostgreSQL, too: `postgresql://…`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from turnlog import Agent, AgentError, tool
from turnlog.contract import encode
from turnlog.loop import SessionOptions
from turnlog.models import ModelRequest, ScriptedModel, Turn
from turnlog.system import SystemClock

PAGE = """<!doctype html><title>Support</title><pre></pre><p></p>
<form><input name=text size=60><button>Send</button></form>
<script>
const url = "/chat/" + (location.hash.slice(1) || (location.hash = crypto.randomUUID()))
const [log, live, form] = document.querySelectorAll("pre, p, form")
const line = text => { log.append(text + "\\n"); live.textContent = "" }
const feed = new EventSource(url)  // reconnects by itself, with the number of the last event it saw
feed.onmessage = ({data}) => { const {kind, payload} = JSON.parse(data)
  if (kind === "model_delta" && payload.delta.kind === "text") live.append(payload.delta.payload.textDelta)
  else if (kind === "input" || kind === "assistant_message")
    line(payload.message.parts.map(part => part.payload.text || "").join(""))
  else if (kind === "approval_requested") line(payload.toolName + " waits for approval") }
form.onsubmit = e => { e.preventDefault(); fetch(url, {method: "POST", body: form.text.value}); form.reset() }
</script>"""


@tool(idempotent=True)
async def find_order(order: str) -> str:
    """Look up an order."""
    await asyncio.sleep(1)  # a slow warehouse
    return f"order {order}: 80 dollars, never delivered"


@tool(requires_approval=True, keyed=True)
async def refund(order: str, amount: float) -> str:
    """Pay money back to a customer."""
    return f"paid back {amount} for order {order}"


def answer(request: ModelRequest) -> str | Turn:
    """What a model would say, so that this runs anywhere."""
    last = request.messages[-1].text or "".join(
        part.payload.text for part in request.messages[-1].tool_results
    )
    if "never delivered" in last:
        return Turn(tool_calls=[{"name": "refund", "arguments": {"order": "4711", "amount": 80.0}}])
    if "paid back" in last:
        return "Your 80 dollars are on their way."
    return Turn(text="Let me look.", tool_calls=[{"name": "find_order", "arguments": {"order": "4711"}}])


class Server:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.resumed: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        """Continue runs that a crash left open, and those whose call was decided on."""
        while True:
            for session in await self.agent.store.due(100, now=SystemClock().now()):
                task = asyncio.create_task(self.resume(session))
                self.resumed.add(task)
                task.add_done_callback(self.resumed.discard)
            await asyncio.sleep(0.2)

    async def resume(self, session: str) -> None:
        with suppress(AgentError):  # another process was faster, or the run failed and its log says why
            await self.agent.resume(session)

    async def say(self, session: str, text: str) -> str:
        try:
            await self.agent.send(session, text)  # to the run that is open, if one is
        except AgentError as error:
            if error.code != "SessionNotFound":
                raise
            await self.agent.start(text, session=session)
        return "202 Accepted"

    async def events(self, session: str, after: int) -> AsyncIterator[bytes]:
        with suppress(AgentError):  # nothing was said in this session yet
            async for event in self.agent.session(session).events(after):
                yield b"id: %d\ndata: %s\n\n" % (event.seq, encode(event))

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = lines[0].split(" ")
            headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines[1:])}
            url, session = urlsplit(target), target.split("?")[0].rpartition("/")[2]
            kind, status, body = "text/html", "200 OK", PAGE.encode()
            if method == "POST":
                text = (await reader.readexactly(int(headers["content-length"]))).decode()
                status, body = await self.say(session, text), b""
            elif session:
                kind, body = "text/event-stream", b"retry: 300\n\n"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode() + body
            )
            if kind == "text/event-stream":
                after = headers.get("last-event-id") or parse_qs(url.query).get("after", ["0"])[0]
                async for piece in self.events(session, int(after)):
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left; its run continues
        finally:
            writer.close()


async def serve(store: str, port: int) -> None:
    agent = Agent(
        ScriptedModel(default=answer),
        tools=[find_order, refund],
        store=store,
        sessions=SessionOptions(lease_ttl=2),  # seconds that a dead server keeps its sessions
    )
    async with agent:
        bot = Server(agent)
        async with await asyncio.start_server(bot.handle, "127.0.0.1", port) as server:
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
            await bot.work()


async def decide(store: str) -> None:
    """Somebody's desk: it knows the store, and neither the agent nor its tools."""
    async with Agent(ScriptedModel(), store=store) as desk:
        for call in await desk.pending():
            await desk.session(call.session_id).approve(call, by="ann")
            print(f"ann approves {call.tool_name} {call.arguments}")


if __name__ == "__main__":
    command, url, *rest = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(url, int(rest[0])) if command == "serve" else decide(url))
