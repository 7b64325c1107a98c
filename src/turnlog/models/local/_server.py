"""The llama.cpp server of a local model: one process for each (weights, window, template), started when used.

It is a process of its own because the library holds the interpreter's lock while it loads weights, and
waits without end in its destructor while a request is open: inside this process the first would stop the
event loop, and the second the exit.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

INSTALL = "pip install 'turnlog[local]'"
START_SECONDS = 300.0
CLOSE_SECONDS = 2.0
PROMPT_CACHE_MIB = 256

_CHILD = Path(__file__).with_name("_child.py")


class ServerMissing(ImportError):
    """The library that runs local models is not installed; the message says how to install it."""


class ServerRefused(ValueError):
    """The weights or the template cannot be used; the message has the words of llama.cpp."""


class ServerFailed(RuntimeError):
    """The server ended before it listened; it may start at another time."""


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two servers the same. ``n_ctx`` 0 is the window the weights were trained for."""

    weights: Path
    n_ctx: int = 8192
    chat_template: str | None = None
    threads: int = 1


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, without a trailing slash, and the key that it asks for."""

    base_url: str
    api_key: str

    def __repr__(self) -> str:
        return f"Endpoint(base_url={self.base_url!r})"


class _Server:
    """One process, from the moment it is wanted. ``endpoint`` is set when it listens or has failed."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.endpoint: Future[Endpoint] = Future()
        # A waiter that is cancelled must not cancel the start, which others may be waiting for.
        self.endpoint.set_running_or_notify_cancel()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def usable(self) -> bool:
        """Starting, or listening; not failed, ended or closed."""
        if self._closed or (self.endpoint.done() and self.endpoint.exception() is not None):
            return False
        return self._process is None or self._process.poll() is None

    def start(self) -> None:
        try:
            self.endpoint.set_result(self._start())
        except BaseException as error:
            self.close()
            self.endpoint.set_exception(error)

    def _start(self) -> Endpoint:
        if find_spec("xllamacpp") is None:
            raise ServerMissing(f"local models need xllamacpp, which is not installed; run: {INSTALL}")
        key = secrets.token_urlsafe(24)
        process = self._spawn()
        # Closing its output is all that wakes the reader below, on every system.
        watch = threading.Timer(START_SECONDS, process.kill)
        watch.daemon = True
        watch.start()
        try:
            answer = _exchange(process, _orders(self.spec, key))
        finally:
            watch.cancel()
        if answer is None:
            status = process.wait()
            raise ServerFailed(
                f"the model server ended with status {status} while it loaded {self.spec.weights}"
            )
        if "url" in answer:
            return Endpoint(base_url=answer["url"].rstrip("/"), api_key=key)
        if answer["missing"]:
            raise ServerMissing(f"xllamacpp cannot be loaded ({answer['error']}); run: {INSTALL}")
        raise ServerRefused(f"the model server cannot use {self.spec.weights}: {answer['error']}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise ServerFailed(
                "sys.executable is empty: there is no interpreter to run the model server with"
            )
        with self._lock:
            if self._closed:
                raise ServerFailed("the model server was closed before it started")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # An interrupt typed at the terminal goes to every process of the foreground group.
                process_group=None if sys.platform == "win32" else 0,
            )
            return self._process

    def close(self) -> None:
        with self._lock:
            self._closed = True
            process = self._process
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def leave(self) -> None:
        """Let go of a server that belongs to the process this one was forked from."""
        if self._process is not None and self._process.stdin is not None:
            # Our copy of the pipe would keep the server alive after its owner's end.
            with suppress(OSError):
                self._process.stdin.close()


_servers: dict[ServerSpec, _Server] = {}
_left: list[_Server] = []
_lock = threading.Lock()


async def ensure_server(spec: ServerSpec) -> Endpoint:
    """Where the server for ``spec`` listens; it is started if there is none, off the event loop.

    All callers share it, in any thread and event loop, until ``close_servers`` or the end of the process.
    Raises ``ServerMissing``, ``ServerRefused`` or ``ServerFailed``; a later call tries again.
    """
    server = _wanted(spec)
    if server.endpoint.done():
        return server.endpoint.result()
    return await asyncio.wrap_future(server.endpoint)


def close_servers() -> None:
    """End every server; one that is wanted later is started anew."""
    with _lock:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.close()


def _wanted(spec: ServerSpec) -> _Server:
    with _lock:
        server = _servers.get(spec)
        if server is None or not server.usable:
            if server is not None:
                server.close()
            server = _servers[spec] = _Server(spec)
            threading.Thread(target=server.start, name="turnlog-local-start", daemon=True).start()
        return server


def _orders(spec: ServerSpec, key: str) -> dict[str, Any]:
    return {
        "weights": str(spec.weights),
        "alias": spec.weights.stem,
        "n_ctx": spec.n_ctx,
        "chat_template": spec.chat_template,
        "threads": spec.threads,
        "prompt_cache_mib": PROMPT_CACHE_MIB,
        "api_key": key,
        "sys_path": sys.path,
    }


def _exchange(process: subprocess.Popen[bytes], orders: dict[str, Any]) -> dict[str, Any] | None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
    with process.stdout:
        line = process.stdout.readline()
    return msgspec.json.decode(line) if line else None


def _forget_parents_servers() -> None:
    for server in _servers.values():
        server.leave()
    # Kept, not dropped: only the parent may wait for these processes.
    _left.extend(_servers.values())
    _servers.clear()
    _lock.release()


atexit.register(close_servers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_parents_servers
    )
