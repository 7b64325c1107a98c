"""Entries and events as a person reads them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape

from turnlog.contract import Entry, RunEvent, ToolCallPart, ToolResultPart, encode


class EventPrinter:
    """Prints a run as it happens: text as it streams, tools as one line each."""

    def __init__(self, console: Console) -> None:
        self._out = console
        self._open = False
        self._thinking = False

    def show(self, event: RunEvent) -> None:
        match event.kind:
            case "model_delta":
                self._delta(event.payload.delta)  # pyright: ignore
            case "tool_started":
                p: Any = event.payload
                self._line(f"[cyan]→ {escape(p.tool_name)}[/] [dim]{escape(_short(p.arguments))}[/]")
            case "tool_result":
                p = event.payload
                mark = "[green]✓[/]" if p.status == "success" else f"[yellow]{p.status}[/]"
                text = result_text(p.message.tool_results[0])
                self._line(f"{mark} [dim]{escape(_short(text))}[/]")
            case "tool_progress":
                p = event.payload
                self._line(f"[dim]… {escape(p.text or _short(p.data))}[/]")
            case "approval_requested":
                p = event.payload
                self._line(f"[magenta]? {escape(p.tool_name)} waits for approval ({p.tool_call_id})[/]")
            case "retracted":
                self._line("[dim](that answer was cut off and does not count)[/]")
            case "error":
                p = event.payload
                again = " — trying again" if p.will_retry else ""
                self._line(f"[red]{p.error.code}[/]: {escape(p.error.message)}{again}")
            case "run_ended":
                self._close()
            case _:
                pass

    def _delta(self, delta: Any) -> None:
        if delta.kind in ("text", "thinking"):
            thinking = delta.kind == "thinking"
            if thinking != self._thinking:
                self._close()
                self._thinking = thinking
            text = delta.payload.text_delta
            self._out.print(text, end="", markup=False, style="dim italic" if thinking else None)
            self._open = self._open or bool(text)

    def _line(self, text: str) -> None:
        self._close()
        self._out.print(text)

    def _close(self) -> None:
        if self._open:
            self._out.print()
            self._open = False


def result_text(part: ToolResultPart) -> str:
    content = part.payload.content
    return content if isinstance(content, str) else encode(content).decode()


def _short(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def entry_line(entry: Entry) -> str:
    """One entry in one line of markup."""
    p: Any = entry.payload
    match entry.kind:
        case "model_input":
            body = f"[bold]user[/] {escape(_short(p.message.text))}"
        case "model_output":
            calls = [part.payload.tool_name for part in p.message.parts if isinstance(part, ToolCallPart)]
            said = escape(_short(p.message.text)) if p.message.text else ""
            body = f"[bold]assistant[/] {said}" + (
                f" [cyan]calls {escape(', '.join(calls))}[/]" if calls else ""
            )
        case "tool_results":
            body = " · ".join(
                f"[cyan]{escape(o.tool_name)}[/] {o.status} [dim]{escape(_short(result_text(part), 80))}[/]"
                for part, o in zip(p.message.tool_results, p.outcomes, strict=False)
            )
        case "tool_started":
            body = f"[cyan]{escape(p.tool_name)}[/] [dim]key {p.idempotency_key[:8]}[/]"
        case "model_call_started":
            what = f"call {p.model_call_index}.{p.attempt} · {p.message_count} messages"
            body = f"[dim]{escape(p.target.model)} · {what} · context {p.context_hash[:12]}[/]"
        case "model_call_failed":
            body = f"[red]{p.error.code}[/] {escape(_short(p.error.message))}"
        case "run_ended":
            why = f" {p.error.code}: {escape(_short(p.error.message))}" if p.error else ""
            body = f"{p.status}{why}"
        case "approval_requested":
            shown = escape(_short(p.arguments))
            body = f"[magenta]{escape(p.tool_name)}[/] waits ({p.tool_call_id}) [dim]{shown}[/]"
        case "approval_decided":
            body = f"{p.action} by {escape(p.decided_by)}"
        case "system_prompt":
            body = f"[dim]{escape(_short(p.text))}[/]"
        case "tools_change":
            body = f"[dim]{escape(', '.join(spec.name for spec in p.tools)) or 'none'}[/]"
        case "fold":
            body = f"[dim]{escape(p.reason)}: {p.tokens_before} → {p.tokens_after} tokens[/]"
        case "branch_summary":
            body = f"[dim]from {escape(p.from_session_id)} at {p.from_seq}[/]"
        case _:
            body = f"[dim]{escape(_short(json.loads(encode(p))))}[/]"
    return f"[dim]{entry.seq:>5}[/] {entry.kind:<20} {body}"
