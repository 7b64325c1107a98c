"""A conversation to read, as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ..contract import (
    ApprovalDecidedEntry,
    Entry,
    FileRefPart,
    ImagePart,
    Message,
    MessagePart,
    ModelCallFailedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
)
from ._blank import PLACEHOLDER
from ._blobs import PREFIX
from ._html_page import PAGE
from ._ledger import usage_of
from ._markdown import result_text
from ._prose import code_html, plain_html, prose_html
from ._story import Story, call_text, compact, describe_usage, ending, one_line, pretty, speaker

_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


def render_html(entries: Sequence[Entry], *, blobs: Mapping[str, bytes] | None = None) -> str:
    """The conversation in ``entries`` as one HTML file, redactions applied; bookkeeping is left out.

    ``blobs`` are stored bytes by name (``sha256-…``): images found there are shown. Nothing is ever loaded
    from an address.
    """
    story = Story(entries)
    shown, usage = story.entries, story.ledger.usage
    page = _Page(story, blobs or {})
    about = ""
    if shown:
        first, last = _time(shown[0].timestamp), _time(shown[-1].timestamp)
        about = f"{shown[-1].session_id} · {first} to {last} UTC"
    return PAGE.format(
        title=escape(story.title),
        about=escape(about),
        body="\n".join(block for entry in shown for block in page.blocks(entry)),
        footer=escape(describe_usage(usage) if usage else f"{len(shown)} entries"),
    )


class _Page:
    """Calls are shown with their approvals and results, where the call was made."""

    def __init__(self, story: Story, blobs: Mapping[str, bytes]) -> None:
        self._story = story
        self._blobs = blobs

    def blocks(self, entry: Entry) -> Iterator[str]:
        if isinstance(entry, SystemPromptEntry):
            yield f"<details><summary>System instruction</summary>{_said(entry.payload.text)}</details>"
        elif isinstance(entry, ModelInputEntry):
            yield self._article("user", speaker(entry), "", entry.timestamp, entry.payload.message)
        elif isinstance(entry, ModelOutputEntry):
            yield self._answer(entry)
        elif isinstance(entry, ApprovalDecidedEntry):
            return  # it is told where the call is
        elif note := self._story.note(entry):
            wrong = isinstance(entry, ModelCallFailedEntry | RunEndedEntry)
            yield f'<p class="note{" wrong" if wrong else ""}">{escape(note)}</p>'

    def _answer(self, entry: ModelOutputEntry) -> str:
        usage = usage_of(entry.payload.message)
        more = entry.payload.invocation.model + (f" · {describe_usage(usage)}" if usage else "")
        shown = self._article("assistant", "Assistant", more, entry.timestamp, entry.payload.message)
        if cut := ending(entry):
            shown += f'<p class="note wrong">This answer {cut}</p>'
        return shown

    def _article(self, role: str, who: str, more: str, timestamp: str, message: Message) -> str:
        plain = role == "user"
        said = "".join(self._part(part, plain) for part in message.parts)
        about = f"<span>{escape(more)}</span>" if more else ""
        time = f'<time datetime="{escape(timestamp)}">{escape(_time(timestamp))}</time>'
        return (
            f'<article class="{role}"><p class="by"><b>{who}</b>{time}{about}</p>'
            f'<div class="said">{said}</div></article>'
        )

    def _part(self, part: MessagePart, plain: bool = False) -> str:
        match part:
            case TextPart():
                return _said(part.payload.text, plain)
            case ThinkingPart():
                if not part.payload.text.strip():
                    return ""
                return f"<details><summary>Thinking</summary>{_said(part.payload.text)}</details>"
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart():
                return code_html(result_text(part.payload))
            case ImagePart():
                return self._image(part)
            case FileRefPart():
                return f'<p class="note">File: {escape(part.payload.path)}</p>'

    def _call(self, part: ToolCallPart) -> str:
        call_id = part.payload.tool_call_id
        result, _ = self._story.results.get(call_id, (None, None))
        decided = self._story.decisions.get(call_id)
        came, images, inside = "", "", code_html(call_text(part))
        if decided is not None and decided.arguments is not None:
            came = f"<span>ran with {_short(compact(decided.arguments))}</span>"
            inside += f"<p>Ran with</p>{code_html(pretty(decided.arguments))}"
        if result is not None:
            if not isinstance(result.content, list):
                came += f"<span>→ {_short(result_text(result))}</span>"
            shown, images = self._result(result)
            inside += f"<p>Result</p>{shown}" if shown else ""
        return (
            f"<details><summary><code>{escape(part.payload.tool_name)}</code> "
            f"{_short(part.payload.raw_args_text)}{came}{self._status(call_id)}</summary>"
            f"{inside}</details>{images}"
        )

    def _status(self, call_id: str) -> str:
        """How the call went, and who let it."""
        _, outcome = self._story.results.get(call_id, (None, None))
        took = f", {outcome.elapsed_ms} ms" if outcome and outcome.elapsed_ms is not None else ""
        if outcome is not None:
            status, css = outcome.status, "fine" if outcome.status == "success" else "wrong"
        elif self._story.waits(call_id):
            status, css = "waits for approval", "waits"
        else:
            status, css = "no result", "wrong"
        approval = self._story.approval(call_id)
        by = f" · {escape(approval)}" if approval else ""
        return f'<span><b class="{css}">{status}</b>{took}{by}</span>'

    def _result(self, result: ToolResultPayload) -> tuple[str, str]:
        """What is shown when the call is opened, and the images, which always are."""
        if not isinstance(result.content, list):
            return code_html(result_text(result)), ""
        images = [part for part in result.content if isinstance(part, ImagePart)]
        others = [part for part in result.content if not isinstance(part, ImagePart)]
        return "".join(map(self._part, others)), "".join(map(self._image, images))

    def _image(self, part: ImagePart) -> str:
        image = part.payload
        data = image.data
        if data is None and image.url and (held := self._blobs.get(image.url.removeprefix(PREFIX))):
            data = base64.b64encode(held).decode()
        if data is None or image.mime_type not in _IMAGES:
            return f'<p class="note">Image, {escape(image.mime_type)}: {escape(image.url or "inline")}</p>'
        return f'<img alt="" src="data:{image.mime_type};base64,{escape(data)}">'


def _said(text: str, plain: bool = False) -> str:
    if text.strip() == PLACEHOLDER:
        return f'<div class="text hidden">{PLACEHOLDER}</div>'
    return plain_html(text) if plain else prose_html(text)


def _short(text: str, limit: int = 90) -> str:
    text = one_line(text)
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")


def _time(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")
