"""Plots as plain SVG text: no dependency, readable in a diff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_COLOURS = ("#6b7280", "#b45309", "#7c3aed", "#0e7490", "#be185d", "#a16207", "#9333ea", "#334155")
_OURS = ("#65a30d", "#0284c7", "#15803d", "#1d4ed8")
"""Ours stand out, and look the same in every plot."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 400, 64, 44, 220, 52

Series = tuple[str, Sequence[tuple[float, float]]]


class _Frame:
    def __init__(self, title: str, x_label: str, y_label: str, x_max: float, y_max: float) -> None:
        self._x_max, self._y_max = x_max or 1, y_max or 1
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
            f"{escape(x_label)}</text>",
            f'<text x="16" y="{_HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {_HEIGHT / 2})">'
            f"{escape(y_label)}</text>",
        ]

    def x(self, value: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self._x_max, 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self._y_max, 1)

    def grid(self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_format: str, y_format: str) -> None:
        for tick in y_ticks:
            y = self.y(tick)
            self.parts.append(
                f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#e5e7eb"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{y_format.format(tick)}</text>'
            )
        for tick in x_ticks:
            self.parts.append(
                f'<text x="{self.x(tick)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
                f"{x_format.format(tick)}</text>"
            )

    def legend(self, names: Sequence[str]) -> None:
        colours = _colours(names)
        for row, name in enumerate(names):
            y = _TOP + 12 + row * 20
            x = _WIDTH - _RIGHT + 16
            self.parts.append(
                f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colours[row]}"/>'
                f'<text x="{x + 16}" y="{y}">{escape(name)}</text>'
            )

    def done(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def _is_ours(name: str) -> bool:
    return name.startswith("turnlog")


def _colours(names: Sequence[str]) -> list[str]:
    """A colour for each name."""
    ours, others = [name for name in names if _is_ours(name)], [n for n in names if not _is_ours(n)]
    found = {name: _OURS[-len(ours) :][row % len(_OURS)] for row, name in enumerate(ours)}
    found |= {name: _COLOURS[row % len(_COLOURS)] for row, name in enumerate(others)}
    return [found[name] for name in names]


def _ticks(top: float, count: int = 5) -> list[float]:
    """Round numbers up to ``top``, about ``count`` of them."""
    scale = 10.0 ** math.floor(math.log10(top / count))
    step = next(step * scale for step in (1, 2, 2.5, 5, 10) if step * scale * count >= top * 0.9)
    return [step * index for index in range(int(top / step) + 1)]


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series], y_format: str = "{:,.0f}") -> str:
    """One line a series."""
    x_max = max(x for _, points in series for x, _ in points)
    y_max = max(y for _, points in series for _, y in points)
    frame = _Frame(title, x_label, y_label, x_max, y_max)
    frame.grid(_ticks(x_max), _ticks(y_max), "{:,.0f}", y_format)
    for colour, (name, points) in zip(_colours([name for name, _ in series]), series, strict=True):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in points)
        width = 2.4 if _is_ours(name) else 1.2
        frame.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )
    frame.legend([name for name, _ in series])
    return frame.done()


def scatter(title: str, x_label: str, y_label: str, points: Sequence[tuple[str, float, float]]) -> str:
    """One dot a name."""
    x_max = max(x for _, x, _ in points) * 1.05
    frame = _Frame(title, x_label, y_label, x_max, 1.0)
    frame.grid(_ticks(x_max), [0, 0.25, 0.5, 0.75, 1.0], "${:,.0f}", "{:.0%}")
    for colour, (name, x, y) in zip(_colours([name for name, _, _ in points]), points, strict=True):
        radius = 8 if _is_ours(name) else 6
        frame.parts.append(f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="{radius}" fill="{colour}"/>')
    frame.legend([name for name, _, _ in points])
    return frame.done()


def bars(
    title: str, y_label: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]
) -> str:
    """One bar a series in each group; values are shares."""
    frame = _Frame(title, "", y_label, len(groups), 1.0)
    frame.grid([], [0, 0.25, 0.5, 0.75, 1.0], "", "{:.0%}")
    font = 10 if len(series) < 6 else 7
    width, colours = 0.8 / len(series), _colours([name for name, _ in series])
    for at, group in enumerate(groups):
        middle = frame.x(at + 0.5)
        frame.parts.append(
            f'<text x="{middle}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(group)}</text>'
        )
        for row, (_, values) in enumerate(series):
            left, right = frame.x(at + 0.1 + row * width), frame.x(at + 0.1 + (row + 0.92) * width)
            top = frame.y(values[at])
            frame.parts.append(
                f'<rect x="{left}" y="{top}" width="{right - left:.1f}" height="{frame.y(0) - top:.1f}" '
                f'fill="{colours[row]}"/>'
                f'<text x="{(left + right) / 2:.1f}" y="{top - 4}" text-anchor="middle" font-size="{font}">'
                f"{values[at]:.0%}</text>"
            )
    frame.legend([name for name, _ in series])
    return frame.done()
