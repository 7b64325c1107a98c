"""Ways to decide what a model sees, as plug-in classes. For one of your own, subclass ``Strategy`` and run
``python -m benchmarks.context --strategy module:Class``."""

from __future__ import annotations

from typing import NamedTuple

from turnlog.context import ContextOptions, FoldPlanner, Projection
from turnlog.contract import (
    Entry,
    Message,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
    encode,
    seal,
    tool_result_part,
    user_message,
)


class Piece(NamedTuple):
    """One message of a request: its bytes, and what it weighs in tokens."""

    wire: bytes
    tokens: int


class Extra(NamedTuple):
    """A model call that the strategy made for itself."""

    input_tokens: int
    output_tokens: int


class Strategy:
    """Takes entries as they are appended and says what to send at each call."""

    name = ""

    def __init__(self) -> None:
        self.extras: list[Extra] = []

    def append(self, entry: Entry) -> None:
        raise NotImplementedError

    def request(self) -> list[Piece]:
        raise NotImplementedError

    def marks(self, pieces: list[Piece]) -> list[int]:
        """After how many messages a cache mark is set, for providers that want to be told."""
        return [len(pieces)]


_BYTES_PER_TOKEN = ContextOptions().bytes_per_token


def piece_of(message: Message) -> Piece:
    wire = encode((message.role, message.parts))
    doubled = sum(len(part.payload.raw_args_text) for part in message.tool_calls)
    return Piece(wire, int((len(wire) - doubled) / _BYTES_PER_TOKEN))


class Fold(Strategy):
    """Ours: the wire only grows until a fold. Without a threshold it sends everything."""

    def __init__(
        self, threshold: int | None, name: str = "", planner: type[FoldPlanner] = FoldPlanner
    ) -> None:
        super().__init__()
        self.name = name or f"turnlog, fold at {(threshold or 0) // 1000}k"
        self._planner = planner
        self._folds = threshold is not None
        self.projection = Projection(ContextOptions(fold_at=threshold or 10**9))
        self.folds = 0
        self._pieces: dict[int, tuple[Message, Piece]] = {}

    def append(self, entry: Entry) -> None:
        self.projection.step(entry)

    def prepare(self) -> list[Message]:
        """Fold if it is time, and project: the part whose time is measured."""
        fold = self._planner(self.projection).plan() if self._folds else None
        if fold is not None:
            self.folds += 1
            sealed = seal(
                fold,
                id=f"fold-{self.folds}",
                previous_id=None,
                previous_hash="",
                session_id="bench",
                seq=10_000_000 + self.folds,
                timestamp="",
            )
            self.projection.step(sealed.entry)
        return self.projection.emit().messages

    def request(self) -> list[Piece]:
        pieces: list[Piece] = []
        for message in self.prepare():
            known = self._pieces.get(id(message))
            if known is None or known[0] is not message:
                known = self._pieces[id(message)] = (message, piece_of(message))
            pieces.append(known[1])
        return pieces

    def marks(self, pieces: list[Piece]) -> list[int]:
        return [len(self.projection.segments), len(pieces)]


class GistsOnly(FoldPlanner):
    """Leaves out the level between: what a fold lowers goes to its gist at once."""

    grains = ("gist",)


