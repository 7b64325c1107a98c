"""What is too large to send at once: a preview and the number it is recalled by. Sizes are bytes."""

from __future__ import annotations

from ._grains import extract_words
from ._words import Vocabulary


def first_bytes(text: str, size: int) -> str:
    """The beginning of ``text``, at most ``size`` bytes and whole characters."""
    return text[:size] if text.isascii() else text.encode()[: max(size, 0)].decode("utf-8", "ignore")


def last_bytes(text: str, size: int) -> str:
    """The end of ``text``, at most ``size`` bytes and whole characters."""
    if size <= 0:
        return ""
    return text[-size:] if text.isascii() else text.encode()[-size:].decode("utf-8", "ignore")


def excerpt(text: str, limit: int, vocabulary: Vocabulary) -> str:
    """About ``limit`` bytes of ``text``: its beginning, its end, and the rarest words between."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit // 2), last_bytes(text, limit // 4)
    middle = text[len(head) : len(text) - len(tail)]
    told = extract_words(middle, vocabulary, limit // 8)
    return f"{head}\n[… {len(middle)} characters left out: {told}]\n{tail}"


def make_preview(text: str, limit: int, handle: str) -> str:
    """A long result as it is sent: its beginning, its end, and where the rest is."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit * 3 // 4), last_bytes(text, limit // 4)
    left = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left} of {len(text)} characters are not shown; the whole text is {handle}]\n{tail}"
