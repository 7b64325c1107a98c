"""Ways to decide what a model sees, as plug-in classes. For one of your own, subclass ``Strategy`` and run
``python -m benchmarks.context --strategy module:Class`` or ``--strategy path/to/mine.py:Class``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from turnlog.context import CACHE_LIFETIME, ContextInput, ContextOptions, FoldPlanner, ProjectionContext
from turnlog.contract import (
    Entry,
    Message,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SystemPrompt,
    ToolResultsEntry,
    encode,
    tool_result_part,
    user_message,
)

from .sessions import LogWriter


class Piece(NamedTuple):
    """One message of a request: its bytes, and what it weighs in tokens."""

    wire: bytes
    tokens: int


class Extra(NamedTuple):
    """A model call that the strategy made for itself."""

    input_tokens: int
    output_tokens: int


class Strategy:
    """Takes entries as they are appended and says what to send at each call.

    ``head`` is what the system prompt and the tools take, in tokens: it is sent before everything else, and
    counts against any threshold. Before each request ``idle`` tells the seconds since the last answer and
    ``starts_turn`` whether the user has spoken since.
    """

    name = ""

    def __init__(self) -> None:
        self.extras: list[Extra] = []
        self.head = 0
        self.idle = 0.0
        self.starts_turn = False

    @classmethod
    def of_budget(cls, tokens: int) -> Strategy | None:
        """One whose requests have at most so many tokens, for the questions of memory; None where the
        strategy has no such limit."""
        return None

    def begin(self, head: int) -> None:
        """Called once, before anything is appended."""
        self.head = head

    def append(self, entry: Entry) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """What a runtime would have to do before a request; its time is measured."""

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
    """Ours, by the context manager that an Agent uses: long results are previews, and a fold is made at the
    threshold, a little earlier when a turn begins, and earlier still when the cache has expired.

    ``tests/context/test_context_benchmark.py`` holds its folds against those of an Agent.
    """

    def __init__(
        self,
        options: ContextOptions | None = None,
        name: str = "",
        *,
        target: ModelInvocationDescriptor | None = None,
        manager: type[ProjectionContext] = ProjectionContext,
    ) -> None:
        super().__init__()
        self.context = manager(options)
        self.name = name or f"turnlog, fold at {self.context.options.fold_at // 1000}k"
        self.target = target
        self.log = LogWriter(self.context)
        self._sent: Sequence[Message] = ()
        self._pieces: dict[int, tuple[Message, Piece]] = {}

    def begin(self, head: int) -> None:
        super().begin(head)
        if head:
            self.log.add(SystemPrompt(text="x" * int(head * _BYTES_PER_TOKEN)))

    def append(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry():
                self.log.add_message(entry.payload.message)
            case ToolResultsEntry():
                self.log.add_previews(entry.payload)
            case ModelOutputEntry():
                self.log.add(entry.payload)
            case _:
                pass

    def prepare(self) -> None:
        built = self.context.build_context(
            ContextInput(target=self.target, cold=self.idle > CACHE_LIFETIME, turn_end=self.starts_turn)
        )
        for payload in built.entries_to_append:
            self.log.add(payload)
        self._sent = built.model_messages

    def request(self) -> list[Piece]:
        pieces: list[Piece] = []
        for message in self._sent:
            known = self._pieces.get(id(message))
            if known is None or known[0] is not message:
                known = self._pieces[id(message)] = (message, piece_of(message))
            pieces.append(known[1])
        return pieces

    def marks(self, pieces: list[Piece]) -> list[int]:
        return [len(self.context.projection.segments), len(pieces)]


class _GistPlanner(FoldPlanner):
    grains = ("gist",)


class GistsOnly(ProjectionContext):
    """Leaves out the level between: what a fold lowers goes to its gist at once."""

    planner = _GistPlanner


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

    def request(self) -> list[Piece]:
        return self.pieces

    def safe_start(self, position: int) -> int:
        """The first place from ``position`` on where no result stands without its call."""
        while position < len(self.messages) and self.messages[position].role == "tool":
            position += 1
        return position


class SendEverything(_Plain):
    """All of it, always."""

    name = "send everything"


class SlidingWindow(_Plain):
    """The newest messages that fit, and nothing else."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.name = f"sliding window of {tokens // 1000}k"
        self._tokens = tokens

    def request(self) -> list[Piece]:
        position, left = len(self.pieces), self._tokens - self.head
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
        if self.head + sum(piece.tokens for piece in self.pieces) > self._tokens:
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
        size = self.head + sum(piece.tokens for piece in shown)
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


def default(target: ModelInvocationDescriptor | None = None) -> list[Strategy]:
    return [
        SendEverything(),
        SlidingWindow(60_000),
        Summarise(74_000),
        Summarise(124_000),
        ClearOldResults(74_000),
        ClearOldResults(124_000),
        PositionLevels(),
        Fold(ContextOptions(fold_at=74_000), "gists only, fold at 74k", target=target, manager=GistsOnly),
        Fold(ContextOptions(fold_at=74_000), target=target),
        Fold(ContextOptions(fold_at=124_000), target=target),
    ]


__all__ = ["ClearOldResults", "Extra", "Fold", "Piece", "Strategy", "Summarise", "default", "piece_of"]
