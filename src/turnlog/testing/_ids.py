"""Names that are the same on every run."""

from __future__ import annotations


class FixedIds:
    """Counters in the place of randomness: ``entry_000001``, ``run_0001``, ``call_0001``, ``session_0001``.

    Entry ids sort in the order they were made. A second source for the same store needs a ``prefix`` of
    its own (a letter sorts after the ids without one).
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._counts = {"entry": 0, "run": 0, "call": 0, "session": 0}

    def entry(self) -> str:
        return self._make("entry", 6)

    def run(self) -> str:
        return self._make("run", 4)

    def call(self) -> str:
        return self._make("call", 4)

    def session(self) -> str:
        return self._make("session", 4)

    def _make(self, what: str, digits: int) -> str:
        self._counts[what] += 1
        return f"{what}_{self._prefix}{self._counts[what]:0{digits}d}"
