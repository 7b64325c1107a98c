"""All widgets of a session, stepped entry by entry, and the LiveScreen made of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import msgspec

from turnlog.contract import (
    LIVE_SCREEN,
    AgentError,
    BranchSummaryEntry,
    Entry,
    FoldEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    ToolResultsEntry,
    ToolSpec,
    freeze,
    scrub,
    try_get_section,
)

from ._widget import EntryView, RenderContext, Widget, WidgetAnswer, WidgetToolContext

TITLE = "# [Live Screen]"

Screen: TypeAlias = dict[tuple[str, str], str]
"""(widget, section) → Markdown, in the order shown."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


class _Kept(msgspec.Struct, array_like=True):
    states: dict[str, Any]
    broken: dict[str, str]
    shown: list[tuple[str, str, str]]
    running: bool


class WidgetHost:
    """States of all widgets, and which sections the model was last shown.

    ``step`` takes entries in log order. What has been shown follows from the log alone: an entry that
    carries a LiveScreen showed the screen as it was before that entry, and a fold shows the whole of it.
    After a redaction or a purge, ``refold`` makes all states anew from the visible entries, without those
    that are hidden; what was shown before it counts no more.
    """

    def __init__(self, widgets: Sequence[Widget[Any]] = ()) -> None:
        names: set[str] = set()
        for widget in widgets:
            if widget.name in names:
                raise AgentError(
                    "ConfigInvalid",
                    f"two widgets are named {widget.name!r}; a widget's name tells whose events are whose, "
                    "so give one of them another",
                )
            names.add(widget.name)
        self._widgets = tuple(widgets)
        self._look_back = not all(map(_can_save, widgets))
        self._states: dict[str, Any] = {}
        self._broken: dict[str, str] = {}
        self._shown: Screen = {}
        self._cut = False
        self._running = False
        self._entries: list[Entry] = []
        self._hidden: frozenset[str] = frozenset()
        self.refold(())

    @property
    def widgets(self) -> tuple[Widget[Any], ...]:
        return self._widgets

    @property
    def states(self) -> Mapping[str, Any]:
        """The state of every widget by its name; read-only."""
        return MappingProxyType(self._states)

    def state(self, name: str) -> Any:
        return self._states[name]

    def step(self, entry: Entry) -> None:
        if not self._widgets:
            return
        if isinstance(entry, FoldEntry):
            # A fold hides what was shown before and shows the whole screen itself, as far as the
            # process that folded knew the widgets.
            screen = entry.payload.screen or ""
            self._shown = {
                key: text for key, text in self._render().items() if _whole(key[1], text) in screen
            }
        elif isinstance(entry, RedactionEntry | PurgeEntry) or (
            isinstance(entry, BranchSummaryEntry) and self._cut
        ):
            self._shown = {}  # what was shown before is hidden with it, and is shown anew
        elif _has_screen(entry):
            self._shown = self._render()
        self._cut = self._cut or _is_cut(entry)
        if isinstance(entry, RunStartedEntry | RunEndedEntry):
            self._running = isinstance(entry, RunStartedEntry)
        if self._look_back:
            self._entries.append(entry)
        self._reduce(entry)

    def refold(self, entries: Iterable[Entry]) -> None:
        """Begin again and take in ``entries``, the visible ones of a log."""
        entries = list(entries)
        self._hidden = frozenset(
            entry_id
            for entry in entries
            if isinstance(entry, RedactionEntry | PurgeEntry)
            for entry_id in entry.payload.entry_ids
        )
        self._states = {widget.name: widget.initial() for widget in self._widgets}
        self._broken, self._shown, self._cut = {}, {}, False
        self._entries, self._running = [], False
        for entry in entries:
            self.step(entry)

    # ── a snapshot, to begin with in the place of entries ──

    @property
    def snapshot_kinds(self) -> list[tuple[str, str, str]] | None:
        """Whose snapshot it is: name, class and version of each widget; None where one cannot save its
        state."""
        if self._look_back:
            return None
        kinds = [(widget, type(widget)) for widget in self._widgets]
        return [(it.name, f"{kind.__module__}.{kind.__qualname__}", it.version) for it, kind in kinds]

    def snapshot(self) -> bytes | None:
        """All that was taken in, as bytes; None while something is hidden. Raises what a widget raises, and
        ``TypeError`` for what is not plain."""
        if self._hidden or self._cut:
            return None
        states = {widget.name: widget.save_state(self._states[widget.name]) for widget in self._widgets}
        shown = [(*key, text) for key, text in self._shown.items()]
        return msgspec.msgpack.encode(_Kept(states, self._broken, shown, self._running))

    def restore(self, data: bytes) -> None:
        """Forget everything and begin with a snapshot. Raises what a widget raises, and ``MsgspecError``."""
        kept = msgspec.msgpack.decode(data, type=_Kept)
        states = {widget.name: widget.load_state(kept.states[widget.name]) for widget in self._widgets}
        self.refold(())
        self._states, self._broken, self._running = states, kept.broken, kept.running
        self._shown = {(widget, title): text for widget, title, text in kept.shown}

    def _reduce(self, entry: Entry) -> None:
        if entry.id in self._hidden or entry.purged_digest is not None:
            return
        entry = freeze(entry)
        for widget in self._widgets:
            if widget.name in self._broken:
                continue
            try:
                self._states[widget.name] = widget.reduce(self._states[widget.name], entry)
            except Exception as error:
                # A session must open whatever its widgets make of it; the screen says which one could not.
                self._broken[widget.name] = f"at entry {entry.seq}, {_told(error)}"

    # ── the screen ──

    def sections(self) -> list[tuple[str, str]]:
        """The whole screen: sections of all widgets in the order they were registered."""
        return [(title, text) for (_, title), text in self._render().items()]

    def screen(self) -> str | None:
        """The whole screen as Markdown, or None when every widget is empty."""
        return _page([_whole(title, text) for title, text in self.sections()])

    def changes(self) -> str | None:
        """What the model has not been shown yet: changed sections, whole or as a patch when that is short."""
        now, shown = self._render(), self._shown
        blocks = [
            _block(title, text, shown.get((widget, title)))
            for (widget, title), text in now.items()
            if shown.get((widget, title)) != text
        ]
        blocks += [f"## {title}\n\n(empty)" for widget, title in shown if (widget, title) not in now]
        return _page(blocks)

    def _render(self) -> Screen:
        return {
            (widget.name, title): text.rstrip()
            for widget in self._widgets
            for title, text in self._sections_of(widget).items()
            if text.strip()
        }

    def _sections_of(self, widget: Widget[Any]) -> dict[str, str]:
        problem = self._broken.get(widget.name)
        if problem is None:
            try:
                seen = () if _can_save(widget) else EntryView(self._entries)
                ctx = RenderContext(self._states[widget.name], self.states, seen, self._running)
                return _checked(widget.render_live_screen(ctx))
            except Exception as error:
                problem = _told(error)
        # The run continues; the model and the log both show that this view is missing, and why.
        return {widget.name: f"(cannot be shown: {problem})"}

    # ── tools ──

    def specs(self) -> list[tuple[Widget[Any], ToolSpec]]:
        return [(widget, tool) for widget in self._widgets for tool in widget.tools]

    def execute(
        self, widget: Widget[Any], tool: str, arguments: dict[str, Any], tool_call_id: str
    ) -> WidgetAnswer:
        ctx = WidgetToolContext(self._states[widget.name], arguments, tool_call_id, self.states)
        return widget.execute_tool(tool, ctx)


