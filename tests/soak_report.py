"""Says at the end how much was done: a soak that ran less than it should is worth less than it seems."""

from __future__ import annotations

from typing import Any

_KINDS = {
    "crashes": ("single crashes", "double crashes", "failures"),
    "seeds": ("seeds", "failures"),
    "kills": ("kills in edits and commands", "of them in a sandbox", "files that were worked on"),
    "small windows": ("turns", "calls answered", "calls refused", "folds"),
}


class SoakReport:
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        sums: dict[str, list[int]] = {}
        for reports in terminalreporter.stats.values():
            for report in reports:
                if getattr(report, "when", None) != "call":
                    continue
                for kind, counts in report.user_properties:
                    if kind in _KINDS:
                        before = sums.get(kind, [0] * len(counts))
                        sums[kind] = [a + b for a, b in zip(before, counts, strict=True)]
        for kind, counts in sums.items():
            words = ", ".join(f"{count:,} {name}" for count, name in zip(counts, _KINDS[kind], strict=True))
            terminalreporter.line(f"{kind}: {words}")
