"""`turnlog trace`: a past session as a trace."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cli.shell import Shell

CALL = {"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}


@contextmanager
def collector(*statuses: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that takes OTLP, and answers with these statuses first."""
    found: list[dict[str, Any]] = []
    left = list(statuses)

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = left.pop(0) if left else 200
            if status == 200:
                found.append({"path": self.path, "key": self.headers["x-key"], **json.loads(body)})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collect)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def told(shell: Shell) -> Shell:
    shell.ok("run", "-m", shell.script(CALL, "It is 3."), "-t", "tools.py", "-s", "s1", "Add 1 and 2")
    return shell


@pytest.mark.spec("O-1")
def test_a_past_session_is_shown_sent_and_exported_as_the_same_spans(told: Shell) -> None:
    shown = told.ok("trace", "s1").out.splitlines()
    names = ["invoke_agent", "  chat", "  execute_tool add", "  chat"]
    assert [line.startswith(name) for line, name in zip(shown, names, strict=True)] == [True] * 4
    with collector(503) as (url, found):
        done = told.ok("trace", "s1", "--endpoint", url, "-H", "x-key=k1")
    assert "sent 4 spans" in done.err
    assert (found[0]["path"], found[0]["key"]) == ("/v1/traces", "k1")
    spans = found[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"].split()[0] for span in spans] == ["chat", "execute_tool", "chat", "invoke_agent"]
    assert (
        json.loads(told.ok("export", "s1", "--format", "otlp").out)["resourceSpans"]
        == found[0]["resourceSpans"]
    )
    assert [span["spanId"] for span in told.ok("trace", "s1", "--json").lines] == [s["spanId"] for s in spans]


def test_a_collector_that_refuses_or_is_not_there_is_named(told: Shell) -> None:
    with collector(401) as (url, found):
        refused = told("trace", "s1", "--endpoint", url)
    assert refused.code == 1 and "it answered 401" in refused.err and not found
    for address, words in {
        "http://127.0.0.1:9": "cannot be reached",
        "ftp://x": "is no address of a collector",
    }.items():
        failed = told("trace", "s1", "--endpoint", address)
        assert failed.code == 1 and words in failed.err.replace("\n", " "), failed.err
    assert told("trace", "s1", "--endpoint", "http://127.0.0.1:9", "-H", "nonsense").code == 2
    assert told("trace", "nothing").code == 1
