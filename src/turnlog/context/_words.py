"""Which words a text holds, and how many texts of the log so far hold each."""

from __future__ import annotations

import re
from collections import Counter, deque
from itertools import islice

from turnlog.contract import MessagePart

from ._render import ResultContent, content_text

_WORD = re.compile(r"[^\W_](?:[\w./:@$%&+#~-]{0,78}\w%?)?|_\w{1,79}|\$\d[\d.,]*")
"""A run of letters, digits and what holds names, paths and figures together, starting and ending in one."""

TEXT_LIMIT = 24_000
"""Characters of one text that are looked at; of a longer one, the beginning and the end."""

WINDOW = 400
"""Texts that the frequencies are taken over: what is older has been folded and makes no word common."""


def split_words(text: str) -> list[str]:
    if len(text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        text = f"{text[:half]} {text[-half:]}"
    return _WORD.findall(text)


class Vocabulary:
    """Document frequency as a fold over what was said. It becomes text, and the text words, only when a
    frequency is asked for; by then most of a long log has left the window."""

    __slots__ = ("_counts", "_documents", "_waiting")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._documents: deque[frozenset[str]] = deque()
        self._waiting: list[ResultContent | list[MessagePart]] = []

    def copy(self) -> Vocabulary:
        copy = Vocabulary()
        copy._counts, copy._documents = self._counts.copy(), self._documents.copy()
        copy._waiting = self._waiting.copy()
        return copy

    def add(self, content: ResultContent | list[MessagePart]) -> None:
        """Take in a message's parts or a result's content."""
        self._waiting.append(content)

    @property
    def counts(self) -> Counter[str]:
        """How many of the last texts hold a word, in lower case."""
        if self._waiting:
            for text in self._take_texts():
                words = frozenset(split_words(text.lower()))
                self._documents.append(words)
                self._counts.update(words)
                if len(self._documents) > WINDOW:
                    self._forget(self._documents.popleft())
        return self._counts

    def _take_texts(self) -> list[str]:
        """The last that fits the window of what waits, oldest first; what says nothing takes no place."""
        texts = filter(None, map(content_text, reversed(self._waiting)))
        found = list(islice(texts, WINDOW))
        self._waiting.clear()
        return found[::-1]

    def _forget(self, words: frozenset[str]) -> None:
        counts = self._counts
        for word in words:
            if counts[word] == 1:
                del counts[word]
            else:
                counts[word] -= 1
