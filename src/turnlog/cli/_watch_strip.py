"""The strip of a whole run, and the gauge of what fills the window at a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from turnlog.history import Step
from turnlog.loop import Saw

from ._app import span
from ._watch_blocks import Paint, fit, wrap
from ._watch_steps import BARS, Shown, money, percent, tokens

Widths: TypeAlias = Literal["steps", "time", "cost"]
WIDTHS: tuple[Widths, ...] = ("steps", "time", "cost")


class RunStrip:
    """The whole session in as many columns as there are: bars for times, the context below them, marks."""

    def __init__(self, shown: Shown, steps: Sequence[Step], width: int, widths: Widths) -> None:
        self.width = max(width, 1)
        self._shown = shown
        self._columns: list[list[Step]] = [[] for _ in range(self.width)]
        self._place: dict[int, int] = {}
        self._drawn: tuple[Paint, tuple[Text, ...]] | None = None
        weights = [_weight(step, widths) for step in steps]
        total = sum(weights) or 1.0
        self._each = max(1, min(4, self.width // max(len(steps), 1))) if widths == "steps" else 1
        """Columns of a step, of which the last is a gap."""
        self.used = min(self.width, self._each * len(steps)) if widths == "steps" else self.width
        passed = 0.0
        for step, weight in zip(steps, weights, strict=True):
            column = min(int(passed / total * self.used + 1e-6), self.width - 1)
            self._columns[column].append(step)
            self._place[step.seq] = column
            passed += weight
        self._tallest = max((math.log1p(step.ms or 0) for step in steps), default=1.0) or 1.0
        self._most = max((step.input or 0 for step in steps if step.kind == "model"), default=0) or 1

    def step_at(self, column: int) -> Step | None:
        """The step that begins at a column, or the last one before it."""
        for at in range(min(column, self.width - 1), -1, -1):
            if self._columns[at]:
                return self._columns[at][0]
        return None

    def lines(self, chosen: Step | None, sight: tuple[int, int], height: int, paint: Paint) -> list[Text]:
        """Of the names of runs, bars, context and marks as many as ``height`` has room for."""
        first, last = (self._place.get(seq, 0) for seq in sight)
        at = self._place.get(chosen.seq) if chosen is not None else None
        if self._drawn is None or self._drawn[0] is not paint:
            rows = self._runs(paint), self._bars(paint), self._context(paint), self._marks(paint)
            self._drawn = paint, rows
        rows = dict(
            zip(("runs", "bars", "context", "marks"), (row.copy() for row in self._drawn[1]), strict=True)
        )
        for name in ("bars", "context", "marks"):
            rows[name].stylize(Style(bgcolor=paint.colour["panel"]), first, last + 1)
            if at is not None:
                rows[name].stylize(paint.found if name == "bars" else paint.chosen, at, at + 1)
        if at is not None and rows["marks"].plain[at] == " ":
            rows["marks"] = Text.assemble(rows["marks"][:at], ("▴", paint.accent), rows["marks"][at + 1 :])
        keep = {1: ("bars",), 2: ("bars", "marks"), 3: ("bars", "context", "marks")}.get(height, tuple(rows))
        return [row for name, row in rows.items() if name in keep]

    def _runs(self, paint: Paint) -> Text:
        line = Text("")
        for run in self._shown.timeline.runs:
            column = self._place.get(run.first)
            if column is None or column < len(line.plain):
                continue
            line.append(" " * (column - cell_len(line.plain)))
            last = run.number == len(self._shown.timeline.runs)
            status = "waits" if last and self._shown.status == "awaiting_human" else run.status
            line.append(f"Run {run.number} ", style=paint.bold)
            line.append(
                " · ".join(filter(None, (status, span(run.ms), money(run.cost)))) + " ", style=paint.dim
            )
        return fit(line, self.width)

    def _bars(self, paint: Paint) -> Text:
        line, again, bar = Text(""), 0, ("", paint.dim)
        for steps in self._columns:
            timed = [step for step in steps if step.kind in ("model", "tool")]
            if not steps and again:
                again -= 1
                line.append(*bar)
                continue
            if not timed:
                mark = "│" if any(step.kind == "input" for step in steps) else "·" if steps else " "
                line.append(mark, style=paint.ink if mark == "│" else paint.line)
                continue
            height = max(math.log1p(step.ms or 0) for step in timed) / self._tallest
            bar, again = (BARS[1 + round(height * 7)], _colour(timed, paint)), max(self._each - 2, 0)
            line.append(*bar)
        return line

    def _context(self, paint: Paint) -> Text:
        line, height, style = Text(""), 0, paint.soft
        for steps in self._columns[: self.used]:
            for step in steps:
                if step.kind == "model" and step.input:
                    height = max(1, round(step.input / self._most * 8))
                    style = paint.soft if (step.cached or 0) * 2 >= step.input else paint.accent
                elif step.kind == "fold":
                    height = 0
            line.append(BARS[height], style=style)
        return fit(line, self.width)

    def _marks(self, paint: Paint) -> Text:
        line = Text("")
        for steps in self._columns:
            mark = (" ", paint.dim)
            for step in steps:
                if step.status in ("failed", "unknown") or (step.attempts or 1) > 1:
                    mark = ("▲", paint.fail)
                    break
                if step.status == "waiting":
                    mark = ("■", paint.wait)
                    break
                if step.kind == "fold":
                    mark = ("┆", paint.fork)
                elif any(seq in self._shown.branches for seq in step.entries):
                    mark = ("•", paint.fork)
                elif step.decision is not None and mark[0] == " ":
                    mark = ("□", paint.wait)
            line.append(*mark)
        return line


def _weight(step: Step, widths: Widths) -> float:
    if widths == "time":
        return max(1.0, float(step.ms or 0))
    return max(0.0001, step.cost or 0.0) if widths == "cost" else 1.0


def _colour(steps: Sequence[Step], paint: Paint) -> Style:
    if any(step.status in ("failed", "unknown") for step in steps):
        return paint.fail
    if any(step.status == "waiting" for step in steps):
        return paint.wait
    return paint.accent if any(step.kind == "model" for step in steps) else paint.tool


# ── the gauge ──

_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("results", "accent", ("tool results",)),
    ("digest", "fork", ("segments",)),
    ("tools", "tool", ("tools",)),
    ("words", "soft", ("user", "assistant", "thinking")),
    ("system", "ink2", ("system prompt",)),
    ("screen", "add", ("live screen", "hints", "branch")),
)


def gauge_lines(saw: Saw | None, step: Step | None, width: int, height: int, paint: Paint) -> list[Text]:
    """What fills the window at a call: in one line, or in three with a legend."""
    if saw is None:
        return [Text("")] * height
    view = saw.view
    parts: dict[str, int] = {}
    for part in view.gauge:
        name = next((name for name, _, kinds in _GROUPS if part.kind in kinds), "digest")
        parts[name] = parts.get(name, 0) + part.tokens
    total = sum(parts.values())
    used = (step.input if step is not None else None) or total
    cached = percent(step.cached, step.input) if step is not None else ""
    of = f"of {tokens(view.window)}" if view.window else "of an unknown window"
    told = Text.assemble(
        (tokens(used), paint.bold), (f" {of}{f' · {cached} cached' if cached else ''}", paint.dim)
    )
    window = view.window or max(total, view.fold_at or 0) or 1
    if height == 1:
        name = Text(f"Window at call {view.call} ", style=paint.ink2)
        room = max(width - cell_len(name.plain) - cell_len(told.plain) - 2, 6)
        return [Text.assemble(name, _bar(parts, window, view.fold_at, room, paint), "  ", told)]
    head = Text(f"Window at call {view.call}", style=paint.bold)
    first = Text.assemble(fit(head, max(width - cell_len(told.plain), 0)), told)
    legend = Text("")
    for name, colour, _ in _GROUPS:
        if parts.get(name):
            legend.append("■ ", style=getattr(paint, colour))
            legend.append(f"{name} {tokens(parts[name])}  ", style=paint.dim)
    if view.fold_at:
        legend.append(f"╎ fold at {tokens(view.fold_at)}", style=paint.dim)
    lines = [first, _bar(parts, window, view.fold_at, width, paint), *wrap(legend, width)]
    return [*lines, *[Text("")] * height][:height]


def _bar(parts: dict[str, int], window: int, fold_at: int | None, width: int, paint: Paint) -> Text:
    bar, filled = Text(""), 0
    for name, colour, _ in _GROUPS:
        if parts.get(name):
            cells = min(max(1, round(parts[name] / window * width)), max(width - filled, 0))
            bar.append("█" * cells, style=getattr(paint, colour))
            filled += cells
    bar.append("░" * (width - filled), style=paint.line)
    if fold_at and fold_at < window:
        at = min(int(fold_at / window * width), width - 1)
        bar = Text.assemble(bar[:at], ("╎", paint.fork), bar[at + 1 :])
    return bar
