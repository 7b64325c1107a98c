"""One call of a tool of a server: sent, continued with answers, and its result in our words."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextvars
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from turnlog.contract import AgentError, Image, ImagePart, JsonObject, TokenUsage, text_part
from turnlog.tools import GivenAnswer, ResultPart, ToolContext, ToolError, ToolResult

from ._link import Flight, Link, Question
from ._transport import in_words

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from mcp import Client, types

_ROUNDS = 10
"""How often a server may ask for input, or for another try, within one call."""
_HELD = 64
"""Calls of one server that wait for a person with the connection held open; of older ones, the call is made
again once the answer is there."""
_BURST, _RATE = 100, 20.0
"""Reports of progress that are passed on at once, and then in a second."""
_MORE = 4_000
_STALE = "Session terminated"
_UNKNOWN = "ToolOutcomeUnknown"


class Server(Protocol):
    """What a call needs of its server."""

    name: str
    held: dict[tuple[str, str], Flight]
    sampling: Any

    async def linked(self) -> Link: ...


async def call_tool(server: Server, name: str, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Call a tool of a server. What goes wrong is a ``ToolError`` that says whether it may have taken effect;
    a question to a person is a deferred answer."""
    sampler = Sampler(server, ctx)
    for attempt in range(2):
        link = await server.linked()
        try:
            work = _ask_modern if link.is_modern else _ask_older
            result = await work(server, link, name, arguments, ctx, sampler)
            return replace(result, usage=sampler.usage) if sampler.usage is not None else result
        except (AgentError, ToolError, asyncio.CancelledError):
            raise
        except Exception as error:
            if _is_stale(error) and not attempt:
                link.give_up()  # the server forgot the connection and ran nothing
                continue
            if _is_gone(error):
                link.give_up()
                said = link.outcome.reason or getattr(getattr(error, "error", None), "message", None)
                why = f" ({said})" if said and said != "Connection closed" else ""
                raise ToolError(
                    f"the connection to MCP server {server.name!r} broke{why}; the call may have taken "
                    "effect or not: look at the actual state before you call it again",
                    code=_UNKNOWN,
                ) from error
            raise ToolError(f"MCP server {server.name!r}: {in_words(error)}") from error
    raise AssertionError("unreachable: the second attempt returns or raises")


def _is_stale(error: BaseException) -> bool:
    return getattr(getattr(error, "error", None), "message", None) == _STALE


def _is_gone(error: BaseException) -> bool:
    from mcp import types

    code = getattr(getattr(error, "error", None), "code", None)
    return isinstance(error, ConnectionError) or code == types.CONNECTION_CLOSED


# ── the newer protocol: a question is a result, and the call is made again with the answer ──


async def _ask_modern(
    server: Server, link: Link, name: str, arguments: JsonObject, ctx: ToolContext, sampler: Sampler
) -> ToolResult:
    from mcp import MCPError, types

    answers, report = Answers(ctx.answers), throttled(ctx)
    last = answers.last or {}
    state: str | None = last.get("request_state")
    requests: JsonObject = last.get("requests") or {}
    continues, pause = bool(requests), 0.05
    for _ in range(_ROUNDS):
        asked = answers.first_unknown(requests)
        if asked is not None:
            return _defer(server.name, asked, {"request_state": state, "requests": requests})
        given = await _responses(server.name, requests, answers, sampler)

        def send(client: Client, given: Any = given or None, state: str | None = state) -> Any:
            return client.session.call_tool(
                name,
                arguments,
                progress_callback=report,
                input_responses=given,
                request_state=state,
                meta=_meta(ctx),
                allow_input_required=True,
            )

        try:
            result: types.CallToolResult | types.InputRequiredResult = await link.run(send)
        except MCPError as error:
            if not continues or error.error.code != types.INVALID_PARAMS:
                raise
            # It was started anew since it asked and no longer knows its own state: from the beginning.
            state, requests, continues = None, {}, False
            continue
        if isinstance(result, types.CallToolResult):
            return as_result(result)
        state, continues = result.request_state, False
        requests = {
            key: each.model_dump(mode="json", by_alias=True, exclude_none=True)
            for key, each in (result.input_requests or {}).items()
        }
        if not requests:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
    raise ToolError(f"MCP server {server.name!r} asked for input {_ROUNDS} times and gave no result")


