"""The left fold: entries in, what a model sees out. No clock, environment, randomness or dictionary order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, Self, TypeAlias

from turnlog.contract import (
    HINTS,
    BranchSummaryEntry,
    CompactionSummary,
    CompactionSummaryEntry,
    Entry,
    Fold,
    FoldEntry,
    JsonObject,
    LevelOfDetailSections,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    RuntimeInitEntry,
    SystemPromptEntry,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    encode,
    to_plain_text,
    try_get_section,
)

from ._fold import apply_fold
from ._lane import Head, Lane, ModelContext, make_head
from ._options import ContextOptions, LearnedWindows, TokenMeter
from ._render import REDACTED, Vocabulary, hidden_ids
from ._units import LIVE, InputUnit, OutputUnit, ResultsUnit, TextKind, TextUnit, Unit

RUNTIME = "[Runtime]"
"""Heading of the runtime's own data in the system prompt."""

INTERRUPTED = "[The answer above was interrupted before it was complete.]"
"""Follows an answer of which the user saw a part, and no more came."""

HeadPart: TypeAlias = Literal["prompt", "override", "runtime"]


def render_runtime(data: JsonObject) -> str:
    """The runtime's own data as the section of the system prompt that it is."""
    return f"# {RUNTIME}\n\n{encode(data).decode()}"


