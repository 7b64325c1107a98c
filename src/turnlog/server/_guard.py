"""Who may come in: the host, the origin, the token and the size of a request are checked before it is read,
and what goes wrong is a problem document."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from turnlog.contract import AgentError, encode

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "turnlog"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = ("/api/login", "/api/openapi.json", "/api/health")
"""Paths that need no token. What is below neither ``/api`` nor ``/v1`` is the page, which holds nothing of a
session."""

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

STATUS: Mapping[str, int] = {
    "SessionNotFound": 404,
    "SessionBusy": 409,
    "SessionConcurrentWrite": 409,
    "SessionReadFailed": 503,
    "SessionWriteFailed": 503,
    "SessionCorrupt": 422,
    "SessionMigrationFailed": 422,
    "ApprovalInvalid": 409,
    "ApprovalExpired": 409,
    "ContextInvalidInput": 404,
    "PluginMissing": 501,
    "ModelAuthError": 502,
}
"""Code of an error → HTTP status. The other codes are a request that cannot be done as it stands: 400 for
the configuration, 422 for everything else."""


def status_of(error: AgentError) -> int:
    return STATUS.get(error.code, 400 if error.category == "config" else 422)


class Problem(Exception):
    """A refused request, as RFC 9457 writes it. ``code`` is stable; ``detail`` says what to do."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: AgentError) -> Problem:
        problem = cls(status_of(error), error.code, error.message, retryable=error.retryable)
        if error.meta:
            problem.more["meta"] = error.meta
        return problem

    def response(self) -> Response:
        body = {"type": "about:blank", "title": self.code, "status": self.status, "code": self.code}
        body |= {"detail": self.detail} | self.more
        return Response(encode(body), self.status, self.headers, media_type="application/problem+json")


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """What is let in. ``token`` None: the app around this one checks who asks. ``hosts`` are the exact names,
    with or without a port, under which the server is reached; ``origins`` are pages elsewhere that may use
    it."""

    token: str | None
    hosts: Sequence[str] = LOOPBACK
    origins: Sequence[str] = ()
    max_body: int = 10_000_000
    max_upload: int = 50_000_000

    def check(self, scope: Scope) -> None:
        """Raises ``Problem`` for a request that may not come in."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            raise Problem(
                421, "HostRefused", f"this server is not reached as {host!r}; start it with --host or hosts=["
                f"{host!r}] if that is its name",
            )  # fmt: skip
        origin = headers.get(b"origin")
        same = origin is not None and _host_of(origin) == host.lower()
        if origin is not None and not same and origin not in self.origins:
            raise Problem(403, "OriginRefused", f"a page from {origin} may not use this server")
        length = headers.get(b"content-length", "0")
        limit = self.limit(scope["path"])
        if not length.isdigit() or int(length) > limit:
            raise Problem(413, "BodyTooLarge", f"a request may hold {limit:,} bytes, and this has {length}")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if not path.startswith(("/api/", "/v1/")) or path in _OPEN or self.token is None:
            return
        self._check_token(headers, scope["method"], same or origin in self.origins)

    def limit(self, path: str) -> int:
        return self.max_upload if path.endswith("/api/blobs") else self.max_body

    def _is_ours(self, host: str) -> bool:
        """Whether ``host`` is one of ours: with its port where ours has one, else by its name alone."""
        host = host.lower()
        bare = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return host in self.hosts or bare in self.hosts

    def _check_token(self, headers: Mapping[bytes, str], method: str, known_page: bool) -> None:
        kind, _, given = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if self.is_token(given.strip()):
                return
            raise _no_token("the token is not the one of this server")
        if not self.is_token(_cookie_in(headers.get(b"cookie", ""))):
            raise _no_token(
                "send the token that the server printed at its start, as 'Authorization: Bearer …'"
            )
        # A browser sends the cookie by itself, so a page elsewhere could ask in its name.
        if method not in _SAFE and not known_page:
            raise Problem(403, "OriginRefused", "a change by cookie needs the Origin of this server's page")

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


def _cookie_in(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _no_token(detail: str) -> Problem:
    return Problem(401, "TokenRefused", detail, headers={"www-authenticate": "Bearer"})


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class Guarded:
    """The app behind a :class:`Guard`: refuses before anything is read, and stops bodies that grow past their
    limit. Every response gets the headers that keep a page from being used against its reader."""

    def __init__(self, app: App, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False
        size = 0
        limit = self._guard.limit(scope["path"])

        async def read() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise Problem(413, "BodyTooLarge", f"a request may hold {limit:,} bytes")
            return message

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                have = {name for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in have]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            self._guard.check(scope)
            await self._app(scope, read, answer)
        except Problem as problem:
            if begun:
                raise
            await problem.response()(scope, receive, answer)