class _Plain(Strategy):
    """Keeps every message at hand, with its piece."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.pieces: list[Piece] = []
        self.entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        if isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            self.messages.append(entry.payload.message)
            self.pieces.append(piece_of(entry.payload.message))
            self.entries.append(entry)

    def safe_start(self, position: int) -> int:
        """The first place from ``position`` on where no result stands without its call."""
        while position < len(self.messages) and self.messages[position].role == "tool":
            position += 1
        return position


class SlidingWindow(_Plain):
    """The newest messages that fit, and nothing else."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.name = f"sliding window of {tokens // 1000}k"
        self._tokens = tokens

    def request(self) -> list[Piece]:
        position, left = len(self.pieces), self._tokens
        while position > 0 and self.pieces[position - 1].tokens <= left:
            position -= 1
            left -= self.pieces[position].tokens
        return self.pieces[self.safe_start(position) :]


class ClearOldResults(_Plain):
    """At a threshold, all but the newest results become a placeholder, if that frees enough to pay for it."""

    def __init__(self, tokens: int, keep: int = 3, at_least: int = 10_000) -> None:
        super().__init__()
        self.name = f"clear old results at {tokens // 1000}k"
        self._tokens, self._keep, self._at_least = tokens, keep, at_least

    def request(self) -> list[Piece]:
        if sum(piece.tokens for piece in self.pieces) > self._tokens:
            results = [at for at, message in enumerate(self.messages) if message.role == "tool"]
            cleared = {at: piece_of(self._cleared(self.messages[at])) for at in results[: -self._keep]}
            freed = sum(self.pieces[at].tokens - piece.tokens for at, piece in cleared.items())
            if freed >= self._at_least:
                for at, piece in cleared.items():
                    self.pieces[at] = piece
        return self.pieces

    @staticmethod
    def _cleared(message: Message) -> Message:
        parts = [tool_result_part(part.payload.tool_call_id, "[cleared]") for part in message.tool_results]
        return Message(run_id="", role="tool", parts=[*parts], timestamp="")


class Summarise(_Plain):
    """At a threshold, all but a tail becomes a summary that a model writes, at its price.

    No model runs here. What it would write is stood in for by what such summaries hold: the user's words
    and the beginnings of the answers, cut to its usual length.
    """

    def __init__(self, tokens: int, summary_tokens: int = 1_500, tail_share: float = 0.15) -> None:
        super().__init__()
        self.name = f"summarise at {tokens // 1000}k"
        self._tokens, self._summary, self._tail = tokens, summary_tokens, tail_share
        self._start = 0
        self._head: list[Piece] = []
        self._notes: list[str] = []

    def request(self) -> list[Piece]:
        shown = self._head + self.pieces[self._start :]
        size = sum(piece.tokens for piece in shown)
        if size <= self._tokens:
            return shown
        position, left = len(self.pieces), self._tokens * self._tail
        while position > self._start and self.pieces[position - 1].tokens <= left:
            position -= 1
            left -= self.pieces[position].tokens
        position = self.safe_start(position)
        for message in self.messages[self._start : position]:
            if message.role != "tool" and message.text:
                self._notes.append(message.text[:160])
        budget = int(self._summary * _BYTES_PER_TOKEN)
        self._notes = ["\n".join(self._notes)[-budget:]]
        self._head = [piece_of(user_message(self._notes[0], run_id=""))]
        self._start = position
        self.extras.append(Extra(size, self._summary))
        return self._head + self.pieces[self._start :]


class PositionLevels(_Plain):
    """Levels of detail by position: the newest at full length, all others as their summary."""

    name = "levels by position"

    def __init__(self) -> None:
        super().__init__()
        self._short: list[Piece] = []

    def append(self, entry: Entry) -> None:
        count = len(self.pieces)
        super().append(entry)
        if len(self.pieces) > count:
            self._short.append(self._summary(entry, self.pieces[-1]))

    def _summary(self, entry: Entry, piece: Piece) -> Piece:
        if not isinstance(entry, ToolResultsEntry):
            return piece
        parts = [
            tool_result_part(
                part.payload.tool_call_id,
                "\n".join(text for _, text in (outcome.sections.summary if outcome.sections else [])),
            )
            for part, outcome in zip(entry.payload.message.tool_results, entry.payload.outcomes, strict=True)
        ]
        return piece_of(Message(run_id="", role="tool", parts=[*parts], timestamp=""))

    def request(self) -> list[Piece]:
        return [*self._short[:-1], *self.pieces[-1:]]


def default() -> list[Strategy]:
    return [
        Fold(None, "send everything"),
        SlidingWindow(60_000),
        Summarise(124_000),
        ClearOldResults(124_000),
        PositionLevels(),
        Fold(74_000, "gists only, fold at 74k", GistsOnly),
        Fold(74_000),
        Fold(124_000),
    ]


__all__ = ["Extra", "Fold", "Piece", "Strategy", "default", "piece_of"]
