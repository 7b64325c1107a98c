"""What is too large to send at once: a preview and the number it is recalled by."""

from __future__ import annotations

from ._grains import extract_words
from ._words import Vocabulary


def excerpt(text: str, limit: int, seq: int, vocabulary: Vocabulary) -> str:
    """About ``limit`` characters of ``text``: its beginning, its end, and the rarest words between."""
    if len(text) <= limit:
        return text
    head, tail, words = limit // 2, limit // 4, limit // 8
    middle = text[head : len(text) - tail]
    told = extract_words(middle, vocabulary, words)
    return f"{text[:head]}\n[… {len(middle)} characters left out: {told}]\n{text[len(text) - tail :]}"


def make_preview(text: str, limit: int, handle: str) -> str:
    """A long result as it is sent: its beginning, its end, and where the rest is."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    left = len(text) - head - tail
    return (
        f"{text[:head]}\n[… {left} of {len(text)} characters are not shown; the whole text is {handle}]\n"
        f"{text[len(text) - tail :]}"
    )
