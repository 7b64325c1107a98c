"""The endpoints: what can be asked of the server, and the values that go in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.responses import Response

from turnlog.contract import (
    STATUSES,
    Entry,
    JsonObject,
    PendingApproval,
    RunStatus,
    SessionInfo,
    Value,
    encode,
)
from turnlog.files import File
from turnlog.history import AgentState, Timeline
from turnlog.loop import (
    Comparison,
    ExportFormat,
    Glance,
    Hit,
    Log,
    PendingAnswer,
    RerunPreview,
    Saw,
    call_at,
    saw,
    screen_at,
)
from turnlog.transcript import picture_type

from ._app import Call, Count, Endpoint, In, Name, Place, login_cookie
from ._guard import Problem
from ._runs import (
    Answer,
    Decide,
    Decided,
    Done,
    EventsQuery,
    Fork,
    Hide,
    Inbox,
    Reason,
    Started,
    StartRun,
    WhatIf,
    Words,
    abort,
    answer,
    decide,
    events,
    fork,
    inbox,
    pause,
    preview,
    read_blob,
    redact,
    rerun,
    resume_run,
    send,
    start_run,
    start_session,
)

RUNNING = tuple(
    status
    for status in STATUSES
    if status not in ("idle", "completed", "failed", "aborted", "awaiting_human", "paused")
)
_SCANNED = 400
"""Sessions that one search looks through; the answer says where the next one begins."""


# ── sessions ──


class SessionsQuery(In, frozen=True):
    status: RunStatus | None = None
    since: str | None = None
    until: str | None = None
    parent: str | None = None
    after: str | None = None
    limit: Count = 50
    q: Annotated[str, Meta(max_length=500)] | None = None


class SessionsPage(Value, frozen=True, kw_only=True):
    """``after`` asks for the next page; it is absent on the last one. ``hits`` are there for a search."""

    sessions: list[SessionInfo]
    after: str | None = None
    hits: list[Hit] | None = None


async def list_sessions(call: Call) -> SessionsPage:
    query: SessionsQuery = call.query
    words = (query.q or "").strip()
    limit = _SCANNED if words else query.limit
    found = await call.server.store.sessions(
        status=query.status,
        since=query.since,
        until=query.until,
        parent=query.parent,
        after=query.after,
        limit=limit + 1,
    )
    more, found = len(found) > limit, found[:limit]
    after = found[-1].cursor if more else None
    if not words:
        return SessionsPage(sessions=found, after=after)
    hits = await call.server.logs.search(found, words)
    names = {hit.session_id for hit in hits}
    return SessionsPage(sessions=[info for info in found if info.session_id in names], after=after, hits=hits)


class GlancesQuery(In, frozen=True):
    sessions: Annotated[str, Meta(max_length=20_000)]


async def glances(call: Call) -> dict[str, Glance]:
    names = [name for name in call.query.sessions.split(",") if name][:100]
    return {name: await call.server.logs.glance(name) for name in names}


class SessionView(Value, frozen=True, kw_only=True):
    info: SessionInfo
    state: AgentState
    timeline: Timeline
    pending: list[PendingApproval]
    questions: list[PendingAnswer]
    branches: list[SessionInfo]
    can_run: bool
    undriven: bool
    driver: str | None = None


async def show_session(call: Call) -> SessionView:
    session = call.session
    log = await call.server.logs.get(call.session_id)
    found = await call.server.store.sessions(parent=call.session_id)
    driver = await session.driver()
    state = AgentState.of(log.state)
    pending, questions = await _waiting(call, log)
    return SessionView(
        info=await _info(call),
        state=state,
        timeline=log.timeline,
        pending=pending,
        questions=questions,
        branches=found,
        driver=driver,
        undriven=driver is None and state.status in RUNNING,
        can_run=call.server.agent is not None,
    )


async def _waiting(call: Call, log: Log) -> tuple[list[PendingApproval], list[PendingAnswer]]:
    """What waits for a human. Only in an open run does anything, and finding it reads the whole log."""
    if not log.state.is_open:
        return [], []
    return await call.session.pending(), await call.session.questions()


async def _info(call: Call) -> SessionInfo:
    log = await call.server.logs.get(call.session_id)
    header, state = log.entries[0], AgentState.of(log.state)
    payload: Any = header.payload
    return SessionInfo(
        session_id=call.session_id,
        entries=len(log.entries),
        created_at=header.timestamp,
        updated_at=log.entries[-1].timestamp,
        title=payload.title,
        parent_session_id=payload.parent_session_id,
        status=state.status,
        metadata=payload.metadata,
    )


async def delete_session(call: Call) -> None:
    await call.session.delete(forks=call.query.forks)
    call.server.logs.forget(call.session_id)


class DeleteQuery(In, frozen=True):
    forks: Literal["refuse", "delete"] = "refuse"


# ── the log ──


class EntriesQuery(In, frozen=True):
    after: Place = 0
    upto: Place | None = None
    limit: Annotated[int, Meta(ge=1, le=2_000)] = 500
    cut: Annotated[int, Meta(ge=100, le=10_000_000)] = 4_000


class EntriesPage(Value, frozen=True, kw_only=True):
    entries: list[JsonObject]
    tail: int


def _cut(value: Any, limit: int) -> Any:
    """JSON with long texts cut: each ends in a mark that says how much is missing."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… [{len(value) - limit:,} more characters]"
    if isinstance(value, dict):
        return {name: _cut(item, limit) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_cut(item, limit) for item in cast("list[Any]", value)]
    return value


