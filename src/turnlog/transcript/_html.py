"""A conversation to read, as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from turnlog.contract import (
    ApprovalDecidedEntry,
    Entry,
    FileRefPart,
    ImagePart,
    JsonObject,
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
    about_file,
)
from turnlog.history import PLACEHOLDER

from ._markdown import (
    Story,
    clock_time,
    compact,
    day_and_time,
    describe_usage,
    duration,
    ending,
    one_line,
    pretty,
    result_text,
    speaker,
    usage_of,
)
from ._prose import code_html, neutral, plain_html, prose_html

_BLOB = "blob:"
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


def render_html(entries: Sequence[Entry], *, blobs: Mapping[str, bytes] | None = None) -> str:
    """The conversation in ``entries`` as one HTML file, redactions applied; bookkeeping is left out.

    ``blobs`` are stored bytes by name (``sha256-…``): images found there are shown. Nothing is ever loaded
    from an address.
    """
    story = Story(entries)
    shown, usage = story.entries, story.usage
    page = _Page(story, blobs or {})
    about = ""
    if shown:
        first, last = day_and_time(shown[0].timestamp), day_and_time(shown[-1].timestamp)
        about = f"{one_line(shown[-1].session_id)} · {first} to {last} UTC"
    form = (files(__package__ or "") / "page.html").read_text("utf-8")
    return Template(form).substitute(
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
        took = self._story.took(entry)
        if isinstance(entry, SystemPromptEntry):
            yield f"<details><summary>System instruction</summary>{_said(entry.payload.text)}</details>"
        elif isinstance(entry, ModelInputEntry):
            yield self._article("user", speaker(entry), "", entry.timestamp, entry.payload.message)
        elif isinstance(entry, ModelOutputEntry):
            yield self._answer(entry, took)
        elif isinstance(entry, ApprovalDecidedEntry):
            return  # it is told where the call is
        elif note := self._story.note(entry):
            wrong = isinstance(entry, ModelCallFailedEntry | RunEndedEntry)
            after = f" (after {took})" if took else ""
            shown = escape(neutral(note)) + after
            yield f'<p class="note{" wrong" if wrong else ""}">{_when(entry.timestamp)} {shown}</p>'

    def _answer(self, entry: ModelOutputEntry, took: str | None) -> str:
        usage = usage_of(entry)
        about = [f"after {took}" if took else "", entry.payload.invocation.model]
        more = " · ".join([part for part in about if part] + ([describe_usage(usage)] if usage else []))
        shown = self._article("assistant", "Assistant", more, entry.timestamp, entry.payload.message)
        if cut := ending(entry):
            shown += f'<p class="note wrong">This answer {cut}</p>'
        return shown

    def _article(self, role: str, who: str, more: str, timestamp: str, message: Message) -> str:
        plain = role == "user"
        said = "".join(self._part(part, plain) for part in message.parts)
        about = f"<span>{escape(neutral(more))}</span>" if more else ""
        return (
            f'<article class="{role}"><p class="by"><b>{who}</b>{_when(timestamp)}{about}</p>'
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
                return code_html(neutral(result_text(part.payload)))
            case ImagePart():
                return self._image(part)
            case FileRefPart():
                return f'<p class="note">File: {escape(neutral(about_file(part.payload)))}</p>'

    def _call(self, part: ToolCallPart) -> str:
        call_id = part.payload.tool_call_id
        result, _ = self._story.results.get(call_id, (None, None))
        decided = self._story.decisions.get(call_id)
        came, images, inside = "", "", _arguments(part)
        if decided is not None and decided.arguments is not None:
            came = f"<span>ran with {_short(_brief(decided.arguments))}</span>"
            inside += f"<p>Ran with</p>{_fields(decided.arguments)}"
        if result is not None:
            if not isinstance(result.content, list):
                came += f"<span>→ {_short(result_text(result))}</span>"
            shown, images = self._result(result)
            inside += f"<p>Result</p>{shown}" if shown else ""
        return (
            f"<details><summary><code>{escape(neutral(part.payload.tool_name))}</code> "
            f"{_short(_asked(part))}{came}{self._status(call_id)}</summary>"
            f"{inside}</details>{images}"
        )

    def _status(self, call_id: str) -> str:
        """How the call went, and who let it."""
        _, outcome = self._story.results.get(call_id, (None, None))
        took = ""
        if outcome and outcome.elapsed_ms is not None:
            took = f", {duration(outcome.elapsed_ms / 1000)}"
        if outcome is not None:
            status, css = outcome.status, "fine" if outcome.status == "success" else "wrong"
        elif self._story.waits(call_id):
            status, css = "waits for approval", "waits"
        else:
            status, css = "no result", "wrong"
        approval = self._story.approval(call_id)
        by = f" · {escape(neutral(approval))}" if approval else ""
        return f'<span><b class="{css}">{status}</b>{took}{by}</span>'

    def _result(self, result: ToolResultPayload) -> tuple[str, str]:
        """What is shown when the call is opened, and the images, which always are."""
        if not isinstance(result.content, list):
            language = "json" if isinstance(result.content, dict) else ""
            return code_html(neutral(result_text(result)), language), ""
        images = [part for part in result.content if isinstance(part, ImagePart)]
        others = [part for part in result.content if not isinstance(part, ImagePart)]
        return "".join(map(self._part, others)), "".join(map(self._image, images))

    def _image(self, part: ImagePart) -> str:
        image = part.payload
        data = image.data
        if data is None and image.url and (held := self._blobs.get(image.url.removeprefix(_BLOB))):
            data = base64.b64encode(held).decode()
        if data is None or image.mime_type not in _IMAGES:
            what = f"Image, {about_file(image)}: {image.url or 'inline'}"
            return f'<p class="note">{escape(neutral(what))}</p>'
        alt = escape(neutral(image.name or ""))
        return f'<img alt="{alt}" src="data:{image.mime_type};base64,{escape(data)}">'


def _asked(part: ToolCallPart) -> str:
    arguments = part.payload.arguments
    return part.payload.raw_args_text if arguments is None else _brief(arguments)


def _brief(arguments: JsonObject) -> str:
    return ", ".join(
        f"{name}: {value if isinstance(value, str) else compact(value)}" for name, value in arguments.items()
    )


def _arguments(part: ToolCallPart) -> str:
    call = part.payload
    return code_html(neutral(call.raw_args_text)) if call.arguments is None else _fields(call.arguments)


def _fields(arguments: JsonObject) -> str:
    """An argument a row: text as it is, other values as JSON."""
    rows: list[str] = []
    for name, value in arguments.items():
        if isinstance(value, str):
            shown = f"<pre>{escape(neutral(value))}</pre>" if "\n" in value else _cell(value)
        else:
            text = compact(value)
            shown = _cell(text) if len(text) <= 80 else code_html(neutral(pretty(value)), "json")
        rows.append(f"<dt>{escape(one_line(name))}</dt><dd>{shown}</dd>")
    return f"<dl>{''.join(rows)}</dl>" if rows else "<p>No arguments</p>"


def _cell(text: str) -> str:
    return f"<code>{escape(neutral(text))}</code>"


def _said(text: str, plain: bool = False) -> str:
    text = neutral(text)
    if text.strip() == PLACEHOLDER:
        return f'<div class="text hidden">{PLACEHOLDER}</div>'
    return plain_html(text) if plain else prose_html(text)


def _short(text: str, limit: int = 90) -> str:
    text = one_line(text)
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")


def _when(timestamp: str) -> str:
    whole = f"{day_and_time(timestamp)}:{timestamp[17:19]} UTC"
    shown = escape(clock_time(timestamp))
    return f'<time datetime="{escape(timestamp)}" title="{escape(whole)}">{shown}</time>'
