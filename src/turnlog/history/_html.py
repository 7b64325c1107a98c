"""A conversation to read, as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ..contract import (
    Entry,
    FileRefPart,
    ImagePart,
    Message,
    MessagePart,
    ModelInputEntry,
    ModelOutputEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolOutcome,
    ToolResult,
    ToolResultPart,
    ToolResultsEntry,
)
from ._blobs import PREFIX
from ._ledger import Ledger, usage_of
from ._markdown import call_text, describe_note, describe_usage, one_line, result_text
from ._views import visible_entries

_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ --ground: #fbfaf7; --ink: #21201c; --soft: #6f6b60; --line: #e3dfd4;
  --user: #f0ece1; --code: #f4f1e9; --accent: #2f6f5e; --wrong: #a3402f; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #191a1b; --ink: #e6e3da; --soft: #98948a; --line: #33342f;
    --user: #24262a; --code: #202224; --accent: #7cc4ae; --wrong: #e58b78; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }}
main {{ max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
.about, .by, .note, footer {{ color: var(--soft); font-size: .85rem; }}
.about {{ margin: 0 0 2rem; }}
article {{ margin: 1.5rem 0; }}
.by {{ margin: 0 0 .3rem; display: flex; gap: .6rem; flex-wrap: wrap; align-items: baseline; }}
.by b {{ color: var(--ink); }}
.user .said {{ background: var(--user); border-radius: .6rem; padding: .7rem 1rem; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.text + .text {{ margin-top: .6rem; }}
pre {{ background: var(--code); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem;
  margin: .5rem 0; font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 32rem; overflow: auto; }}
details {{ border-left: 2px solid var(--line); margin: .5rem 0; padding-left: .8rem; }}
summary {{ cursor: pointer; color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }}
summary code {{ color: var(--accent); }}
.wrong summary {{ color: var(--wrong); }}
details p {{ color: var(--soft); font-size: .85rem; margin: .6rem 0 0; }}
img {{ max-width: 100%; border-radius: .4rem; display: block; margin: .5rem 0; }}
.note {{ border-top: 1px solid var(--line); padding-top: .5rem; margin: 1.2rem 0; overflow-wrap: anywhere; }}
footer {{ border-top: 1px solid var(--line); margin-top: 3rem; padding-top: .8rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="about">{about}</p>
{body}
<footer>{footer}</footer>
</main>
</body>
</html>
"""


def render_html(entries: Sequence[Entry], *, blobs: Mapping[str, bytes] | None = None) -> str:
    """The conversation in ``entries`` as one HTML file, redactions applied; bookkeeping is left out.

    ``blobs`` are stored bytes by name (``sha256-…``): images found there are shown. Nothing is ever loaded
    from an address.
    """
    shown = visible_entries(entries)
    ledger = Ledger()
    results: dict[str, tuple[ToolResult, ToolOutcome]] = {}
    for entry in shown:
        ledger.apply(entry)
        if isinstance(entry, ToolResultsEntry):
            parts = entry.payload.message.tool_results
            for part, outcome in zip(parts, entry.payload.outcomes, strict=False):
                results[part.payload.tool_call_id] = (part.payload, outcome)
    page = _Page(results, blobs or {})
    about = ""
    if shown:
        about = f"{shown[-1].session_id} · {_time(shown[0].timestamp)} to {_time(shown[-1].timestamp)}"
    return _PAGE.format(
        title=escape(one_line(ledger.title or "Conversation")),
        about=escape(about),
        body="\n".join(block for entry in shown for block in page.blocks(entry)),
        footer=escape(describe_usage(ledger.usage) if ledger.usage else f"{len(shown)} entries"),
    )


