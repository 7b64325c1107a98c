"""Endpoints that act: runs, live events, decisions, branches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from turnlog.contract import (
    AgentError,
    JsonObject,
    LoopLimits,
    ModelOutputEntry,
    ModelParams,
    PendingApproval,
    Value,
)
from turnlog.files import File
from turnlog.loop import (
    Decision,
    Log,
    PendingAnswer,
    RerunOptions,
    RerunPreview,
    open_session,
    pending_answers,
)

from ._app import Call, In, Name, Place
from ._feed import View
from ._guard import Problem

# ── runs ──


class Attached(In, frozen=True):
    """A file that goes with a message: bytes that were posted to ``/api/blobs``, and what to call them."""

    blob: Name
    name: Name


class Words(In, frozen=True):
    """What is said: ``text``, ``files``, or both."""

    text: str = ""
    files: Annotated[list[Attached], Meta(max_length=20)] = []

    async def read(self, call: Call) -> str | list[str | File]:
        if not self.text and not self.files:
            raise Problem(400, "BodyInvalid", "say something: give text, or files, or both")
        if not self.files:
            return self.text
        found: list[str | File] = [self.text] if self.text else []
        for file in self.files:
            found.append(File.from_bytes(await read_blob(call, file.blob), name=file.name))
        return found


async def read_blob(call: Call, name: str) -> bytes:
    try:
        return await call.server.store.get_blob(name)
    except AgentError as error:
        if "blob" not in error.meta:
            raise
        raise Problem(404, "NoBytes", error.message) from error


class StartRun(Words, frozen=True):
    instructions: str | None = None
    title: str | None = None
    metadata: JsonObject | None = None
    params: ModelParams | None = None
    limits: LoopLimits | None = None
    allowed_tools: list[str] | None = None


class Started(Value, frozen=True, kw_only=True):
    session_id: str
    run_id: str


async def start_run(call: Call) -> Started:
    return await _start(call, call.session_id)


async def start_session(call: Call) -> Started:
    return await _start(call, None)


async def _start(call: Call, session_id: str | None) -> Started:
    body: StartRun = call.body
    server = call.server
    session = server.driven(session_id)
    run = await session.start(
        await body.read(call),
        instructions=body.instructions,
        title=body.title,
        metadata=body.metadata,
        params=body.params,
        limits=body.limits,
        allowed_tools=body.allowed_tools,
    )
    server.keep(run)
    return Started(session_id=run.session_id, run_id=run.run_id)


async def resume_run(call: Call) -> Started:
    """Continue the open run in the background."""
    run = await call.server.driven(call.session_id).start_resume()
    if run is None:
        raise Problem(409, "NothingToResume", f"session {call.session_id} has no open run")
    call.server.keep(run)
    return Started(session_id=call.session_id, run_id=run.run_id)


async def send(call: Call) -> None:
    """Through the store, also to a run of this process: what is acknowledged outlives it."""
    await open_session(call.server.store, call.session_id).send(await call.body.read(call))


class Reason(In, frozen=True):
    reason: Annotated[str, Meta(max_length=1_000)] = "aborted by the reader of the timeline"


class Done(Value, frozen=True, kw_only=True):
    """``done`` is false when no run was open."""

    done: bool


async def abort(call: Call) -> Done:
    return Done(done=await call.session.abort(call.body.reason))


async def pause(call: Call) -> Done:
    return Done(done=await call.session.pause())


async def events(call: Call) -> Response:
    """Server-sent events, from ``after`` or the header ``Last-Event-ID``."""
    server, query = call.server, call.query
    after = query.after
    last = call.request.headers.get("last-event-id")
    if last is not None:
        if not last.isdecimal() or len(last) > 16:
            raise Problem(400, "QueryInvalid", f"Last-Event-ID is a number, and this is {last!r}")
        after = int(last)
    if await server.store.tail(call.session_id) is None:
        raise Problem(404, "SessionNotFound", f"there is no session {call.session_id}")
    if server.feeds.is_full:
        raise Problem(503, "TooManyFollowers", "too many readers follow this server", retryable=True)

    async def frames() -> AsyncIterator[bytes]:
        feed = server.feeds.get(call.session_id, query.view)
        async for data in feed.follow(after, until_idle=query.until_idle):
            yield data

    return StreamingResponse(
        frames(),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


class EventsQuery(In, frozen=True):
    after: Place = 0
    view: View = "events"
    until_idle: bool = False


# ── decisions ──


class Before(Value, frozen=True, kw_only=True):
    """Where a question stands: in which session, at which entry, and what the model said before it."""

    title: str | None = None
    seq: int
    words: str | None = None


class Inbox(Value, frozen=True, kw_only=True):
    """What waits for a human in all sessions. ``notes`` tell of approvals, by their ``entry_id``."""

    approvals: list[PendingApproval]
    questions: list[PendingAnswer]
    notes: dict[str, Before] = {}


async def inbox(call: Call) -> Inbox:
    store = call.server.store
    approvals = await store.pending(limit=200)
    notes: dict[str, Before] = {}
    for asked in approvals:
        with suppress(AgentError):  # a session that is deleted meanwhile asks nothing any more
            log = await call.server.logs.get(asked.session_id)
            notes.update(_before(log, asked))
    return Inbox(approvals=approvals, questions=await pending_answers(store), notes=notes)


def _before(log: Log, asked: PendingApproval) -> dict[str, Before]:
    header: Any = log.visible[0].payload
    seq: int | None = None
    for entry in reversed(log.visible):
        if entry.id == asked.entry_id:
            seq = entry.seq
        elif seq is not None and isinstance(entry, ModelOutputEntry):
            # The newest answer before the question is the one that made the call.
            words = entry.payload.message.text[:400] or None
            return {asked.entry_id: Before(title=header.title, seq=seq, words=words)}
    return {}


class Decide(In, frozen=True):
    """``digest`` is that of the request that was shown: a decision on anything else is refused."""

    tool_call_id: Name
    digest: Name
    action: Decision
    by: Name = "timeline"
    arguments: JsonObject | None = None
    note: Annotated[str, Meta(max_length=10_000)] | None = None


class Decided(Value, frozen=True, kw_only=True):
    """``resumed``: the server's agent continues the run."""

    resumed: bool


