"""``trace``: a session as the spans of a trace, on the terminal or sent to a collector."""

from __future__ import annotations

import asyncio
import json
import os

import click
import httpx2

from turnlog.contract import AgentError
from turnlog.loop import Span, to_otlp, trace_of

from ._app import count, err, json_option, out, session_argument, span, store_option, with_store, write_json
from ._text import safe

_TRIES = 4
_SENT_AT_ONCE = 1000


@click.command("trace")
@session_argument
@click.option(
    "--endpoint",
    metavar="URL",
    help="Send it there over OTLP/HTTP, as http://127.0.0.1:4318; default $OTEL_EXPORTER_OTLP_ENDPOINT.",
)
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Sent along; can be repeated."
)
@click.option("--content", is_flag=True, help="With what was said, not only names, times and counts.")
@store_option
@json_option
def trace_command(
    session: str,
    endpoint: str | None,
    headers: tuple[str, ...],
    content: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Show SESSION as the spans of a trace: runs, model calls and tools, with those of its sub-agents.

    The ids follow from the log: a session that is sent again makes the same spans, and those that an agent
    sent live are the same too.
    """
    spans = with_store(store_url, lambda store: trace_of(store, session, content=content))
    address = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if as_json:
        made = json.loads(to_otlp(spans))
        for each in made["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            write_json(each)
        return
    if address is None:
        _show(spans)
        return
    given = _read_headers(headers)
    for first in range(0, len(spans), _SENT_AT_ONCE):
        asyncio.run(_send(address, given, to_otlp(spans[first : first + _SENT_AT_ONCE])))
    err.print(f"sent {count(len(spans), 'span')} to {safe(address)}")


def _read_headers(given: tuple[str, ...]) -> dict[str, str]:
    found = {"content-type": "application/json"}
    for one in given:
        name, mark, value = one.partition("=")
        if not mark or not name.strip():
            raise click.BadParameter("write a header as NAME=VALUE", param_hint="--header")
        found[name.strip()] = value.strip()
    return found


async def _send(endpoint: str, headers: dict[str, str], body: bytes) -> None:
    url = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
    problem = ""
    async with httpx2.AsyncClient(timeout=10.0) as client:
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(0.25 * 2**attempt)
            try:
                answer = await client.post(url, content=body, headers=headers)
            except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
                raise AgentError("ConfigInvalid", f"{url} is no address of a collector: {error}") from error
            except httpx2.HTTPError as error:
                problem = f"it cannot be reached: {error or type(error).__name__}"
                continue
            if answer.status_code < 300:
                return
            problem = f"it answered {answer.status_code}: {answer.text[:200]}"
            if answer.status_code not in (408, 429, 500, 502, 503, 504):
                break
    raise AgentError("ConfigInvalid", f"the collector at {url} took nothing: {problem}; the log is unchanged")


def _show(spans: list[Span]) -> None:
    known = {each.span_id for each in spans}
    children: dict[str | None, list[Span]] = {}
    for each in sorted(spans, key=lambda one: one.start):
        children.setdefault(each.parent_id if each.parent_id in known else None, []).append(each)

    def walk(parent: str | None, depth: int) -> None:
        for each in children.get(parent, ()):
            colour = "red" if each.error else "default"
            took = span((each.end - each.start) / 1e6)
            tokens = each.attributes.get("gen_ai.usage.input_tokens")
            told = (
                ""
                if tokens is None
                else f", {tokens} + {each.attributes.get('gen_ai.usage.output_tokens')} tokens"
            )
            failed = f" [red]{safe(each.error)}[/]" if each.error else ""
            out.print(f"{'  ' * depth}[{colour}]{safe(each.name)}[/] [dim]{took}{told}[/]{failed}")
            walk(each.span_id, depth + 1)

    walk(None, 0)
