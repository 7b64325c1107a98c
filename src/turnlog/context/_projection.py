"""The left fold: entries in, what a model sees out. No clock, environment, randomness or dictionary order."""

from __future__ import annotations

from collections.abc import Iterable

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummary,
    CompactionSummaryEntry,
    CustomEntry,
    DeltaBatchEntry,
    Entry,
    FoldEntry,
    JsonObject,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    RuntimeInitEntry,
    SessionHeaderEntry,
    SystemPromptEntry,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    ToolStartedEntry,
    WidgetEventEntry,
    encode,
)

from ._lane import Head, Lane, ModelContext, make_head
from ._options import ContextOptions
from ._units import InputUnit, OutputUnit, ResultsUnit, TextUnit, Unit

RUNTIME = "[Runtime]"
"""Heading of the runtime's own data in the system prompt."""


class Projection:
    """Everything the log says a model should see, kept ready to send.

    ``step`` takes entries in log order, each once. ``emit`` may be called at any point and for any target;
    its cost is what is new since the last call for that target, unless a break entry came between.
    """

    def __init__(
        self,
        options: ContextOptions | None = None,
        *,
        system_prompt: str | None = None,
    ) -> None:
        self.options = options or ContextOptions()
        self.units: list[Unit] = []
        self.breaks = 0
        self.recap: CompactionSummary | None = None
        self._tools: list[ToolSpec] = []
        self._prompt: str | None = system_prompt
        self._override: str | None = None
        self._runtime: JsonObject | None = None
        self._head: Head | None = None
        self._lanes: dict[tuple[str, str, str] | None, Lane] = {}
        self._calls: dict[str, ResultsUnit] = {}
        self._open: ResultsUnit | None = None
        self._hidden: set[str] = set()

    @classmethod
    def of(cls, entries: Iterable[Entry], options: ContextOptions | None = None) -> Projection:
        projection = cls(options)
        for entry in entries:
            projection.step(entry)
        return projection

    # ── in ──

    def step(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry():
                self.units.append(InputUnit(entry))
            case ModelOutputEntry():
                self._add_output(entry)
            case ToolResultsEntry():
                self._add_results(entry)
            case ToolsChangeEntry():
                if entry.payload.tools != self._tools:
                    self._tools = entry.payload.tools
                    self._break_head()
            case SystemPromptEntry():
                if entry.payload.text != self._prompt:
                    self._prompt = entry.payload.text
                    self._break_head()
            case RunStartedEntry():
                if entry.payload.system_prompt_override != self._override:
                    self._override = entry.payload.system_prompt_override
                    self._break_head()
            case RuntimeInitEntry():
                if entry.payload.data != self._runtime:
                    self._runtime = entry.payload.data
                    self._break_head()
            case BranchSummaryEntry():
                self._add_branch(entry)
            case CompactionSummaryEntry():
                self.recap = entry.payload
            case FoldEntry():
                self._break()
            case RedactionEntry() | PurgeEntry():
                self._redact(entry.payload.entry_ids)
            case (
                SessionHeaderEntry()
                | RunEndedEntry()
                | ModelCallStartedEntry()
                | ModelCallFailedEntry()
                | ToolStartedEntry()
                | ApprovalRequestedEntry()
                | ApprovalDecidedEntry()
                | ModelChangeEntry()
                | WidgetEventEntry()
                | DeltaBatchEntry()
                | CustomEntry()
            ):
                pass

    def _add_output(self, entry: ModelOutputEntry) -> None:
        if self._open is not None and not self._open.complete:
            # A log that went on without these results: the calls are answered, so that none is an orphan.
            self._open.closed = True
        unit = OutputUnit(entry)
        self.units.append(unit)
        self._open = None
        if unit.calls:
            self._open = ResultsUnit(unit)
            self.units.append(self._open)
            for call_id in unit.calls:
                self._calls[call_id] = self._open

    def _add_results(self, entry: ToolResultsEntry) -> None:
        seen: list[ResultsUnit] = []
        for part in entry.payload.message.tool_results:
            unit = self._calls.get(part.payload.tool_call_id)
            if unit is not None and unit not in seen:
                seen.append(unit)
                unit.add(entry)

    def _add_branch(self, entry: BranchSummaryEntry) -> None:
        if entry.payload.summary:
            self.units.append(
                TextUnit(
                    "branch",
                    entry.payload.summary,
                    entry_id=entry.id,
                    first_seq=entry.seq,
                    last_seq=entry.seq,
                    timestamp=entry.timestamp,
                )
            )

    def _redact(self, entry_ids: list[str]) -> None:
        names = set(entry_ids)
        self._hidden |= names
        for unit in self.units:
            match unit:
                case InputUnit() | OutputUnit():
                    if unit.entry.id in names:
                        unit.redact()
                case ResultsUnit():
                    for found in unit.found.values():
                        if found.entry.id in names:
                            unit.redact(found.entry.id)
                case TextUnit():
                    pass
        self._break()

    # ── out ──

    @property
    def system_prompt(self) -> str | None:
        return self.head.system_prompt

    @property
    def tool_specs(self) -> list[ToolSpec]:
        return self._tools

    @property
    def head(self) -> Head:
        if self._head is None:
            self._head = make_head(self._full_prompt(), self._tools)
        return self._head

    def emit(self, target: ModelInvocationDescriptor | None = None, *, force: bool = False) -> ModelContext:
        """What ``target`` is sent now. While results are owed nothing behind their calls is shown; ``force``
        shows those that are in, as a copy that later calls do not build on."""
        lane = self.lane(target)
        if force and lane.position < len(self.units):
            lane = lane.preview(self.units)
        segments = sum(1 for unit in self.units[:64] if type(unit) is TextUnit and unit.kind == "segment")
        return lane.emit(self.head, self.estimate, segments, self.breaks)

    def lane(self, target: ModelInvocationDescriptor | None) -> Lane:
        key = (target.provider_id, target.specification, target.model) if target else None
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(target, self.head)
        lane.advance(self.units)
        return lane

    def estimate(self, size: int, images: int = 0) -> int:
        """Tokens of ``size`` bytes of wire and some images."""
        return int(size / self.options.bytes_per_token) + images * self.options.image_tokens

    # ── breaks ──

    def _full_prompt(self) -> str | None:
        prompt = self._override if self._override is not None else self._prompt
        if self._runtime is None:
            return prompt
        section = f"# {RUNTIME}\n\n{encode(self._runtime).decode()}"
        return f"{prompt}\n\n{section}" if prompt else section

    def _break_head(self) -> None:
        self._head = None
        self._break()

    def _break(self) -> None:
        self.breaks += 1
        self._lanes.clear()
