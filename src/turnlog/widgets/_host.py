"""All widgets of a session, stepped entry by entry, and the LiveScreen made of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from turnlog.contract import (
    LIVE_SCREEN,
    AgentError,
    CompactionSummaryEntry,
    Entry,
    FoldEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ToolResultsEntry,
    ToolSpec,
    scrub,
    try_get_section,
)

from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext

TITLE = "# [Live Screen]"


class WidgetHost:
    """States of all widgets, and which sections the model was last shown.

    ``step`` takes entries in log order. What has been shown follows from the log alone: an entry that
    carries a LiveScreen showed the screen as it was before that entry; a fold hides everything.
    """

    def __init__(self, widgets: Sequence[Widget[Any]] = ()) -> None:
        names: set[str] = set()
        for widget in widgets:
            if widget.name in names:
                raise AgentError("ConfigInvalid", f"two widgets are named {widget.name!r}")
            names.add(widget.name)
        self._widgets = tuple(widgets)
        self._states: dict[str, Any] = {widget.name: widget.initial() for widget in widgets}
        self._shown: dict[str, str] = {}

    @property
    def widgets(self) -> tuple[Widget[Any], ...]:
        return self._widgets

    def state(self, name: str) -> Any:
        return self._states[name]

    def step(self, entry: Entry) -> None:
        if not self._widgets:
            return
        if isinstance(entry, FoldEntry):
            # A fold shows the whole screen itself; one without a screen hides what was shown before.
            self._shown = dict(self.sections()) if entry.payload.screen is not None else {}
        elif isinstance(entry, CompactionSummaryEntry):
            self._shown = {}
        elif _has_screen(entry):
            self._shown = dict(self.sections())
        for widget in self._widgets:
            self._states[widget.name] = widget.reduce(self._states[widget.name], entry)

    def sections(self) -> list[tuple[str, str]]:
        """The whole screen: sections of all widgets in the order they were registered."""
        found: list[tuple[str, str]] = []
        for widget in self._widgets:
            for title, text in self._render(widget).items():
                if text.strip():
                    found.append((title, text.rstrip()))
        return found

    def screen(self) -> str | None:
        """The whole screen as Markdown, or None when every widget is empty."""
        return _page([f"## {title}\n\n{text}" for title, text in self.sections()])

    def changes(self) -> str | None:
        """What the model has not been shown yet: changed sections, whole or as a patch when that is short."""
        sections = self.sections()
        present = {title for title, _ in sections}
        blocks = [
            _block(title, text, self._shown.get(title))
            for title, text in sections
            if self._shown.get(title) != text
        ]
        blocks += [f"## {title}\n\n(empty)" for title in self._shown if title not in present]
        return _page(blocks)

    def specs(self) -> list[tuple[Widget[Any], ToolSpec]]:
        return [(widget, tool) for widget in self._widgets for tool in widget.tools]

    def execute(
        self, widget: Widget[Any], tool: str, arguments: dict[str, Any], tool_call_id: str
    ) -> WidgetAnswer:
        ctx = WidgetToolContext(self._states[widget.name], arguments, tool_call_id, self._states)
        return widget.execute_tool(tool, ctx)

    def _render(self, widget: Widget[Any]) -> dict[str, str]:
        try:
            return widget.render_live_screen(RenderContext(self._states[widget.name], self._states)) or {}
        except Exception as error:
            # The run goes on; the model and the log both see that this view is missing, and why.
            return {widget.name: f"(cannot be shown: {type(error).__name__}: {scrub(str(error))})"}


def _has_screen(entry: Entry) -> bool:
    if isinstance(entry, ModelInputEntry):
        return _in(entry.payload.sections)
    if isinstance(entry, ToolResultsEntry):
        return any(_in(outcome.sections) for outcome in entry.payload.outcomes)
    return False


def _in(sections: LevelOfDetailSections | None) -> bool:
    return sections is not None and try_get_section(sections.live, LIVE_SCREEN) is not None


def _page(blocks: list[str]) -> str | None:
    return "\n\n".join([TITLE, *blocks]) if blocks else None


def _block(title: str, text: str, before: str | None) -> str:
    whole = f"## {title}\n\n{text}"
    if before is None:
        return whole
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0)
    patch = "\n".join(line for line in lines if not line.startswith(("---", "+++")))
    short = f"## {title} (changed lines)\n\n```diff\n{patch}\n```"
    return short if len(short) * 2 < len(whole) else whole


def screen_at(widgets: Sequence[Widget[Any]], entries: Iterable[Entry], seq: int) -> str | None:
    """The full screen as it was when entry ``seq`` was written."""
    host = WidgetHost(widgets)
    for entry in entries:
        if entry.seq >= seq:
            break
        host.step(entry)
    return host.screen()