def _can_save(widget: Widget[Any]) -> bool:
    """Whether its class has both methods of its own."""
    kind: Any = type(widget)
    base: Any = Widget
    return kind.save_state is not base.save_state and kind.load_state is not base.load_state


def _checked(sections: Any) -> dict[str, str]:
    if sections is None:
        return {}
    if not isinstance(sections, dict):
        raise TypeError(f"render_live_screen returned a {type(sections).__name__}, not a dict of Markdown")
    found = cast("dict[Any, Any]", sections)
    for title, text in found.items():
        if not isinstance(title, str) or not isinstance(text, str):
            raise TypeError(f"render_live_screen returned {type(text).__name__} for section {title!r}")
    return found


def _told(error: Exception) -> str:
    """The error in words that are the same whenever it is met again: they are stored, and replayed."""
    return f"{type(error).__name__}: {_ADDRESS.sub('0x…', scrub(str(error)))}"


def _is_cut(entry: Entry) -> bool:
    return entry.purged_digest is not None or entry.trimmed_digest is not None


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


def _whole(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _block(title: str, text: str, before: str | None) -> str:
    whole = _whole(title, text)
    if before is None:
        return whole
    lines = difflib.unified_diff(before.split("\n"), text.split("\n"), lineterm="", n=0)
    patch = "\n".join(list(lines)[2:])  # the first two name files
    short = f"## {title} (changed lines)\n\n```diff\n{patch}\n```"
    return short if len(short) * 2 < len(whole) else whole


def screen_at(widgets: Sequence[Widget[Any]], entries: Iterable[Entry], seq: int) -> str | None:
    """The full screen as it was when entry ``seq`` was written, without what was redacted since.

    ``entries`` are the visible ones of the log."""
    host = WidgetHost(widgets)
    log = list(entries)
    changes = [entry for entry in log if entry.seq >= seq and isinstance(entry, RedactionEntry | PurgeEntry)]
    host.refold([*(entry for entry in log if entry.seq < seq), *changes])
    return host.screen()
