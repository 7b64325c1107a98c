"""The grains of what is about to be written. The hall calls this just before an append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from turnlog.contract import HINTS, JsonObject, LevelOfDetailSections, Message, Section, encode

from ._grains import TextKind, make_grains, make_preview
from ._planner import FoldPlanner
from ._projection import Projection
from ._render import ResultContent, content_text, input_text


class Attached(TypedDict, total=False):
    """A text's own shorter versions, and what is shown behind it."""

    summary: str | None
    gist: str | None
    added: Sequence[Section]


def input_sections(
    projection: Projection, message: Message, **attached: Unpack[Attached]
) -> LevelOfDetailSections:
    """The grains of an input; ``added`` (its sections, LiveScreen, hints) is shown behind its live text."""
    return _sections(projection, input_text(message, attached.get("added", ())), "input", attached)


def result_sections(
    projection: Projection, content: ResultContent, **attached: Unpack[Attached]
) -> LevelOfDetailSections:
    """The grains of a tool result. What the tool's author gives wins, unless it is longer than the text."""
    return _sections(projection, content_text(content), "tool_result", attached)


def _sections(projection: Projection, text: str, kind: TextKind, attached: Attached) -> LevelOfDetailSections:
    summary, gist = attached.get("summary"), attached.get("gist")
    if summary is not None and len(summary) > len(text):
        summary = None
    if gist is not None and len(gist) > len(text):
        gist = None
    if summary is None or gist is None:
        made = make_grains(text, kind, projection.vocabulary)
        gist = (
            gist if gist is not None else (made.gist if summary is None else min(made.gist, summary, key=len))
        )
        summary = summary if summary is not None else made.summary
    return LevelOfDetailSections(
        live=list(attached.get("added", ())), summary=[("", summary)], gist=[("", gist)]
    )


def hints_section(projection: Projection, hints: JsonObject | None) -> Section | None:
    """The section that shows runtime hints, when they are not what was last shown.

    None says nothing about them; an empty object takes back what was shown.
    """
    if hints is None or (not hints and projection.shown_hints is None):
        return None
    text = encode(hints).decode()
    return None if text == projection.shown_hints else (HINTS, text)


def preview_result(
    projection: Projection, text: str, handle: str, *, window: int | None = None
) -> str | None:
    """What is sent of a result that is too long to send whole, or None when it is not.

    ``handle`` says how the model gets the rest, such as the path of the artifact that holds it. ``window`` is
    the model's own, in tokens, where the caller knows it: one result takes only a small part of it.
    """
    size, meter, allowed = len(text.encode()), projection.meter, projection.options.preview_at
    if allowed is None:
        if size <= meter.weight(_LEAST_SHARE):
            return None  # whatever the window is
        allowed = share_of(FoldPlanner(projection).window() if window is None else window, PREVIEW)
    limit = meter.weight(allowed)
    return make_preview(text, limit, handle) if size > limit else None


def share_of(window: int | None, most: int) -> int:
    """What one result or page may take of a window: ``most`` tokens, less where the window is small."""
    return most if window is None else min(most, max(window * 3 // 40, _LEAST_SHARE))


PREVIEW = 2_500
"""Tokens above which a result is sent as a preview, where the window allows that much."""

_LEAST_SHARE = 150
"""Tokens below which an excerpt says too little."""
