"""``reasoning_details``: thoughts with their signatures, streamed in fragments and wanted back whole."""

from __future__ import annotations

from typing import Any

_GROWING = ("text", "summary", "data")


def merge_details(kept: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> str:
    """Add ``fragments`` to ``kept``; give the text that can be shown."""
    shown = ""
    for fragment in fragments:
        for name in ("text", "summary"):
            value = fragment.get(name)
            if isinstance(value, str):
                shown += value
        last = kept[-1] if kept else None
        if (
            last is None
            or last.get("type") != fragment.get("type")
            or last.get("index") != fragment.get("index")
            or fragment.get("type") == "reasoning.encrypted"
        ):
            kept.append(dict(fragment))
            continue
        for name, value in fragment.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value
    return shown
