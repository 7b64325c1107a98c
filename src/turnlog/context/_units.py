"""What is visible, in order: inputs, outputs, the results of one output, and texts that stand for more.

A unit is what a fold works on: it is shown, lowered or digested whole, so a call never parts from its result.
Lowering makes a new unit; only results that are still coming in change one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import (
    Grain,
    Message,
    MessagePart,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ThinkingPart,
    ToolOutcome,
    ToolResultPart,
    ToolResultsEntry,
    text_part,
    tool_result_part,
)

from ._render import (
    NO_RESULT,
    REDACTED,
    ResultContent,
    content_text,
    folded_text,
    grain_text,
    has_screen,
    input_text,
    live_sections,
    parts_text,
    redact_message,
    render_content,
    render_input,
    replace_result,
    with_parts,
    without_thinking,
)

TextKind: TypeAlias = Literal["segment", "branch", "screen", "hints", "partial", "note"]
"""``partial`` is an answer that was cut off, the only text that the assistant said; ``note`` says so."""

RANK: dict[Grain, int] = {"live": 0, "summary": 1, "gist": 2}
"""The ladder of grains; a level only ever goes up in number."""


class Level(NamedTuple):
    """A grain, with its text where the entry itself does not carry it."""

    grain: Grain
    text: str | None = None

    def is_below(self, other: Level) -> bool:
        """A lower grain, or the same one in fewer words."""
        if self.grain == other.grain:
            return self.text is not None and other.text is not None and len(self.text) < len(other.text)
        return RANK[self.grain] > RANK[other.grain]


LIVE = Level("live")


class InputUnit:
    """One user message."""

    __slots__ = ("_message", "entry", "level", "redacted", "screen_hidden", "weight")

    def __init__(self, entry: ModelInputEntry, *, redacted: bool = False) -> None:
        self.entry = entry
        self.level = LIVE
        self.screen_hidden = False
        self.redacted = redacted
        self.weight = 0
        self._message: Message | None = None

    @property
    def first_seq(self) -> int:
        return self.entry.seq

    last_seq = first_seq

    def render(self) -> Message:
        if self._message is None:
            self._message = self._build()
        return self._message

    def _build(self) -> Message:
        payload = self.entry.payload
        if self.redacted:
            return redact_message(payload.message)
        text = self.lower_text()
        if text is not None:
            lowered = folded_text(self.entry.seq, self.level.grain, text)
            return with_parts(payload.message, [text_part(lowered)])
        return render_input(payload, screen=not self.screen_hidden)

    def shows(self, entry_id: str) -> bool:
        """Whether what was added to that entry is in view."""
        return self.entry.id == entry_id and self.level.grain == "live"

    def hide_screen(self) -> None:
        if not self.screen_hidden and has_screen(self.entry.payload.sections):
            self.screen_hidden, self.weight, self._message = True, 0, None

    def live_text(self) -> str:
        if self.redacted:
            return REDACTED
        sections = self.entry.payload.sections
        return input_text(self.entry.payload.message, sections.live if sections else ())

    def lower_text(self) -> str | None:
        """What a fold left of it; None while it is shown whole."""
        if self.redacted or self.level is LIVE:
            return None
        grain, text = self.level
        return text if text is not None else grain_text(self.entry.payload.sections, grain)

    def lowered(self, level: Level) -> InputUnit:
        if not level.is_below(self.level):
            return self
        copy = InputUnit(self.entry, redacted=self.redacted)
        copy.level = level
        return copy


class OutputUnit:
    """One assistant message; thinking is kept only where the target may have it."""

    __slots__ = ("_bare", "calls", "entry", "full", "has_thinking", "redacted", "weight")

    def __init__(self, entry: ModelOutputEntry, *, redacted: bool = False) -> None:
        self.entry = entry
        self.redacted = redacted
        message = entry.payload.message
        self.calls = [part.payload.tool_call_id for part in message.tool_calls]
        self.full: Message = redact_message(message) if self.redacted else message
        self.has_thinking = ThinkingPart in map(type, self.full.parts)
        self.weight = 0
        self._bare: Message | None = None if self.has_thinking else self.full

    @property
    def first_seq(self) -> int:
        return self.entry.seq

    last_seq = first_seq

    def render(self) -> Message:
        """Without thinking."""
        if self._bare is None:
            self._bare = without_thinking(self.full)
        return self._bare

    def shows(self, entry_id: str) -> bool:
        return False

    def made_by(self, target: ModelInvocationDescriptor | None) -> bool:
        """Whether ``target`` can read what only its maker reads."""
        return target is not None and target == self.entry.payload.invocation

    def live_text(self) -> str:
        return REDACTED if self.redacted else parts_text(self.full.parts)


_ALL_LIVE: Mapping[str, Level] = MappingProxyType({})


class Found(NamedTuple):
    """One recorded result."""

    entry: ToolResultsEntry
    part: ToolResultPart
    outcome: ToolOutcome | None


class ResultsUnit:
    """The results of one output's calls: one tool message in call order, once all are in."""

    __slots__ = ("_message", "closed", "found", "levels", "output", "redacted", "screen_hidden", "weight")

    def __init__(self, output: OutputUnit) -> None:
        self.output = output
        self.found: dict[str, Found] = {}
        self.levels: Mapping[str, Level] = _ALL_LIVE
        self.redacted: set[str] = set()
        self.closed = False
        self.screen_hidden = False
        self.weight = 0
        self._message: Message | None = None

    @property
    def complete(self) -> bool:
        return self.closed or len(self.found) == len(self.output.calls)

    @property
    def first_seq(self) -> int:
        return min((found.entry.seq for found in self.found.values()), default=self.output.entry.seq)

    @property
    def last_seq(self) -> int:
        return max((found.entry.seq for found in self.found.values()), default=self.output.entry.seq)

    def add(self, entry: ToolResultsEntry, part: ToolResultPart, *, redacted: bool = False) -> None:
        call_id = part.payload.tool_call_id
        if self.closed or call_id in self.found:
            return
        self.found[call_id] = Found(entry, part, _outcome_of(entry, call_id))
        if redacted:
            self.redacted.add(entry.id)
        self.weight, self._message = 0, None

    def in_order(self) -> Iterator[tuple[str, Found]]:
        for call_id in self.output.calls:
            if (found := self.found.get(call_id)) is not None:
                yield call_id, found

    def render(self) -> Message:
        if self._message is None:
            self._message = self.build(fill=True)
        return self._message

    def build(self, *, fill: bool) -> Message:
        """``fill`` puts a note where a result is missing, so that no call stays unanswered."""
        parts: list[MessagePart] = []
        last: ToolResultsEntry | None = None
        for call_id in self.output.calls:
            found = self.found.get(call_id)
            if found is None:
                if fill:
                    parts.append(tool_result_part(call_id, NO_RESULT, is_error=True))
                continue
            parts.append(self._part(call_id, found))
            if last is None or found.entry.seq > last.seq:
                last = found.entry
        source = last.payload.message if last else self.output.entry.payload.message
        if last is not None and _same(parts, source.parts):
            return source
        return Message(run_id=source.run_id, role="tool", parts=parts, timestamp=source.timestamp)

    def _part(self, call_id: str, found: Found) -> ToolResultPart:
        sections = found.outcome.sections if found.outcome else None
        if sections is None and not self.levels and not self.redacted:
            return found.part
        if found.entry.id in self.redacted:
            return tool_result_part(call_id, REDACTED, is_error=found.part.payload.is_error)
        level = self.levels.get(call_id, LIVE)
        if level.grain != "live":
            text = level.text if level.text is not None else grain_text(sections, level.grain)
            if text is not None:
                return replace_result(found.part, folded_text(found.entry.seq, level.grain, text))
        added = live_sections(sections, screen=not self.screen_hidden)
        return replace_result(found.part, render_content(found.part.payload.content, added))

    def shows(self, entry_id: str) -> bool:
        return any(
            found.entry.id == entry_id and self.level(call_id).grain == "live"
            for call_id, found in self.found.items()
        )

    def hide_screen(self) -> None:
        self.screen_hidden, self.weight, self._message = True, 0, None

    def level(self, call_id: str) -> Level:
        return self.levels.get(call_id, LIVE)

    def live_content(self, call_id: str) -> ResultContent:
        found = self.found.get(call_id)
        if found is None:
            return NO_RESULT
        return REDACTED if found.entry.id in self.redacted else found.part.payload.content

    def live_text(self, call_id: str) -> str:
        return content_text(self.live_content(call_id))

    def lowered(self, levels: dict[str, Level]) -> ResultsUnit:
        """With these calls' results at these levels, where that is lower than they are."""
        lower = {
            call_id: level
            for call_id, level in levels.items()
            if call_id in self.found and level.is_below(self.level(call_id))
        }
        if not lower:
            return self
        copy = ResultsUnit(self.output)
        copy.found, copy.redacted, copy.closed = self.found, self.redacted, self.closed
        copy.screen_hidden = self.screen_hidden
        copy.levels = {**self.levels, **lower}
        return copy


