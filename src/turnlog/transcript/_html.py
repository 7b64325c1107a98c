"""A session as one HTML file: the timeline with its data inside, which opens without a server and loads
nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from turnlog.context import explain_all
from turnlog.contract import (
    AgentError,
    Entry,
    Message,
    ModelInputEntry,
    ModelOutputEntry,
    SessionHeaderEntry,
    SessionInfo,
    ToolResultsEntry,
    encode,
)
from turnlog.history import SessionState, pending_in, screens_in, timeline_of

from ._markdown import Story, render_markdown
from ._prose import PICTURES

_IMAGES = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"))
# Nothing in the data ends its element, and nothing moves the cursor of a terminal that prints the file.
_INERT: dict[int, int | str] = {
    **PICTURES,
    **{ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"},
}
_FORM = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<div id="app"></div>
<noscript><pre class="plain">{words}</pre></noscript>
<script type="application/json" id="session">{data}</script>
<script type="module">{js}</script>
</body>
</html>
"""


def render_html(
    entries: Sequence[Entry],
    *,
    blobs: Mapping[str, bytes] | None = None,
    branches: Sequence[SessionInfo] = (),
) -> str:
    """The session in ``entries`` as one HTML file, redactions applied: the timeline, to read. Without scripts
    it shows the conversation as text.

    ``blobs`` are stored bytes by name (``sha256-…``): pictures found there are shown. ``branches`` are
    listed. The same log gives the same file. Nothing is ever loaded from an address.
    """
    story = Story(entries)
    js, css = _asset("timeline.js").replace("</script", "<\\/script"), _asset("timeline.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(js)}'; style-src '{_hash(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    document = _document(story.entries, blobs or {}, branches)
    return _FORM.format(
        policy=policy,
        title=escape(story.title),
        css=css,
        words=escape(render_markdown(story.entries)),
        data=encode(document).decode().translate(_INERT),
        js=js,
    )


def _asset(name: str) -> str:
    try:
        return (files("turnlog") / "web" / "assets" / name).read_text("utf-8")
    except FileNotFoundError as error:
        raise AgentError(
            "ConfigInvalid", "the page was not built; run 'npm ci && npm run build' in web/"
        ) from error


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _document(
    entries: Sequence[Entry], blobs: Mapping[str, bytes], branches: Sequence[SessionInfo]
) -> dict[str, Any]:
    """What the page asks a server for, in one value. Messages that calls share are there once: a call names
    those that are new in it, by their place in ``messages`` or, below zero, by the entry that has them."""
    state = SessionState.of(list(entries))
    session_id = entries[-1].session_id if entries else ""
    calls, messages, heads = _calls(entries)
    return {
        "view": {
            "info": _info(session_id, entries, state),
            "state": {"status": state.status},
            "timeline": timeline_of(entries),
            "pending": pending_in(session_id, state),
            "questions": [],
            "branches": sorted(branches, key=lambda info: (info.forked_at or 0, info.session_id)),
            "canRun": False,
        },
        "entries": entries,
        "calls": calls,
        "messages": messages,
        "heads": heads,
        "screens": list(screens_in(entries)),
        "pictures": {name: found for name in sorted(blobs) if (found := _picture(blobs[name])) is not None},
    }


def _info(session_id: str, entries: Sequence[Entry], state: SessionState) -> SessionInfo | None:
    if not entries:
        return None
    headers = [entry.payload for entry in entries if isinstance(entry, SessionHeaderEntry)]
    return SessionInfo(
        session_id=session_id,
        entries=len(entries),
        created_at=entries[0].timestamp,
        updated_at=entries[-1].timestamp,
        title=headers[-1].title if headers else None,
        parent_session_id=headers[-1].parent_session_id if headers else None,
        status=state.status,
    )


def _calls(entries: Sequence[Entry]) -> tuple[list[Any], list[Message], list[Any]]:
    places: dict[bytes, int] = {}
    for entry in entries:
        if isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            places.setdefault(_key(entry.payload.message), -entry.seq)
    messages: list[Message] = []
    heads: list[Any] = []
    calls: list[Any] = []
    for step in explain_all(entries):
        if step.head_changed or not heads:
            heads.append({"systemPrompt": step.system_prompt, "toolSpecs": step.tool_specs})
        added: list[int] = []
        for message in step.added:
            key = _key(message)
            if key not in places:
                places[key] = len(messages)
                messages.append(message)
            added.append(places[key])
        told = msgspec.to_builtins(step)
        for name in ("systemPrompt", "toolSpecs", "entryId"):
            told.pop(name, None)
        calls.append({**told, "added": added, "head": len(heads) - 1})
    return calls, messages, heads


def _key(message: Message) -> bytes:
    return hashlib.sha256(encode((message.role, message.parts))).digest()


def picture_type(data: bytes) -> str | None:
    """The type of a picture that browsers show, by its first bytes; None for anything else."""
    for start, kind in _IMAGES:
        if data.startswith(start):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _picture(data: bytes) -> str | None:
    kind = picture_type(data)
    return None if kind is None else f"data:{kind};base64,{base64.b64encode(data).decode()}"