async def decide(call: Call) -> Decided:
    body: Decide = call.body
    waiting = {each.tool_call_id: each for each in await call.session.pending()}
    asked = waiting.get(body.tool_call_id)
    if asked is None:
        raise Problem(409, "ApprovalInvalid", "this call does not wait: it was decided elsewhere")
    if asked.digest != body.digest:
        raise Problem(409, "ApprovalInvalid", "what waits now is not what was shown; look at it again")
    await call.session.decide(asked, body.action, by=body.by, arguments=body.arguments, note=body.note)
    return Decided(resumed=await _go_on(call))


class Answer(In, frozen=True):
    tool_call_id: Name
    content: Any
    is_error: bool = False
    by: Name = "timeline"


async def answer(call: Call) -> Decided:
    body: Answer = call.body
    await call.session.answer(body.tool_call_id, body.content, is_error=body.is_error, by=body.by)
    return Decided(resumed=await _go_on(call))


async def _go_on(call: Call) -> bool:
    """Continue the run when nothing waits any more and this server can."""
    server, session = call.server, call.session
    if server.agent is None or await session.pending() or await session.questions():
        return False
    try:
        run = await server.agent.session(call.session_id).start_resume()
    except AgentError as error:
        if error.code != "SessionBusy":
            raise
        return False  # it is driven already, and takes the decision up by itself
    if run is not None:
        server.keep(run)
    return run is not None


# ── branches ──


class Fork(In, frozen=True):
    at: Place | None = None
    session: Name | None = None


async def fork(call: Call) -> Started:
    branch = await call.session.fork(call.body.at, session=call.body.session)
    return Started(session_id=branch.session_id, run_id="")


class WhatIf(In, frozen=True):
    """``at`` is an entry of the step; one of ``text``, ``result`` and ``arguments`` may be changed."""

    at: Annotated[int, Meta(ge=1, le=2**53)]
    model: Name | None = None
    instructions: str | None = None
    text: str | None = None
    result: str | None = None
    arguments: JsonObject | None = None
    tools: Literal["recorded", "ask", "live"] = "recorded"
    session: Name | None = None

    def options(self) -> RerunOptions:
        return {
            "model": self.model,
            "instructions": self.instructions,
            "text": self.text,
            "result": self.result,
            "arguments": self.arguments,
            "tools": self.tools,
            "session": self.session,
        }


async def rerun(call: Call) -> Started:
    """Starts the branch's run, which continues in the background."""
    body: WhatIf = call.body
    run = await call.server.driven(call.session_id).start_rerun(body.at, **body.options())
    call.server.keep(run)
    return Started(session_id=run.session_id, run_id=run.run_id)


async def preview(call: Call) -> RerunPreview:
    body: WhatIf = call.body
    return await call.server.driven(call.session_id).preview_rerun(body.at, **body.options())


class Hide(In, frozen=True):
    entry_ids: Annotated[list[str], Meta(min_length=1, max_length=10_000)]
    by: Name = "timeline"
    reason: str | None = None


async def redact(call: Call) -> None:
    body: Hide = call.body
    await call.session.redact(body.entry_ids, by=body.by, reason=body.reason)
    call.server.logs.forget(call.session_id)
