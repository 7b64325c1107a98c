"""The agent behind OpenAI's own endpoints: ``/v1/responses``, ``/v1/chat/completions`` and ``/v1/models``.

A conversation is a session. The agent's tools run on the server; in ``/v1/responses`` they are shown as
``mcp_call`` items, and a call that waits for a person as an ``mcp_approval_request``.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, urlsafe_b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from time import time
from typing import Any, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from turnlog import events
from turnlog.contract import (
    AgentError,
    JsonObject,
    ModelParams,
    RunEvent,
    RunResult,
    RunStartedEntry,
    TokenUsage,
    encode,
)
from turnlog.files import File
from turnlog.loop import Run, Session
from turnlog.transcript import import_messages

from ._app import Server
from ._guard import Problem, status_of
from ._response import Told, name_of

_PER_EVENT = 8
"""Events of OpenAI that one of ours may become: its number times this is the first of theirs."""


class _Chat(msgspec.Struct, kw_only=True):
    """The fields that are read; others are left alone."""

    messages: list[JsonObject]
    model: str | None = None
    stream: bool = False
    stream_options: JsonObject | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    metadata: dict[str, str] | None = None
    n: int | None = None
    tools: list[JsonObject] | None = None
    response_format: JsonObject | None = None


class _Responses(msgspec.Struct, kw_only=True):
    input: str | list[JsonObject]
    model: str | None = None
    stream: bool = False
    background: bool = False
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    tools: list[JsonObject] | None = None
    text: JsonObject | None = None


def openai_routes(server: Server) -> list[Route]:
    def guarded(handler: Callable[[Server, Request], Awaitable[Response]]) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return await handler(server, request)
            except Problem as problem:
                return _refuse(problem.status, problem.code, problem.detail)
            except AgentError as error:
                return _refuse(status_of(error), error.code, error.message)
            except ClientDisconnect:
                return Response(status_code=400)

        return answer

    return [
        Route("/models", guarded(_models), methods=["GET"]),
        Route("/chat/completions", guarded(_complete), methods=["POST"]),
        Route("/responses", guarded(_respond), methods=["POST"]),
        Route("/responses/{id}", guarded(_retrieve), methods=["GET"]),
        Route("/responses/{id}/cancel", guarded(_cancel), methods=["POST"]),
    ]


def _refuse(status: int, code: str, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code, "param": None}}
    return Response(encode(body), status, media_type="application/json")


async def _read(request: Request, kind: type[Any]) -> Any:
    try:
        body = msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise Problem(400, "BodyInvalid", str(error)) from error
    if body.tools:
        raise Problem(400, "NotSupported", "the agent of this server has its own tools; leave out 'tools'")
    held: JsonObject = {"format": body.response_format} if kind is _Chat else body.text or {}
    shape: JsonObject | None = held.get("format")
    if shape is not None and shape.get("type") != "text":
        raise Problem(400, "NotSupported", "the agent decides the form of its answers; ask for text")
    return body


async def _models(server: Server, request: Request) -> Response:
    models = [{"id": name_of(server), "object": "model", "created": 0, "owned_by": "turnlog"}]
    return Response(encode({"object": "list", "data": models}), media_type="application/json")


# ── starting a run ──


async def _start(
    server: Server,
    session_id: str | None,
    items: list[JsonObject],
    params: ModelParams,
    instructions: str | None,
) -> Run[Any]:
    """Start a run with the last user message; what came before it is the past of a new session."""
    given = [item for item in items if item.get("role") not in ("system", "developer")]
    told = [_text(item.get("content")) for item in items if item.get("role") in ("system", "developer")]
    if not given or given[-1].get("role") != "user":
        raise Problem(400, "BodyInvalid", "the last message must be one of the user")
    session = server.driven(session_id)
    if given[:-1] and await server.store.tail(session.session_id) is None:
        await import_messages(server.store, session.session_id, given[:-1])
    words = "\n\n".join(each for each in (instructions, *told) if each) or None
    run = await session.start(_parts(given[-1].get("content")), params=params, instructions=words)
    server.keep(run)
    return run


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in _listed(content))


def _listed(content: object) -> list[JsonObject]:
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("JsonObject", part) for part in parts if isinstance(part, dict)]


def _parts(content: Any) -> Any:
    """What a user said, with the pictures that came along as data."""
    if isinstance(content, str):
        return content
    made: list[str | File] = []
    for part in _listed(content):
        match part:
            case {"type": "text" | "input_text", "text": str(text)}:
                made.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}} | {
                "type": "input_image",
                "image_url": str(url),
            }:
                made.append(_picture(url))
            case _:
                raise Problem(400, "NotSupported", "a user message may hold text, and pictures as data URLs")
    if not made:
        raise Problem(400, "BodyInvalid", "the user's message is empty")
    return made


def _picture(url: str) -> File:
    head, mark, data = url.partition(";base64,")
    if not mark or not head.startswith("data:image/"):
        raise Problem(400, "NotSupported", "send a picture as a data URL; this server fetches nothing")
    try:
        return File.from_bytes(b64decode(data, validate=True), name="picture")
    except ValueError as error:
        raise Problem(400, "BodyInvalid", f"the picture is not base64: {error}") from error


async def _abort(server: Server, run: Run[Any]) -> None:
    """The client of a run that is not in the background has left: nobody wants its answer."""
    if not run.done:
        await run.abort("the client closed the connection")


def _stream(frames: AsyncIterator[bytes]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(frames, media_type="text/event-stream", headers=headers)


async def _wait(server: Server, request: Request, run: Run[Any]) -> RunResult[Any]:
    """The result of a run, which ends when the client leaves first."""
    done = asyncio.ensure_future(run.result(check=False))
    try:
        while not done.done():
            await asyncio.wait([done], timeout=0.5)
            if not done.done() and await request.is_disconnected():
                raise ClientDisconnect
    finally:
        if not done.done():
            done.cancel()
            await _abort(server, run)
    return done.result()


# ── chat completions ──


async def _complete(server: Server, request: Request) -> Response:
    body: _Chat = await _read(request, _Chat)
    if body.n not in (None, 1):
        raise Problem(400, "NotSupported", "one answer is given; leave out 'n'")
    params = ModelParams(
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=body.max_completion_tokens or body.max_tokens,
    )
    session_id = request.headers.get("x-session-id") or (body.metadata or {}).get("session_id")
    run = await _start(server, session_id, body.messages, params, None)
    base = {
        "id": f"chatcmpl-{run.run_id}",
        "created": _now(),
        "model": name_of(server),
        "session_id": run.session_id,
    }
    if body.stream:
        wants_usage = bool((body.stream_options or {}).get("include_usage"))
        return _stream(_chunks(server, run, base, wants_usage))
    result = await _wait(server, request, run)
    if (problem := _unfinished(result)) is not None:
        return _refuse(problem.status, problem.code, problem.detail)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": result.text, "refusal": None},
        "finish_reason": _finish(result),
        "logprobs": None,
    }
    made = {**base, "object": "chat.completion", "choices": [choice], "usage": _chat_usage(result.usage)}
    return Response(encode(made), media_type="application/json")


async def _chunks(
    server: Server, run: Run[Any], base: JsonObject, wants_usage: bool
) -> AsyncGenerator[bytes]:
    def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _data({**base, "object": "chat.completion.chunk", "choices": [choice]})

    try:
        yield chunk({"role": "assistant", "content": ""})
        async for event in run.events():
            match event:
                case events.TextDelta():
                    yield chunk({"content": event.text})
                case events.RunEnded():
                    if (problem := _unfinished(event.result)) is not None:
                        yield _data(
                            {"error": {"message": problem.detail, "type": "error", "code": problem.code}}
                        )
                        return
                    yield chunk({}, _finish(event.result))
                    if wants_usage:
                        usage = _chat_usage(event.result.usage)
                        yield _data(
                            {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}
                        )
                case _:
                    pass
        yield b"data: [DONE]\n\n"
    finally:
        await asyncio.shield(_abort(server, run))


def _unfinished(result: RunResult[Any]) -> Problem | None:
    match result.status:
        case "completed":
            return None
        case "awaiting_human" | "paused":
            words = (
                "a call of the agent waits for a person; decide on it in the timeline, or use /v1/responses"
            )
            return Problem(409, "AwaitingApproval", f"{words} (session {result.session_id})")
        case "failed" | "aborted":
            error = result.last_error or AgentError("RunAborted", "the run was aborted").to_info()
            return Problem(502 if error.category == "model" else 500, error.code, error.message)


def _finish(result: RunResult[Any]) -> str:
    return {"length": "length", "content_filter": "content_filter"}.get(result.finish_reason or "", "stop")


def _chat_usage(usage: TokenUsage | None) -> JsonObject | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0},
    }


def _data(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _now() -> int:
    return int(time())


# ── responses ──


async def _respond(server: Server, request: Request) -> Response:
    body: _Responses = await _read(request, _Responses)
    session_id = _session_of(body)
    items: list[JsonObject] = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    )
    params = ModelParams(temperature=body.temperature, top_p=body.top_p, max_tokens=body.max_output_tokens)
    decisions = [item for item in items if item.get("type") == "mcp_approval_response"]
    if decisions:
        run = await _decide(server, session_id, decisions)
    else:
        run = await _start(server, session_id, items, params, body.instructions)
    told = Told(server, run.session_id, run.run_id, body.previous_response_id)
    if body.stream:
        return _stream(_frames(server, told, run.events(), None if body.background else run, 0))
    if body.background:
        return _answer(told.response("queued"))
    await _wait(server, request, run)
    return _answer(await _finished(told))


def _answer(response: JsonObject) -> Response:
    return Response(encode(response), media_type="application/json")


def _session_of(body: _Responses) -> str | None:
    if body.previous_response_id is not None:
        return _places(body.previous_response_id)[0]
    found = body.conversation.get("id") if isinstance(body.conversation, dict) else body.conversation
    return str(found) if found is not None else None


def _places(response_id: str) -> tuple[str, str]:
    name, _, run_id = response_id.removeprefix("resp_").partition(".")
    try:
        return urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode(), run_id
    except ValueError as error:
        raise Problem(404, "ResponseNotFound", f"there is no response {response_id!r}") from error


async def _decide(server: Server, session_id: str | None, items: list[JsonObject]) -> Run[Any]:
    if session_id is None:
        raise Problem(400, "BodyInvalid", "an approval needs previous_response_id or conversation")
    session: Session[Any] = server.driven(session_id)
    for item in items:
        call_id = str(item.get("approval_request_id", "")).removeprefix("mcpr_")
        action = "approve" if item.get("approve") is True else "deny"
        await session.decide(call_id, action, by="client of /v1/responses", note=item.get("reason"))
    run = await session.start_resume()
    if run is None:
        raise Problem(409, "NothingToResume", f"session {session_id} has no open run")
    server.keep(run)
    return run


async def _retrieve(server: Server, request: Request) -> Response:
    session_id, run_id = _places(request.path_params["id"])
    entries = await server.store.load(session_id)
    begun = [entry for entry in entries if isinstance(entry, RunStartedEntry) and entry.run_id == run_id]
    if not begun:
        raise Problem(404, "ResponseNotFound", f"there is no response {request.path_params['id']!r}")
    told = Told(server, session_id, run_id, None)
    session = server.session(session_id)
    state = await session.state()
    is_open = state.current_run_id == run_id and state.status not in ("awaiting_human", "paused")
    if is_open and await session.driver() is None:  # the process that drove it is gone
        run = await server.driven(session_id).start_resume()
        if run is not None:
            server.keep(run)
    if request.query_params.get("stream") == "true":
        after = request.query_params.get("starting_after", "0")
        if not after.isdecimal():
            raise Problem(400, "QueryInvalid", "starting_after is the sequence_number of an event")
        return _stream(_frames(server, told, session.events(), None, int(after)))
    if state.current_run_id == run_id and await session.driver() is not None:
        return _answer(told.response("in_progress"))
    return _answer(await _finished(told))


async def _cancel(server: Server, request: Request) -> Response:
    session_id, run_id = _places(request.path_params["id"])
    await server.session(session_id).abort("cancelled by the client")
    return _answer(await _finished(Told(server, session_id, run_id, None)))


async def _finished(told: Told) -> JsonObject:
    """The response as the log has it, up to where its run ended, waits or stands."""
    async for event in told.server.session(told.session_id).events():
        for _ in told.step(event):
            pass
        if told.ended:
            break
    return told.response()


async def _frames(
    server: Server, told: Told, source: AsyncIterator[RunEvent], owned: Run[Any] | None, after: int
) -> AsyncGenerator[bytes]:
    """The events of a response with numbers above ``after``. ``owned`` ends when its client leaves."""
    try:
        async for event in source:
            for place, (name, data) in enumerate(told.step(event)):
                number = event.seq * _PER_EVENT + place
                if number > after:
                    body = encode({"type": name, "sequence_number": number, **data})
                    yield b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"
            if told.ended:
                return
    finally:
        if owned is not None:
            await asyncio.shield(_abort(server, owned))