class _Page:
    """Calls are shown with their results, where the call was made."""

    def __init__(
        self, results: Mapping[str, tuple[ToolResult, ToolOutcome]], blobs: Mapping[str, bytes]
    ) -> None:
        self._results = results
        self._blobs = blobs

    def blocks(self, entry: Entry) -> Iterator[str]:
        if isinstance(entry, SystemPromptEntry):
            yield f"<details><summary>System instruction</summary>{_text(entry.payload.text)}</details>"
        elif isinstance(entry, ModelInputEntry):
            who = "User" if entry.payload.message.role == "user" else "System"
            yield self._article("user", who, "", entry.timestamp, entry.payload.message)
        elif isinstance(entry, ModelOutputEntry):
            usage = usage_of(entry.payload.message)
            more = entry.payload.invocation.model + (f" · {describe_usage(usage)}" if usage else "")
            yield self._article("assistant", "Assistant", more, entry.timestamp, entry.payload.message)
        elif note := describe_note(entry):
            yield f'<p class="note">{escape(note)}</p>'

    def _article(self, role: str, who: str, more: str, timestamp: str, message: Message) -> str:
        said = "".join(map(self._part, message.parts))
        about = f"<span>{escape(more)}</span>" if more else ""
        time = f'<time datetime="{escape(timestamp)}">{escape(_time(timestamp))}</time>'
        return (
            f'<article class="{role}"><p class="by"><b>{who}</b>{time}{about}</p>'
            f'<div class="said">{said}</div></article>'
        )

    def _part(self, part: MessagePart) -> str:
        match part:
            case TextPart():
                return _text(part.payload.text)
            case ThinkingPart():
                if not part.payload.text.strip():
                    return ""
                return f"<details><summary>Thinking</summary>{_text(part.payload.text)}</details>"
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart():
                return _code(result_text(part.payload))
            case ImagePart():
                return self._image(part)
            case FileRefPart():
                return f'<p class="note">File: {escape(part.payload.path)}</p>'

    def _call(self, part: ToolCallPart) -> str:
        name = escape(part.payload.tool_name)
        result, outcome = self._results.get(part.payload.tool_call_id, (None, None))
        status = outcome.status if outcome else "no result"
        wrong = "" if status == "success" else ' class="wrong"'
        took = f", {outcome.elapsed_ms} ms" if outcome and outcome.elapsed_ms is not None else ""
        shown = "" if result is None else f"<p>Result</p>{self._result(result)}"
        asked, came = _short(part.payload.raw_args_text), ""
        if result is not None and not isinstance(result.content, list):
            came = f" → {_short(result_text(result))}"
        return (
            f"<details{wrong}><summary>Calls <code>{name}</code> {asked}{came} · {status}{took}</summary>"
            f"{_code(call_text(part))}{shown}</details>"
        )

    def _result(self, result: ToolResult) -> str:
        if isinstance(result.content, list):
            return "".join(map(self._part, result.content))
        return _code(result_text(result))

    def _image(self, part: ImagePart) -> str:
        image = part.payload
        data = image.data
        if data is None and image.url and (held := self._blobs.get(image.url.removeprefix(PREFIX))):
            data = base64.b64encode(held).decode()
        if data is None or image.mime_type not in _IMAGES:
            return f'<p class="note">Image, {escape(image.mime_type)}: {escape(image.url or "inline")}</p>'
        return f'<img alt="" src="data:{image.mime_type};base64,{escape(data)}">'


def _text(text: str) -> str:
    """Plain text, with fenced code set apart; nothing in it becomes markup."""
    parts: list[str] = []
    position = 0
    for found in _FENCE.finditer(text):
        parts.append(_prose(text[position : found.start()]))
        parts.append(_code(found.group(1).rstrip("\n")))
        position = found.end()
    parts.append(_prose(text[position:]))
    return "".join(parts)


def _prose(text: str) -> str:
    text = text.strip("\n")
    return f'<div class="text">{escape(text)}</div>' if text.strip() else ""


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _short(text: str, limit: int = 60) -> str:
    text = one_line(text)
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")


def _time(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")
