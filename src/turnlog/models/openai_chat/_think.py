"""Thoughts that a model writes into its text, between ``<think>`` and ``</think>``."""

from __future__ import annotations

from typing import Literal

from turnlog.contract import TextChunk, ThinkingChunk

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Takes the thoughts at the start of an answer apart from what follows, across any cuts."""

    def __init__(self) -> None:
        self._state: Literal["before", "inside", "gap", "after"] = "before"
        self._held: str = ""

    def push(self, text: str) -> list[TextChunk | ThinkingChunk]:
        if self._state == "after":
            return [TextChunk(text_delta=text)]
        if self._state == "gap":  # the blank lines between thought and answer belong to neither
            text = text.lstrip("\n")
            if text:
                self._state = "after"
            return [TextChunk(text_delta=text)] if text else []
        text = self._held + text
        self._held = ""
        if self._state == "before":
            start = text.lstrip()
            if len(start) < len(_OPEN) and _OPEN.startswith(start):
                self._held = text
                return []
            if not start.startswith(_OPEN):
                self._state = "after"
                return [TextChunk(text_delta=text)]
            self._state = "inside"
            text = start[len(_OPEN) :]
        thought, found, rest = text.partition(_CLOSE)
        if found:
            rest = rest.lstrip("\n")
            self._state = "after" if rest else "gap"
            chunks: list[TextChunk | ThinkingChunk] = [ThinkingChunk(text_delta=thought)] if thought else []
            return [*chunks, TextChunk(text_delta=rest)] if rest else chunks
        keep = _overlap(text)
        self._held = text[len(text) - keep :]
        thought = text[: len(text) - keep]
        return [ThinkingChunk(text_delta=thought)] if thought else []

    def end(self) -> list[TextChunk | ThinkingChunk]:
        held, self._held = self._held, ""
        if not held:
            return []
        return [ThinkingChunk(text_delta=held) if self._state == "inside" else TextChunk(text_delta=held)]


def _overlap(text: str) -> int:
    """How much of the end of ``text`` may be the beginning of the closing tag."""
    for size in range(min(len(_CLOSE) - 1, len(text)), 0, -1):
        if _CLOSE.startswith(text[-size:]):
            return size
    return 0