async def _responses(server: str, requests: JsonObject, answers: Answers, sampler: Sampler) -> JsonObject:
    """What a server asked for: what people have answered, and text of a model where it may have that."""
    from mcp import types

    given: JsonObject = {}
    for key, request in requests.items():
        match request["method"]:
            case "elicitation/create":
                given[key] = answers.find(_asked(request["params"]))
            case "sampling/createMessage":
                params = types.CreateMessageRequestParams.model_validate(request["params"])
                given[key] = await sampler(params)
            case method:
                raise ToolError(f"MCP server {server!r} asked for {method}, which it is not given")
        if isinstance(given[key], types.ErrorData):
            raise ToolError(f"MCP server {server!r} was refused: {given[key].message}")
    return given


def _meta(ctx: ToolContext) -> Any:
    # Servers that know it can tell a call that is made again from another one.
    return {"turnlog/idempotencyKey": ctx.idempotency_key} if ctx.idempotency_key else None


# ── the older protocol: a question comes from the server while the call runs ──


async def _ask_older(
    server: Server, link: Link, name: str, arguments: JsonObject, ctx: ToolContext, sampler: Sampler
) -> ToolResult:
    key = (ctx.session_id, ctx.tool_call_id)
    answers, report = Answers(ctx.answers), throttled(ctx)
    flight = server.held.pop(key, None)
    reply = answers.latest

    async def go(client: Client) -> Any:
        nonlocal flight
        if flight is not None and reply is not None and flight in link.flights and flight.is_waiting:
            assert flight.question is not None
            flight.question.reply.set_result(reply)
            return await flight.advance(link, None)
        # The connection in which it asked is gone, or the server gave up waiting: it is asked anew, and what
        # it wants to know is known by now.
        flight = Flight(answers.find, sampler.from_elsewhere())
        return await flight.advance(
            link,
            lambda: client.session.call_tool(name, arguments, progress_callback=report, meta=_meta(ctx)),
        )

    found = await link.run(go)
    if not isinstance(found, Question):
        return as_result(found)
    assert flight is not None
    if ctx.tool_call_id and len(server.held) < _HELD:
        server.held[key] = flight
    else:
        flight.drop()
    return _defer(server.name, found.asked, {})


# ── questions ──


class Answers:
    """The answers that a person has given so far, by what was asked."""

    def __init__(self, given: tuple[GivenAnswer, ...]) -> None:
        self._known: dict[str, types.ElicitResult] = {}
        self.latest: types.ElicitResult | None = None
        self.last: JsonObject | None = None
        for each in given:
            self.latest = _elicited(each)
            self._known[str(each.state.get("question"))] = self.latest
            self.last = each.state

    def first_unknown(self, requests: JsonObject) -> types.ElicitRequestParams | None:
        asked = (
            _asked(each["params"]) for each in requests.values() if each["method"] == "elicitation/create"
        )
        return next((each for each in asked if self.find(each) is None), None)

    def find(self, asked: types.ElicitRequestParams) -> types.ElicitResult | None:
        return self._known.get(_question_id(asked)) if self._known else None


def _elicited(given: GivenAnswer) -> types.ElicitResult:
    from mcp import types

    if given.declined:
        return types.ElicitResult(action="decline")
    found: object = given.content
    content = cast("dict[str, Any]", found) if isinstance(found, dict) else None
    return types.ElicitResult(action="accept", content=content)


def _asked(params: JsonObject) -> types.ElicitRequestParams:
    from mcp import types

    kind = types.ElicitRequestURLParams if params.get("mode") == "url" else types.ElicitRequestFormParams
    return kind.model_validate(params)


def _question_id(asked: types.ElicitRequestParams) -> str:
    told = asked.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta", "elicitation_id"})
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _defer(server: str, asked: types.ElicitRequestParams, state: JsonObject) -> ToolResult:
    url = getattr(asked, "url", None)
    schema = None if url is not None else asked.model_dump(mode="json", by_alias=True)["requestedSchema"]
    words = asked.message if url is None else f"{asked.message}\nOpen {url} and answer when you are done."
    return ToolResult.deferred(
        f"MCP server {server!r} asks for input",
        question=f"{server} asks: {words}",
        answer_schema=schema,
        state={"question": _question_id(asked), **{k: v for k, v in state.items() if v is not None}},
    )


