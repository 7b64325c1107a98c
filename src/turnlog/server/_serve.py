"""Serve an app on a port of this machine, until it is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Literal

import uvicorn

from turnlog.contract import AgentError, Store
from turnlog.loop import Agent

from ._app import Server, create_app

_GRACE = 5
"""Seconds that open requests and steps of runs have when the server stops."""


async def serve(
    agent: Agent[Any] | Store,
    *,
    host: str = "127.0.0.1",
    port: int = 8484,
    token: str | Literal[False] | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    ready: Callable[[str, str | None], None] | None = None,
) -> None:
    """Serve until the process is asked to stop. ``port`` 0 takes a free one; ``ready`` gets the address and
    the token once the server listens. Raises ``ConfigInvalid`` when the address cannot be had."""
    try:
        listener = socket.create_server((host, port), family=_family(host), backlog=1024)
    except OSError as error:
        detail = error.strerror or str(error)
        raise AgentError(
            "ConfigInvalid", f"cannot listen on {host}:{port}: {detail}; give another --port"
        ) from error
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    names = [f"{shown}:{port}", *hosts]
    if host in ("127.0.0.1", "::1", "localhost"):
        names += [f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"]
    app = create_app(agent, token=token, hosts=names, origins=origins)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE, server_header=False
    )
    server = _Server(config, app.state.server)
    if ready is not None:
        server.ready = lambda: ready(f"http://{shown}:{port}/", app.state.token)
    with listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            server.should_exit = True
            await asyncio.wait([task])
            raise


class _Server(uvicorn.Server):
    """Tells when it listens, and stops without leaving a run or a follower in the middle."""

    ready: Callable[[], None] | None = None

    def __init__(self, config: uvicorn.Config, served: Server) -> None:
        super().__init__(config)
        self._served = served

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._served.stop(_GRACE)
        await super().shutdown(sockets)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