def _page_of(
    entries: Sequence[Entry], after: int, upto: int | None, limit: int, short: int
) -> list[JsonObject]:
    shown = [each for each in entries if each.seq > after and (upto is None or each.seq <= upto)]
    return [_cut(msgspec.json.decode(encode(entry)), short) for entry in shown[:limit]]


async def list_entries(call: Call) -> EntriesPage:
    query: EntriesQuery = call.query
    log = await call.server.logs.get(call.session_id)
    shown = _page_of(log.visible, query.after, query.upto, query.limit, query.cut)
    return EntriesPage(entries=shown, tail=log.tail)


async def show_entry(call: Call) -> Response:
    log = await call.server.logs.get(call.session_id)
    seq = _number(call, "seq")
    if not 1 <= seq <= log.tail:
        raise Problem(404, "NoEntry", f"the log has the entries 1 to {log.tail}, and no {seq}")
    return Response(encode(log.visible[seq - 1]), media_type="application/json")


def _number(call: Call, name: str) -> int:
    text = call.request.path_params[name]
    if not text.lstrip("-").isdecimal() or len(text) > 15:
        raise Problem(400, "PathInvalid", f"{name} is a number, and this is {text!r}")
    return int(text)


class TimelineQuery(In, frozen=True):
    after: Place = 0


async def show_timeline(call: Call) -> Timeline:
    """The steps that end after entry ``after``, and all runs."""
    timeline = (await call.server.logs.get(call.session_id)).timeline
    steps = [step for step in timeline.steps if step.end > call.query.after]
    return msgspec.structs.replace(timeline, steps=steps)


class StateView(Value, frozen=True, kw_only=True):
    """``undriven``: the run is open and no process drives it, as after a crash."""

    status: RunStatus
    undriven: bool
    pending: list[PendingApproval]
    questions: list[PendingAnswer]


async def show_state(call: Call) -> StateView:
    log = await call.server.logs.get(call.session_id)
    status = AgentState.of(log.state).status
    pending, questions = await _waiting(call, log)
    return StateView(
        status=status,
        undriven=status in RUNNING and await call.session.driver() is None,
        pending=pending,
        questions=questions,
    )


async def show_context(call: Call) -> Any:
    log = await call.server.logs.get(call.session_id)
    found = saw(log, _number(call, "call"))
    return _cut(msgspec.json.decode(encode(found)), call.query.cut)


class ContextQuery(In, frozen=True):
    cut: Annotated[int, Meta(ge=100, le=10_000_000)] = 4_000