class Projection:
    """Everything the log says a model should see, kept ready to send.

    ``step`` takes entries in log order, each once. ``emit`` may be called at any point and for any target;
    its cost is what is new since the last call for that target, unless a break entry came between.
    A redaction or a purge changes the past, so it takes a new projection, made by :meth:`of` from the visible
    entries: those that are hidden come without their content, and ``hidden`` names them.
    """

    def __init__(self, options: ContextOptions | None = None, *, hidden: Iterable[str] = ()) -> None:
        self.options = options or ContextOptions()
        self.units: list[Unit] = []
        self.breaks = 0
        self.recap: CompactionSummary | None = None
        self.vocabulary = Vocabulary()
        self.meter = TokenMeter(self.options)
        self.windows = LearnedWindows()
        self.numbers: dict[str, int] = {}
        self.targets: dict[ModelInvocationDescriptor, None] = {}
        self.shown_hints: str | None = None
        self._hidden = set(hidden)
        self._gone: set[str] = set()
        self._hints_from = ("", 0)
        self._tools: list[ToolSpec] = []
        self._head_texts: dict[HeadPart, str | None] = {}
        self._head: Head | None = None
        self._lanes: dict[ModelInvocationDescriptor | None, Lane] = {}
        self._calls: dict[str, ResultsUnit] = {}
        self._partial: ModelCallFailedEntry | None = None
        self.last_seq = 0

    @classmethod
    def of(cls, entries: Iterable[Entry], options: ContextOptions | None = None) -> Self:
        """The projection of a log, given as its visible entries."""
        entries = list(entries)
        projection = cls(options, hidden=hidden_ids(entries))
        for entry in entries:
            projection.step(entry)
        return projection

    def copy(self) -> Self:
        """A copy that grows on its own. The units are shared: they may be replaced, not changed."""
        copy = type(self)(self.options)
        copy.__dict__.update(self.__dict__)
        copy.units, copy.numbers, copy.targets = list(self.units), dict(self.numbers), dict(self.targets)
        copy.vocabulary = self.vocabulary.copy()
        copy._gone = set(self._gone)
        copy._head_texts, copy._calls = dict(self._head_texts), dict(self._calls)
        copy._lanes = {}
        return copy

    # ── in ──

    def step(self, entry: Entry) -> None:
        self.last_seq = entry.seq
        if entry.purged_digest is not None or entry.id in self._hidden:
            self._gone.add(entry.id)
        step = STEPS[entry.kind]
        if step is not None:
            step(self, entry)

    def _call_failed(self, entry: ModelCallFailedEntry) -> None:
        self._partial = entry if entry.payload.partial else None
        self.windows.call_failed(entry)

    def _run_ended(self, entry: RunEndedEntry) -> None:
        """What the caller was shown of an answer that nothing followed was said, though not to its end."""
        failed, self._partial = self._partial, None
        if failed is not None and failed.payload.partial:
            text = REDACTED if self._is_hidden(failed) else failed.payload.partial
            self.numbers[failed.id] = failed.seq
            self.vocabulary.add(text)
            self._add_text("partial", text, failed, (failed.id, failed.seq))
            self._add_text("note", INTERRUPTED, failed, (failed.id, failed.seq))

    def _call_started(self, entry: ModelCallStartedEntry) -> None:
        self._partial = None
        self.targets[entry.payload.target] = None
        self.meter.call_started(entry)
        self.windows.call_started(entry, self.meter)

    def _set_prompt(self, entry: SystemPromptEntry) -> None:
        self._set_head("prompt", entry, entry.payload.text)

    def _run_started(self, entry: RunStartedEntry) -> None:
        self._set_head("override", entry, entry.payload.system_prompt_override)

    def _set_runtime(self, entry: RuntimeInitEntry) -> None:
        self._set_head("runtime", entry, render_runtime(entry.payload.data))

    def _take_recap(self, entry: CompactionSummaryEntry) -> None:
        self.recap = None if self._is_hidden(entry) else entry.payload

    def _set_head(self, part: HeadPart, entry: Entry, text: str | None) -> None:
        if text is not None and self._is_hidden(entry):
            text = REDACTED
        old = self.head_text(part)
        self._head_texts[part] = text
        if text != old:
            self._break_head()

    def _set_tools(self, entry: ToolsChangeEntry) -> None:
        tools = entry.payload.tools
        if tools != self._tools:
            self._tools = tools
            self._break_head()

    def _add_input(self, entry: ModelInputEntry) -> None:
        unit = InputUnit(entry, redacted=self._is_hidden(entry))
        if self._gone:
            unit.hide_screen()
        self.units.append(unit)
        self.numbers[entry.id] = entry.seq
        self.vocabulary.add(REDACTED if unit.redacted else entry.payload.message.parts)
        if entry.payload.sections is not None:
            self._note_hints(entry, entry.payload.sections)

    def _add_output(self, entry: ModelOutputEntry) -> None:
        # A log that went on without these results: the calls are answered, so that none is an orphan.
        if self._calls:
            for results in self._calls.values():
                results.closed = True
            self._calls.clear()
        self.meter.call_answered(entry)
        unit = OutputUnit(entry, redacted=entry.id in self._gone)
        self.units.append(unit)
        self.numbers[entry.id] = entry.seq
        self.vocabulary.add(REDACTED if unit.redacted else entry.payload.message.parts)
        if unit.calls:
            results = ResultsUnit(unit)
            self.units.append(results)
            for call_id in unit.calls:
                self._calls[call_id] = results

    def _add_results(self, entry: ToolResultsEntry) -> None:
        self.numbers[entry.id] = entry.seq
        hidden = entry.id in self._gone
        for part in entry.payload.message.tool_results:
            unit = self._calls.pop(part.payload.tool_call_id, None)
            if unit is not None:
                if self._gone:
                    unit.hide_screen()
                unit.add(entry, part, redacted=hidden)
                self.vocabulary.add(unit.live_content(part.payload.tool_call_id))
        for outcome in entry.payload.outcomes:
            if outcome.sections is not None:
                self._note_hints(entry, outcome.sections)
            if outcome.handed_to is not None:
                self._set_head("override", entry, None)  # it was for the agent that spoke until now

    def _add_branch(self, entry: BranchSummaryEntry) -> None:
        # A purge that is not in this log was before the branch: no screen of the branch can show it.
        self._gone.clear()
        self.numbers[entry.id] = entry.seq
        if entry.payload.summary:
            text = REDACTED if self._is_hidden(entry) else entry.payload.summary
            self._add_text("branch", text, entry, (entry.id, entry.seq))

    def _fold(self, entry: FoldEntry) -> None:
        payload = entry.payload
        self.units = self.apply(payload, entry_id=entry.id, timestamp=entry.timestamp)
        self._show_again(entry, payload)
        if self.recap is not None and self._is_used(self.recap):
            self.recap = None
        self.targets.clear()
        self._break()

    def _show_again(self, entry: FoldEntry, fold: Fold) -> None:
        """What is in force stays in view: the hints where the fold took them away, and the whole screen."""
        hints_id, hints_seq = self._hints_from
        if self.shown_hints is not None and not any(unit.shows(hints_id) for unit in self.units):
            hidden = hints_id in self._hidden
            text = REDACTED if hidden else to_plain_text([(HINTS, self.shown_hints)])
            self._add_text("hints", text, entry, (hints_id, hints_seq))
        if fold.screen is not None and not self._gone:
            self._add_text("screen", fold.screen, entry, (entry.id, entry.seq))

    def _add_text(self, kind: TextKind, text: str, entry: Entry, place: tuple[str, int]) -> None:
        self.units.append(
            TextUnit(kind, text, entry_id=place[0], timestamp=entry.timestamp, first=place, last=place)
        )

    def apply(self, fold: Fold, *, entry_id: str = "", timestamp: str = "") -> list[Unit]:
        """What would be visible after ``fold``."""
        return apply_fold(self.units, fold, entry_id=entry_id, timestamp=timestamp)

    def _is_used(self, recap: CompactionSummary) -> bool:
        kept = self.numbers.get(recap.first_kept_entry_id, 0)
        return not any(unit.last_seq < kept for unit in self.units[len(self.segments) :])

    def _change_past(self, entry: RedactionEntry | PurgeEntry) -> None:
        """A widget may have shown what is hidden now: no screen before this is shown any more, and the next
        entry shows the whole of it anew, as it does hints that were hidden."""
        if self._hints_from[0] in entry.payload.entry_ids:
            self.shown_hints = None
        self._gone.difference_update(entry.payload.entry_ids)
        for unit in self.units:
            if type(unit) is InputUnit or type(unit) is ResultsUnit:
                unit.hide_screen()
        self.units = [unit for unit in self.units if type(unit) is not TextUnit or unit.kind != "screen"]
        self._break_head()

    def _is_hidden(self, entry: Entry) -> bool:
        return entry.id in self._hidden or entry.purged_digest is not None

    def _note_hints(self, entry: Entry, sections: LevelOfDetailSections) -> None:
        hints = try_get_section(sections.live, HINTS)
        if hints is not None:
            self.shown_hints = hints
            self._hints_from = (entry.id, entry.seq)

    # ── out ──

    @property
    def system_prompt(self) -> str | None:
        return self.head.system_prompt

    def head_text(self, part: HeadPart) -> str | None:
        """One ingredient of the system prompt as the log has it."""
        return self._head_texts.get(part)

    @property
    def tool_specs(self) -> list[ToolSpec]:
        return self._tools

    @property
    def head(self) -> Head:
        if self._head is None:
            self._head = make_head(self._full_prompt(), self._tools)
        return self._head

    @property
    def segments(self) -> list[TextUnit]:
        """The texts that stand for folded stretches; they come before everything else."""
        found: list[TextUnit] = []
        for unit in self.units:
            if type(unit) is not TextUnit or unit.kind != "segment":
                break
            found.append(unit)
        return found

    def live_ids(self) -> set[str]:
        """The entries whose whole text is in view."""
        found: set[str] = set()
        for unit in self.units:
            match unit:
                case InputUnit():
                    found |= {unit.entry.id} if unit.level.grain == "live" else set()
                case OutputUnit():
                    found.add(unit.entry.id)
                case ResultsUnit():
                    live = [one.entry.id for call_id, one in unit.in_order() if unit.level(call_id) is LIVE]
                    found.update(live)
                case TextUnit():
                    found |= {unit.entry_id} if unit.kind in ("partial", "branch") else set()
        return found

    @property
    def last_answer(self) -> str | None:
        """The entry of the newest answer in view, where a recap of what came before it ends; None when there
        is no answer before it."""
        answers = [unit.entry.id for unit in self.units if type(unit) is OutputUnit]
        return answers[-1] if len(answers) > 1 else None

    def emit(self, target: ModelInvocationDescriptor | None = None, *, force: bool = False) -> ModelContext:
        """What ``target`` is sent now. While results are owed nothing behind their calls is shown; ``force``
        shows those that are in, as a copy that later calls do not build on."""
        lane = self.lane(target)
        if force and lane.position < len(self.units):
            lane = lane.preview(self.units)
        return lane.emit(
            self.head,
            tokens=self.meter.tokens(lane.weight, target),
            segments=len(self.segments),
            breaks=self.breaks,
        )

    def lane(self, target: ModelInvocationDescriptor | None) -> Lane:
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = Lane(target, self.head, self.options)
        lane.advance(self.units)
        return lane

    @property
    def lanes(self) -> Collection[Lane]:
        """The wires that are kept ready."""
        return self._lanes.values()

    def tokens(self, target: ModelInvocationDescriptor | None = None) -> int:
        """The estimated size of what ``target`` would be sent now."""
        return self.meter.tokens(self.lane(target).weight, target)

    # ── breaks ──

    def _full_prompt(self) -> str | None:
        override = self.head_text("override")
        prompt = self.head_text("prompt") if override is None else override
        texts = [text for text in (prompt, self.head_text("runtime")) if text]
        return "\n\n".join(texts) or None

    def _break_head(self) -> None:
        self._head = None
        self._break()

    def _break(self) -> None:
        self.breaks += 1
        self._lanes.clear()


# The private names are the class's own: this table is the body of ``step``.
# pyright: reportPrivateUsage=false
STEPS: dict[str, Callable[[Projection, Any], None] | None] = {
    "session_header": None,
    "run_started": Projection._run_started,
    "run_ended": Projection._run_ended,
    "model_input": Projection._add_input,
    "model_call_started": Projection._call_started,
    "model_call_failed": Projection._call_failed,
    "model_output": Projection._add_output,
    "tools_change": Projection._set_tools,
    "tool_started": None,
    "tool_deferred": None,
    "tool_answered": None,
    "tool_results": Projection._add_results,
    "approval_requested": None,
    "approval_decided": None,
    "model_change": None,
    "runtime_init": Projection._set_runtime,
    "system_prompt": Projection._set_prompt,
    "widget_event": None,
    "fold": Projection._fold,
    "compaction_summary": Projection._take_recap,
    "branch_summary": Projection._add_branch,
    "redaction": Projection._change_past,
    "purge": Projection._change_past,
    "delta_batch": None,
    "custom": None,
}
"""What each kind does. A table and not a match: a long log goes through it entry by entry."""
