"""CPU per text delta from socket to MessageDelta, with each HTTP client that is installed, against the bare
client, the official clients, and those other frameworks that are installed (``provider_peers.py``).

A server in another process sends ready-made bytes; only this process's CPU counts. Everything runs in one
go, several times in turn, and the smallest figure of each is taken.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.provider_peers import installed, peers

from turnlog.contract import user_message
from turnlog.models import Model, load_model

DELTAS = 2_000
FRAGMENTS = (1_000, 4_000)
PACED = 100
STREAMS, SHORT = 200, 100
QUESTION = "word " * 20_000
CLIENTS = [name for name in ("httpx2", "aiohttp") if find_spec(name)]
ROUNDS = 7
WORDS = (b"word", b"text")
"""Two in turn: one framework takes a model that repeats itself for a broken one."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'


def chat_body(count: int) -> bytes:
    texts = [CHUNK + b'{"content":"%b "},"finish_reason":null}]}' % word for word in WORDS]
    end = CHUNK + b'{},"finish_reason":"stop"}]}'
    return _sse(texts * (count // len(WORDS)) + [end, b"[DONE]"])


def chat_call_body(count: int) -> bytes:
    def call(fields: bytes) -> bytes:
        return CHUNK + b'{"tool_calls":[{"index":0,' + fields + b'}]},"finish_reason":null}]}'

    first = call(b'"id":"call_1","type":"function","function":{"name":"f","arguments":"{\\"text\\":\\""}')
    piece = call(b'"function":{"arguments":"word "}')
    last = call(b'"function":{"arguments":"\\"}"}')
    end = CHUNK + b'{},"finish_reason":"tool_calls"}]}'
    return _sse([first, *[piece] * count, last, end, b"[DONE]"])


def anthropic_body(count: int) -> bytes:
    start = (
        b'{"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","content":[],'
        b'"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}'
    )
    open_block = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
    piece = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b "}}'
    pieces = [piece % word for word in WORDS] * (count // len(WORDS))
    stop_block = b'{"type":"content_block_stop","index":0}'
    delta = (
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        b'"usage":{"output_tokens":9}}'
    )
    events = [start, open_block, *pieces, stop_block, delta, b'{"type":"message_stop"}']
    names = [msgspec.json.decode(event)["type"].encode() for event in events]
    return _chunked([b"event: " + name + b"\ndata: " + e for name, e in zip(names, events, strict=True)])


def _sse(events: list[bytes]) -> bytes:
    return _chunked([b"data: " + event for event in events])


def _chunked(events: list[bytes]) -> bytes:
    pieces = [b"%x\r\n%s\n\n\r\n" % (len(event) + 2, event) for event in events]
    return b"".join([*pieces, b"0\r\n\r\n"])


async def serve() -> None:
    bodies = {
        f"/chat/{DELTAS}/chat/completions": chat_body(DELTAS),
        f"/short/{SHORT}/chat/completions": chat_body(SHORT),
        "/round/chat/completions": chat_body(len(WORDS)),
        "/anthropic/v1/messages": anthropic_body(DELTAS),
    }
    paced = [_chunked([event])[:-5] for event in _events(chat_body(PACED))]
    bodies |= {f"/call/{count}/chat/completions": chat_call_body(count) for count in FRAGMENTS}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next((int(v) for k, v in _headers(head) if k == b"content-length"), 0)
            await reader.readexactly(length)
            path = head.split(b" ", 2)[1].decode()
            if path.startswith("/paced"):
                writer.write(HEAD)
                for event in paced:
                    writer.write(event)
                    await asyncio.sleep(0.002)
                writer.write(b"0\r\n\r\n")
            else:  # One event is one HTTP chunk, as providers send them.
                writer.write(HEAD + bodies[path])
            await writer.drain()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _events(body: bytes) -> list[bytes]:
    return [line for line in body.split(b"\n") if line.startswith(b"data: ")]


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (k.strip().lower(), v.strip())
        for k, _, v in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    ]


Jobs: TypeAlias = dict[str, tuple[Callable[[], Awaitable[int]], int]]
"""Name → what is run, and how many deltas must come."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


async def bare_httpx2(client: httpx2.AsyncClient, url: str) -> int:
    """The limit: bytes from the client, split at blank lines, decoded with msgspec."""
    async with client.stream("POST", url, json={"stream": True}) as response:
        return await count_texts(response.aiter_raw())


async def bare_aiohttp(client: Any, url: str) -> int:
    async with client.post(url, json={"stream": True}) as response:
        return await count_texts(response.content.iter_any())


async def count_texts(pieces: AsyncIterator[bytes]) -> int:
    decode = msgspec.json.Decoder(_Chunk).decode
    count, rest = 0, b""
    async for data in pieces:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            payload = event[6:]
            if payload != b"[DONE]" and decode(payload).choices[0].delta.content:
                count += 1
    return count


async def ours(model: Model, kind: str = "text", question: str = "go") -> int:
    return len([1 async for delta in model.stream([user_message(question)]) if delta.kind == kind])


async def many(job: Callable[[], Awaitable[int]]) -> int:
    return sum(await asyncio.gather(*(job() for _ in range(STREAMS))))


@asynccontextmanager
async def jobs_of(name: str, base: str) -> AsyncIterator[Jobs]:
    """What is measured with one HTTP client."""

    def chat(path: str) -> Model:
        return load_model("openai-chat:m", base_url=f"{base}{path}", api_key="none", transport=name)

    if name == "httpx2":
        client: Any = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None))
        bare = bare_httpx2
    else:
        import aiohttp

        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        bare = bare_aiohttp
    burst, paced, short, asked = (chat(p) for p in (f"/chat/{DELTAS}", "/paced", f"/short/{SHORT}", "/round"))
    claude = load_model("anthropic:m", base_url=f"{base}/anthropic", api_key="none", transport=name)
    urls = {
        path: f"{base}{path}/chat/completions" for path in (f"/chat/{DELTAS}", "/paced", f"/short/{SHORT}")
    }
    at_once = STREAMS * SHORT
    async with client:
        yield {
            f"bare {name}": (lambda: bare(client, urls[f"/chat/{DELTAS}"]), DELTAS),
            f"chat {name}": (lambda: ours(burst), DELTAS),
            f"anthropic {name}": (lambda: ours(claude), DELTAS),
            f"bare paced {name}": (lambda: bare(client, urls["/paced"]), PACED),
            f"paced {name}": (lambda: ours(paced), PACED),
            f"round {name}": (lambda: ours(asked, question=QUESTION), len(WORDS)),
            f"bare many {name}": (lambda: many(lambda: bare(client, urls[f"/short/{SHORT}"])), at_once),
            f"many {name}": (lambda: many(lambda: ours(short)), at_once),
        }
    for model in (burst, paced, short, asked, claude):
        await model.close()


async def openai_sdk(client: Any) -> int:
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "go"}], stream=True
    )
    return len([1 async for chunk in stream if chunk.choices and chunk.choices[0].delta.content])


async def anthropic_sdk(client: Any) -> int:
    stream = await client.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}], stream=True
    )
    return len([1 async for event in stream if event.type == "content_block_delta"])


async def works(name: str, job: Callable[[], Awaitable[int]]) -> bool:
    """Whether a framework of others gets through one stream here; it says why where it does not."""
    try:
        found = await job()
    except Exception as error:
        print(f"{name} is left out: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        return False
    if found != DELTAS:
        print(f"{name} is left out: {found} deltas, not {DELTAS}", file=sys.stderr)
    return found == DELTAS


async def measure(jobs: Jobs) -> dict[str, float]:
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for name, (job, expected) in jobs.items():
            gc.collect()
            start = time.process_time()
            found = await job()
            spent = time.process_time() - start
            assert found == expected, f"{name}: {found} deltas, not {expected}"
            best[name] = min(best[name], spent / expected * 1e6)
    return best


async def compare(base: str) -> list[tuple[str, str, str]]:
    async with AsyncExitStack() as stack:
        jobs: Jobs = {}
        for name in CLIENTS:
            jobs |= await stack.enter_async_context(jobs_of(name, base))
        return await compare_all(base, jobs)


async def compare_all(base: str, jobs: Jobs) -> list[tuple[str, str, str]]:
    for count in FRAGMENTS:
        calling = load_model("openai-chat:m", base_url=f"{base}/call/{count}", api_key="none")
        jobs[f"call {count}"] = (lambda m=calling: ours(m, "tool_call_args"), count + 2)
    if find_spec("openai"):
        import openai

        sdk = openai.AsyncOpenAI(base_url=f"{base}/chat/{DELTAS}", api_key="none")
        jobs["openai sdk"] = (lambda: openai_sdk(sdk), DELTAS)
    if find_spec("anthropic"):
        import anthropic

        claude_sdk = anthropic.AsyncAnthropic(base_url=f"{base}/anthropic", api_key="none")
        jobs["anthropic sdk"] = (lambda: anthropic_sdk(claude_sdk), DELTAS)
    urls = {"chat": f"{base}/chat/{DELTAS}", "anthropic": f"{base}/anthropic"}
    others = [peer for peer in peers() if installed(peer)]
    for peer in others:
        job = peer.make(urls[peer.protocol])
        if await works(peer.name, job):
            jobs[peer.name] = (job, DELTAS)
    best = await measure(jobs)
    rows = [row for name in CLIENTS for row in rows_of(name, best)]
    behind = {
        "openai sdk": "chat",
        "anthropic sdk": "anthropic",
        **{peer.name: peer.protocol for peer in others},
    }
    for name, protocol in behind.items():
        if name in best:
            ratio = best[name] / best[f"{protocol} httpx2"]
            rows.append((f"  {name}", f"{best[name]:.1f} µs", f"behind us (it takes {ratio:.1f}x)"))
    rows += [
        (f"  {peer.name}", "not installed", "pip install --group bench")
        for peer in peers()
        if peer not in others
    ]
    short, long = (best[f"call {count}"] for count in FRAGMENTS)
    rows.append((f"argument fragment of {FRAGMENTS[0]}", f"{short:.1f} µs", ""))
    rows.append((f"  of {FRAGMENTS[1]}, against it", f"{long / short:.2f}x", "linear: about 1x"))
    return rows


def rows_of(name: str, best: dict[str, float]) -> list[tuple[str, str, str]]:
    limit = best[f"bare {name}"]
    rows = [(f"text delta, bare {name} + split + msgspec", f"{limit:.1f} µs", "")]
    for protocol in ("chat", "anthropic"):
        ours = best[f"{protocol} {name}"]
        rows.append((f"  turnlog, {protocol}", f"{ours:.1f} µs", ""))
        rows.append(("    against bare", f"{ours / limit:.2f}x", "≤ 1.6x" if name == "httpx2" else ""))
    limit, ours = best[f"bare paced {name}"], best[f"paced {name}"]
    rows.append((f"  one delta every 2 ms, bare {name}", f"{limit:.0f} µs", ""))
    rows.append(("    turnlog, chat", f"{ours:.0f} µs", "≤ 1.08x of bare"))
    limit, ours = (1e6 / best[f"{kind} {name}"] for kind in ("bare many", "many"))
    rows.append((f"  {STREAMS} streams at once, bare {name}", f"{limit:,.0f} /s", ""))
    rows.append(("    turnlog, chat", f"{ours:,.0f} /s", "≥ 100,000 with aiohttp"))
    asked = best[f"round {name}"] * len(WORDS) / 1000
    rows.append((f"  a request of {len(QUESTION) // 1000} kB and a short answer", f"{asked:.2f} ms", ""))
    return rows


def rows() -> list[tuple[str, str, str]]:
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        return asyncio.run(compare(f"http://127.0.0.1:{port}"))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        for name, figure, goal in rows():
            print(f"{name:<52} {figure:>12}   {goal}")
