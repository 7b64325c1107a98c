"""What is visible, in order: inputs, outputs, the results of one output, and texts that stand for more."""

from __future__ import annotations

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
    content_text,
    folded_text,
    grain_text,
    parts_text,
    redact_message,
    render_content,
    render_input,
    replace_result,
    with_parts,
    without_thinking,
)

TextKind: TypeAlias = Literal["segment", "branch"]

RANK: dict[Grain, int] = {"live": 0, "summary": 1, "gist": 2}
"""Lower grains have the higher number; a level only ever goes up this ladder."""


class InputUnit:
    """One user message."""

    __slots__ = ("entry", "grain", "message", "redacted", "text")

    def __init__(self, entry: ModelInputEntry) -> None:
        self.entry = entry
        self.grain: Grain = "live"
        self.text: str | None = None
        self.redacted = entry.purged_digest is not None
        self.message: Message | None = None

    @property
    def first_seq(self) -> int:
        return self.entry.seq

    last_seq = first_seq

    def render(self) -> Message:
        if self.message is None:
            self.message = self._build()
        return self.message

    def _build(self) -> Message:
        payload = self.entry.payload
        if self.redacted:
            return redact_message(payload.message)
        if self.grain == "live":
            return render_input(payload)
        text = self.text if self.text is not None else grain_text(payload.sections, self.grain)
        if text is None:
            return render_input(payload)
        return with_parts(payload.message, [text_part(folded_text(self.entry.seq, self.grain, text))])

    def live_text(self) -> str:
        return REDACTED if self.redacted else parts_text(self.entry.payload.message.parts)

    def lower(self, grain: Grain, text: str | None) -> bool:
        if RANK[grain] <= RANK[self.grain]:
            return False
        self.grain, self.text, self.message = grain, text, None
        return True

    def redact(self) -> None:
        self.redacted, self.message = True, None


class OutputUnit:
    """One assistant message; thinking is kept only where the target may have it."""

    __slots__ = ("bare", "calls", "entry", "full", "has_thinking", "redacted")

    def __init__(self, entry: ModelOutputEntry) -> None:
        self.entry = entry
        self.redacted = entry.purged_digest is not None
        message = entry.payload.message
        self.calls: list[str] = []
        self.has_thinking = False
        for part in message.parts:
            if type(part) is ThinkingPart:
                self.has_thinking = True
        self.calls = [part.payload.tool_call_id for part in message.tool_calls]
        self.full: Message = redact_message(message) if self.redacted else message
        self.bare: Message | None = None if self.has_thinking else self.full
        if self.redacted:
            self.bare, self.has_thinking = self.full, False

    @property
    def first_seq(self) -> int:
        return self.entry.seq

    last_seq = first_seq

    def render(self) -> Message:
        """Without thinking."""
        if self.bare is None:
            self.bare = without_thinking(self.full)
        return self.bare

    def readable_by(self, target: ModelInvocationDescriptor | None) -> bool:
        made_by = self.entry.payload.invocation
        return (
            target is not None
            and target.model == made_by.model
            and target.specification == made_by.specification
            and target.provider_id == made_by.provider_id
        )

    def live_text(self) -> str:
        return REDACTED if self.redacted else parts_text(self.entry.payload.message.parts)

    def redact(self) -> None:
        self.redacted, self.has_thinking = True, False
        self.full = self.bare = redact_message(self.entry.payload.message)


class Found(NamedTuple):
    """One recorded result."""

    entry: ToolResultsEntry
    part: ToolResultPart
    outcome: ToolOutcome | None


class ResultsUnit:
    """The results of one output's calls: one tool message in call order, once all are in."""

    __slots__ = ("closed", "found", "grains", "message", "output", "redacted")

    def __init__(self, output: OutputUnit) -> None:
        self.output = output
        self.found: dict[str, Found] = {}
        self.grains: dict[str, tuple[Grain, str | None]] = {}
        self.redacted: set[str] = set()
        self.closed = False
        self.message: Message | None = None

    @property
    def complete(self) -> bool:
        return self.closed or len(self.found) == len(self.output.calls)

    @property
    def first_seq(self) -> int:
        return min((found.entry.seq for found in self.found.values()), default=self.output.entry.seq)

    @property
    def last_seq(self) -> int:
        return max((found.entry.seq for found in self.found.values()), default=self.output.entry.seq)

    def add(self, entry: ToolResultsEntry) -> None:
        payload = entry.payload
        parts = payload.message.tool_results
        outcomes: list[ToolOutcome | None] = [*payload.outcomes]
        outcomes += [None] * (len(parts) - len(outcomes))
        for part, outcome in zip(parts, outcomes, strict=False):
            call_id = part.payload.tool_call_id
            if call_id in self.found or call_id not in self.output.calls or self.closed:
                continue
            self.found[call_id] = Found(entry, part, outcome)
            if entry.purged_digest is not None:
                self.redacted.add(entry.id)
        self.message = None

    def render(self) -> Message:
        if self.message is None:
            self.message = self.build(fill=True)
        return self.message

    def build(self, *, fill: bool) -> Message:
        """``fill`` puts a note where a result is missing, so that no call stays unanswered."""
        parts: list[MessagePart] = []
        last = None
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
        if found.entry.id in self.redacted:
            return tool_result_part(call_id, REDACTED, is_error=found.part.payload.is_error)
        sections = found.outcome.sections if found.outcome else None
        grain, text = self.grains.get(call_id, ("live", None))
        if grain != "live":
            text = text if text is not None else grain_text(sections, grain)
            if text is not None:
                return replace_result(found.part, folded_text(found.entry.seq, grain, text))
        return replace_result(
            found.part, render_content(found.part.payload.content, sections.live if sections else None)
        )

    def live_text(self, call_id: str) -> str:
        found = self.found.get(call_id)
        if found is None:
            return NO_RESULT
        return REDACTED if found.entry.id in self.redacted else content_text(found.part.payload.content)

    def lower(self, call_id: str, grain: Grain, text: str | None) -> bool:
        if RANK[grain] <= RANK[self.grains.get(call_id, ("live", None))[0]]:
            return False
        self.grains[call_id] = (grain, text)
        self.message = None
        return True

    def redact(self, entry_id: str) -> None:
        self.redacted.add(entry_id)
        self.message = None


class TextUnit:
    """A text that stands for a stretch of entries, or introduces a branch."""

    __slots__ = ("entry_id", "first_seq", "kind", "last_seq", "message", "text", "timestamp")

    def __init__(
        self, kind: TextKind, text: str, *, entry_id: str, first_seq: int, last_seq: int, timestamp: str
    ) -> None:
        self.kind: TextKind = kind
        self.text = text
        self.entry_id = entry_id
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.timestamp = timestamp
        self.message: Message | None = None

    def render(self) -> Message:
        if self.message is None:
            self.message = Message(
                run_id="", role="user", parts=[text_part(self.text)], timestamp=self.timestamp
            )
        return self.message

    def replace_text(self, text: str) -> None:
        self.text, self.message = text, None


def _same(left: list[MessagePart], right: list[MessagePart]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


Unit: TypeAlias = InputUnit | OutputUnit | ResultsUnit | TextUnit