class Screen(Value, frozen=True, kw_only=True):
    """The widgets' screen after an entry, and the model call that it belongs to."""

    text: str | None
    call: int


async def show_screen(call: Call) -> Screen:
    log = await call.server.logs.get(call.session_id)
    seq = _number(call, "seq")
    return Screen(text=screen_at(log, seq), call=call_at(log, seq))


class CompareQuery(In, frozen=True):
    a: Name
    b: Name


async def compare_sessions(call: Call) -> Comparison:
    return await call.server.session(call.query.a).compare(call.query.b)


class ExportQuery(In, frozen=True):
    format: ExportFormat = "jsonl"


_FILES: dict[ExportFormat, tuple[str, str]] = {
    "jsonl": ("application/jsonl", "jsonl"),
    "html": ("text/html; charset=utf-8", "html"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
}


async def export_session(call: Call) -> Response:
    form: ExportFormat = call.query.format
    kind, ending = _FILES.get(form, ("application/json", "json"))
    return _download(await call.session.export(format=form), kind, f"{call.session_id}.{ending}")


def _download(data: bytes, kind: str, name: str) -> Response:
    safe = "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "_" for each in name)
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{safe}"'})


# ── bytes ──


class Stored(Value, frozen=True, kw_only=True):
    name: str
    bytes: int


class UploadQuery(In, frozen=True):
    """``name``: the file is to go with a message under this name; one that no model can read is refused."""

    name: Name | None = None


async def upload(call: Call) -> Stored:
    data = await call.request.body()
    if not data:
        raise Problem(400, "BodyInvalid", "send the bytes of a file as the body")
    if call.query.name is not None:
        File.from_bytes(data, name=call.query.name).part()
    return Stored(name=await call.server.store.put_blob(data), bytes=len(data))


async def blob(call: Call) -> Response:
    """Bytes that an entry names. Pictures are shown, anything else is handed over as a file."""
    name = PurePath(call.request.path_params["name"]).name
    data = await read_blob(call, name)
    kind = picture_type(data)
    headers = {"cache-control": "private, max-age=31536000, immutable"}
    if kind is None:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


# ── the server itself ──


class Login(In, frozen=True):
    token: Annotated[str, Meta(max_length=1_000)]


async def login(call: Call) -> Response:
    """Keep the token in a cookie that scripts cannot read; for the page of this server."""
    server = call.server
    if server.guard.token is not None and not server.guard.is_token(call.body.token):
        raise Problem(401, "TokenRefused", "this is not the token that the server printed at its start")
    headers = {} if server.guard.token is None else {"set-cookie": login_cookie(server, call.request)}
    return Response(status_code=204, headers=headers)


class Health(Value, frozen=True, kw_only=True):
    """That the server answers, for anybody who asks; how it is used stays behind the token."""

    ok: bool


async def health(call: Call) -> Health:
    return Health(ok=True)


class About(Value, frozen=True, kw_only=True):
    """What this server can do."""

    agent: str | None = None
    model: str | None = None
    followers: int
    counts: dict[str, int] = {}


async def about(call: Call) -> About:
    agent = call.server.agent
    counts = dict.fromkeys(STATUSES, 0)
    for info in await call.server.store.sessions(limit=10_000):
        counts[info.status] += 1
    model = agent.model.descriptor if agent is not None else None
    return About(
        agent=agent.name if agent is not None else None,
        model=f"{model.provider_id}:{model.model}" if model is not None else None,
        followers=call.server.feeds.followers,
        counts={status: number for status, number in counts.items() if number},
    )


async def openapi(call: Call) -> Response:
    from ._openapi import document

    root = call.request.scope.get("root_path", "").removesuffix("/api")
    return Response(encode(document(ENDPOINTS, root)), media_type="application/json")


_S = "/sessions/{session}"
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/sessions", list_sessions, "Sessions that fit every filter, the last changed first.",
             query=SessionsQuery, returns=SessionsPage),
    Endpoint("POST", "/sessions", start_session, "Start a run in a new session.",
             body=StartRun, returns=Started, status=201, errors=(409,)),
    Endpoint("GET", "/glances", glances, "What rows of a list show of some sessions.",
             query=GlancesQuery, returns=dict[str, Glance]),
    Endpoint("GET", _S, show_session, "One session: its state, its runs and steps, what waits, its branches.",
             returns=SessionView),
    Endpoint("DELETE", _S, delete_session, "Erase a session.", query=DeleteQuery, errors=(409,)),
    Endpoint("GET", _S + "/timeline", show_timeline, "The runs and steps of a session.",
             query=TimelineQuery, returns=Timeline),
    Endpoint("GET", _S + "/state", show_state, "The state of a session, and what waits.", returns=StateView),
    Endpoint("GET", _S + "/entries", list_entries, "Entries of the log, long texts cut.",
             query=EntriesQuery, returns=EntriesPage),
    Endpoint("GET", _S + "/entries/{seq}", show_entry, "One entry, whole.", returns=JsonObject),
    Endpoint("GET", _S + "/context/{call}", show_context, "What the model saw at a call: from 1, or -1.",
             query=ContextQuery, returns=Saw),
    Endpoint("GET", _S + "/screen/{seq}", show_screen, "The widgets' screen after an entry.", returns=Screen),
    Endpoint("GET", _S + "/export", export_session, "The session as a file.", query=ExportQuery),
    Endpoint("GET", _S + "/events", events, "Live events, server-sent; Last-Event-ID continues.",
             query=EventsQuery, errors=(503,)),
    Endpoint("POST", _S + "/runs", start_run, "Start a run; it continues when the client leaves.",
             body=StartRun, returns=Started, status=201, errors=(409,)),
    Endpoint("POST", _S + "/resume", resume_run, "Continue the open run.", returns=Started, errors=(409,)),
    Endpoint("POST", _S + "/send", send, "Add a message to the open run.", body=Words),
    Endpoint("POST", _S + "/abort", abort, "End the open run.", body=Reason, returns=Done, errors=(409,)),
    Endpoint("POST", _S + "/pause", pause, "Stop the open run before a step.", returns=Done, errors=(409,)),
    Endpoint("POST", _S + "/decide", decide, "Decide on a call that waits, by the digest that was shown.",
             body=Decide, returns=Decided, errors=(409,)),
    Endpoint("POST", _S + "/answer", answer, "Answer a call that waits for an answer.",
             body=Answer, returns=Decided, errors=(409,)),
    Endpoint("POST", _S + "/fork", fork, "A new session that shares this one's past.",
             body=Fork, returns=Started, status=201),
    Endpoint("POST", _S + "/rerun", rerun, "What if: run on from a step with a change, in a branch.",
             body=WhatIf, returns=Started, status=201, errors=(409,)),
    Endpoint("POST", _S + "/rerun/preview", preview, "What a rerun would do, and its first call's cost.",
             body=WhatIf, returns=RerunPreview, errors=(409,)),
    Endpoint("POST", _S + "/redact", redact, "Hide what entries hold.", body=Hide, errors=(409,)),
    Endpoint("GET", "/inbox", inbox, "What waits for a human in all sessions.", returns=Inbox),
    Endpoint("GET", "/compare", compare_sessions, "Two branches: what they share, and how each continues.",
             query=CompareQuery, returns=Comparison),
    Endpoint("POST", "/blobs", upload, "Store the bytes of a file, the body as it is.",
             query=UploadQuery, returns=Stored, status=201),
    Endpoint("GET", "/blobs/{name}", blob, "Stored bytes."),
    Endpoint("POST", "/login", login, "Keep the token in a cookie, for the page.", body=Login, errors=(401,)),
    Endpoint("GET", "/about", about, "What this server can do, and how many sessions it has.", returns=About),
    Endpoint("GET", "/health", health, "Whether the server answers.", returns=Health),
    Endpoint("GET", "/openapi.json", openapi, "This document."),
)  # fmt: skip