class Sampler:
    """Answers a server that wants text of a model: with a run of the agent that it was given, in a session of
    its own, else not at all."""

    def __init__(self, server: Server, ctx: ToolContext) -> None:
        self._server, self._ctx = server, ctx
        self._count = 0
        self.usage: TokenUsage | None = None

    async def __call__(self, asked: types.CreateMessageRequestParams) -> Any:
        from mcp import types

        agent = self._server.sampling
        if agent is None:
            words = f"{self._server.name} may not use a model here"
            return types.ErrorData(code=types.INVALID_REQUEST, message=words)
        self._count += 1
        ctx = self._ctx
        child = agent.as_tool("Answers an MCP server.", name="sampling").function

        def progress(text: str | None, data: JsonObject | None) -> None:
            ctx.progress(text, **(data or {}))

        call_id = f"{ctx.tool_call_id}.{self._count}"
        inner = replace(ctx, tool_call_id=call_id, tool_name="sampling", on_progress=progress)
        result: ToolResult = await child({"input": _prompt(asked)}, inner)
        if result.usage is not None:
            self.usage = result.usage if self.usage is None else self.usage + result.usage
        if result.deferral is not None or result.is_error:
            words = result.deferral.reason if result.deferral is not None else str(result.content)
            return types.ErrorData(code=types.INTERNAL_ERROR, message=words)
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(type="text", text=str(result.content)),
            model=agent.name,
            stop_reason="endTurn",
        )

    def from_elsewhere(self) -> Callable[[types.CreateMessageRequestParams], Any]:
        """The same for the link's thread: the run belongs to the event loop and the context of the call."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        async def sample(asked: types.CreateMessageRequestParams) -> Any:
            here = asyncio.get_running_loop()
            done: asyncio.Future[Any] = here.create_future()

            def finish(task: asyncio.Task[Any]) -> None:
                error = None if task.cancelled() else task.exception()
                value = task.result() if error is None and not task.cancelled() else None
                here.call_soon_threadsafe(lambda: done.done() or _settle(done, value, error))

            def start() -> None:
                loop.create_task(self(asked)).add_done_callback(finish)

            loop.call_soon_threadsafe(start, context=context)
            return await done

        return sample


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if error is not None or value is None:
        done.set_exception(error or ConnectionError("the call ended"))
    else:
        done.set_result(value)


def _prompt(asked: types.CreateMessageRequestParams) -> str:
    def text(content: Any) -> str:
        blocks = cast("list[Any]", content) if isinstance(content, list) else [content]
        return "\n".join(getattr(block, "text", f"[{block.type}]") for block in blocks)

    if len(asked.messages) == 1 and not asked.system_prompt:
        return text(asked.messages[0].content)
    said = [f"{message.role}: {text(message.content)}" for message in asked.messages]
    return "\n\n".join([*([asked.system_prompt] if asked.system_prompt else []), *said])


# ── progress and results ──


def throttled(ctx: ToolContext) -> ProgressFnT:
    """Pass on reports of progress, as long as they do not come in floods."""
    left, last = float(_BURST), time.monotonic()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        nonlocal left, last
        now = time.monotonic()
        left, last = min(float(_BURST), left + (now - last) * _RATE), now
        if left >= 1.0:
            left -= 1.0
            text = message[:_MORE] if message is not None else None
            ctx.progress(text, progress=progress, total=total)

    return report


def as_result(given: types.CallToolResult) -> ToolResult:
    kept: list[bytes] = []
    parts = [part_of(each, kept) for each in given.content]
    texts = [part.payload.text for part in parts if part.kind == "text"]
    content: Any = parts
    if len(texts) == len(parts):
        content = texts[0] if len(texts) == 1 else "\n".join(texts)
    if not parts and given.structured_content is not None:
        content = given.structured_content
    return ToolResult(content, is_error=given.is_error, artifact=kept[0] if kept else None)


def part_of(block: Any, kept: list[bytes]) -> ResultPart:
    match block.type:
        case "text":
            return text_part(block.text)
        case "image":
            return ImagePart(payload=Image(mime_type=block.mime_type, data=block.data))
        case "resource" if hasattr(block.resource, "text"):
            return text_part(f"[{block.resource.uri}]\n{block.resource.text}")
        case "resource":
            with_data = block.resource
            if not kept:
                try:
                    kept.append(base64.b64decode(with_data.blob, validate=True))
                except (ValueError, binascii.Error):
                    return text_part(f"[{with_data.uri}: data that is not base64]")
            return text_part(f"[{with_data.uri}: {with_data.mime_type or 'binary data'}]")
        case "resource_link":
            return text_part(f"[{block.name}: {block.uri}]")
        case _:
            return text_part(f"[{block.type}]")
