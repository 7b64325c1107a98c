"""The server as an ASGI app: a table of routes, each with the values it takes and gives."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from turnlog.contract import AgentError, Store, encode
from turnlog.loop import Agent, Logs, Run, Session, StoredSession, open_session

from ._feed import Feeds
from ._guard import COOKIE, LOOPBACK, Guard, Guarded, Problem

Handler = Callable[["Call"], Awaitable[Any]]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=1, le=500)]
Place = Annotated[int, Meta(ge=0, le=2**53)]


class In(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of what the server takes."""


@dataclass(frozen=True)
class Server:
    """What the handlers share."""

    store: Store
    agent: Agent[Any] | None
    guard: Guard
    feeds: Feeds
    logs: Logs
    runs: set[Run[Any]] = field(default_factory=set[Run[Any]])
    """The runs that were started here; each continues when its client leaves."""

    def keep(self, run: Run[Any]) -> None:
        self.runs.difference_update([each for each in self.runs if each.done])
        self.runs.add(run)

    async def stop(self, seconds: float) -> None:
        """Let the followers go, and pause the runs: each can be resumed, here or elsewhere."""
        self.feeds.close()
        under_way = [run for run in self.runs if not run.done]
        for run in under_way:
            with suppress(AgentError):
                await self.session(run.session_id).pause()
        if under_way:
            ends = [asyncio.ensure_future(run.result(check=False)) for run in under_way]
            await asyncio.wait(ends, timeout=seconds)

    def session(self, session_id: str) -> StoredSession:
        if self.agent is not None:
            return self.agent.session(session_id)
        return open_session(self.store, session_id)

    def driven(self, session_id: str | None) -> Session[Any]:
        """The session of an agent. Raises ``Problem`` when the server has none."""
        if self.agent is None:
            raise Problem(
                409,
                "NoAgent",
                "this server shows sessions and has no agent to run them; start it with --agent",
            )
        return self.agent.session(session_id)


@dataclass(frozen=True)
class Call:
    """One request, with its values read and checked."""

    server: Server
    request: Request
    query: Any = None
    body: Any = None

    @property
    def session_id(self) -> str:
        return self.request.path_params["session"]

    @property
    def session(self) -> StoredSession:
        return self.server.session(self.session_id)


@dataclass(frozen=True)
class Endpoint:
    """A line of the API: how it is asked, what it takes, what it gives, and in words what it does."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    returns: Any = None
    status: int = 200
    errors: Sequence[int] = field(default=())

    def route(self, server: Server) -> Route:
        async def answer(request: Request) -> Response:
            try:
                call = Call(server, request, self._query(request), await self._body(request))
                found = await self.handler(call)
            except Problem as problem:
                return problem.response()
            except AgentError as error:
                return Problem.of(error).response()
            except ClientDisconnect:
                return Response(status_code=400)
            if isinstance(found, Response):
                return found
            if found is None:
                return Response(status_code=204)
            return Response(encode(found), self.status, media_type="application/json")

        return Route(self.path, answer, methods=[self.method], name=self.handler.__name__)

    def _query(self, request: Request) -> Any:
        if self.query is None:
            return None
        given = dict(request.query_params)
        known = {field.encode_name for field in msgspec.structs.fields(self.query)}
        if unknown := sorted(set(given) - known - {"token"}):
            raise Problem(
                400, "QueryInvalid", f"{unknown[0]!r} is not known here; known are {', '.join(sorted(known))}"
            )
        try:
            return msgspec.convert(given, self.query, strict=False)
        except msgspec.ValidationError as error:
            raise Problem(400, "QueryInvalid", _plain(error)) from error

    async def _body(self, request: Request) -> Any:
        if self.body is None:
            return None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        data = await request.body()
        if data and kind != "application/json":
            raise Problem(415, "BodyInvalid", "send the body as application/json")
        try:
            return msgspec.json.decode(data or b"{}", type=self.body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Problem(400, "BodyInvalid", _plain(error)) from error
        except RecursionError as error:
            raise Problem(400, "BodyInvalid", "the JSON nests too deeply") from error


def _plain(error: Exception) -> str:
    return str(error).replace("Object contains unknown field", "there is no field")


def create_app(
    agent: Agent[Any] | Store,
    *,
    token: str | Literal[False] | None = None,
    hosts: Sequence[str] = LOOPBACK,
    origins: Sequence[str] = (),
    max_body: int = 10_000_000,
    max_upload: int = 50_000_000,
    max_followers: int = 2_000,
) -> Starlette:
    """The server of an agent, or of a store that is only looked at, as an ASGI app:
    ``app.mount("/agents", create_app(agent))``.

    ``token`` is asked of everybody; without one a new one is made, found as ``app.state.token``. False turns
    that off, for an app around this one that checks who asks. ``hosts`` are the exact names under which the
    server is reached, ``origins`` the pages elsewhere that may use it. The agent stays the caller's to close.
    """
    from ._api import ENDPOINTS
    from ._openai import openai_routes
    from ._page import page_routes

    if not hasattr(agent, "loop") and not hasattr(agent, "append"):
        raise AgentError("ConfigInvalid", f"create_app takes an Agent or a Store, not {agent!r}")
    if token is not None and token is not False and (not isinstance(cast("Any", token), str) or not token):
        raise AgentError("ConfigInvalid", "token is text, None for a new one, or False for none")
    driven = cast("Agent[Any]", agent) if hasattr(agent, "loop") else None
    store = driven.store if driven is not None else cast("Store", agent)
    guard = Guard(
        token=None if token is False else token or secrets.token_urlsafe(24),
        hosts=[host.lower() for host in hosts],
        origins=list(origins),
        max_body=max_body,
        max_upload=max_upload,
    )
    feeds = Feeds(store, driven.loop if driven is not None else None, max_followers)
    server = Server(store, driven, guard, feeds, Logs(store))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        yield
        feeds.close()

    async def missing(request: Request, error: Exception) -> Response:
        detail = f"there is nothing at {request.method} {request.url.path}; see /api/openapi.json"
        return Problem(getattr(error, "status_code", 404), "NotFound", detail).response()

    async def failed(request: Request, error: Exception) -> Response:
        return Problem(500, "ServerError", "the server failed; its log says how").response()

    routes = [endpoint.route(server) for endpoint in ENDPOINTS]
    app = Starlette(
        routes=[Mount("/api", routes=routes), Mount("/v1", routes=openai_routes(server)), *page_routes()],
        lifespan=lifespan,
        exception_handlers={404: missing, 405: missing, 500: failed},
    )
    app.state.token = guard.token
    app.state.server = server
    app.add_middleware(GZipMiddleware, minimum_size=2_000, compresslevel=4)
    app.add_middleware(cast("Any", Guarded), guard=guard)
    return app


def login_cookie(server: Server, request: Request) -> str:
    """The header that keeps a reader signed in: for this server's own page alone, out of reach of scripts."""
    path = request.scope.get("root_path", "").removesuffix("/api") or "/"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{COOKIE}={server.guard.token}; Path={path}; HttpOnly; SameSite=Strict{secure}"