class TextUnit:
    """A text that stands for a stretch of entries, introduces a branch, shows the screen after a fold, or is
    all there is of an answer."""

    __slots__ = (
        "_message",
        "entry_id",
        "first_id",
        "first_seq",
        "kind",
        "last_id",
        "last_seq",
        "text",
        "timestamp",
        "weight",
    )

    def __init__(
        self,
        kind: TextKind,
        text: str,
        *,
        entry_id: str,
        timestamp: str,
        first: tuple[str, int],
        last: tuple[str, int],
    ) -> None:
        self.kind: TextKind = kind
        self.text = text
        self.entry_id = entry_id
        self.first_id, self.first_seq = first
        self.last_id, self.last_seq = last
        self.timestamp = timestamp
        self.weight = 0
        self._message: Message | None = None

    def render(self) -> Message:
        if self._message is None:
            role = "assistant" if self.kind == "partial" else "user"
            # What precedes it stays the same at the next fold too: a place for a provider's cache mark.
            meta = {"stable": True} if self.kind == "segment" else None
            self._message = Message(
                run_id="", role=role, parts=[text_part(self.text)], timestamp=self.timestamp, meta=meta
            )
        return self._message

    def live_text(self) -> str:
        return self.text

    def shows(self, entry_id: str) -> bool:
        return False


def _outcome_of(entry: ToolResultsEntry, call_id: str) -> ToolOutcome | None:
    for outcome in entry.payload.outcomes:
        if outcome.tool_call_id == call_id:
            return outcome
    return None


def _same(left: list[MessagePart], right: list[MessagePart]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


Unit: TypeAlias = InputUnit | OutputUnit | ResultsUnit | TextUnit
