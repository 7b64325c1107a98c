"""For who holds entries and no projection: the context now, and what must be appended for it."""

from __future__ import annotations

from turnlog.contract import (
    Entry,
    EntryPayload,
    Fold,
    JsonObject,
    LevelOfDetailSections,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    RuntimeInit,
    SystemPrompt,
    ToolsChange,
    ToolSpec,
    Value,
    seal,
)

from ._attach import hints_section, input_sections
from ._draft import FoldReason
from ._lane import ContextStats
from ._limits import ModelLimits
from ._options import ContextOptions
from ._planner import plan_fold
from ._projection import Projection, render_runtime


class ContextInput(Value, frozen=True, kw_only=True):
    """The log, and what the caller wants in force now; what differs from the log becomes an entry.

    ``input_messages`` are not in the log yet. ``cold``: the provider's cache has expired. ``turn_end``: no
    call is under way, the best moment for a fold.
    """

    entries: list[Entry]
    target: ModelInvocationDescriptor | None = None
    options: ContextOptions = ContextOptions()
    input_messages: list[Message] = []
    system_prompt: str | None = None
    runtime_init_data: JsonObject | None = None
    runtime_hints: JsonObject | None = None
    tool_specs: list[ToolSpec] | None = None
    window: int | None = None
    price_step: int | None = None
    cold: bool = False
    turn_end: bool = False


class ContextBuildResult(Value, frozen=True, kw_only=True):
    """The request, and the payloads to append, in order, before it is sent."""

    model_messages: list[Message]
    model_tool_specs: list[ToolSpec]
    system_prompt: str | None
    entries_to_append: list[EntryPayload]
    compacted: bool
    context_hash: str
    stats: ContextStats


class ContextUpdateInput(Value, frozen=True, kw_only=True):
    """``overflow_step`` counts from 1 how often the same prompt was refused; 0 when it was not."""

    entries: list[Entry]
    target: ModelInvocationDescriptor | None = None
    options: ContextOptions = ContextOptions()
    overflow_hint: bool = False
    overflow_step: int = 0
    manual: bool = False
    window: int | None = None
    price_step: int | None = None
    cold: bool = False
    turn_end: bool = False


class ContextUpdateResult(Value, frozen=True, kw_only=True):
    entries_to_append: list[EntryPayload]
    compacted: bool
    stats: ContextStats


class _Draft:
    """A projection that goes on with payloads that nobody has appended yet."""

    def __init__(self, entries: list[Entry], options: ContextOptions) -> None:
        self.projection = Projection.of(entries, options)
        self.payloads: list[EntryPayload] = []
        self._seq = entries[-1].seq if entries else 0
        self._session = entries[-1].session_id if entries else ""

    def add(self, payload: EntryPayload) -> None:
        self._seq += 1
        self.payloads.append(payload)
        sealed = seal(
            payload,
            id=f"draft-{self._seq}",
            previous_id=None,
            previous_hash="",
            session_id=self._session,
            seq=self._seq,
            timestamp="",
        )
        self.projection.step(sealed.entry)


def build_context(input: ContextInput) -> ContextBuildResult:
    """What to send now. Pure: the same input gives the same bytes.

    Raises ``ConfigInvalid`` when prompt and tools leave no room for a conversation.
    """
    draft = _Draft(input.entries, input.options)
    _bring_head(draft, input)
    _bring_input(draft, input)
    fold = plan_fold(
        draft.projection,
        target=input.target,
        cold=input.cold,
        turn_end=input.turn_end,
        limits=_limits(input.window, input.price_step),
    )
    if fold is not None:
        draft.add(fold)
    context = draft.projection.emit(input.target)
    return ContextBuildResult(
        model_messages=list(context.messages),
        model_tool_specs=context.tool_specs,
        system_prompt=context.system_prompt,
        entries_to_append=draft.payloads,
        compacted=fold is not None,
        context_hash=context.context_hash,
        stats=context.stats,
    )


def compute_context_updates(input: ContextUpdateInput) -> ContextUpdateResult:
    """What to append so that the next call fits. Pure.

    Raises ``ContextOverflow`` when the prompt was refused and nothing is left to shrink.
    """
    draft = _Draft(input.entries, input.options)
    reason: FoldReason = "threshold"
    if input.overflow_hint or input.overflow_step:
        reason = "overflow"
    elif input.manual:
        reason = "manual"
    fold: Fold | None = plan_fold(
        draft.projection,
        target=input.target,
        reason=reason,
        cold=input.cold,
        turn_end=input.turn_end,
        limits=_limits(input.window, input.price_step),
        overflow_step=max(input.overflow_step, 1) if reason == "overflow" else 0,
    )
    if fold is not None:
        draft.add(fold)
    return ContextUpdateResult(
        entries_to_append=draft.payloads,
        compacted=fold is not None,
        stats=draft.projection.emit(input.target).stats,
    )


def _bring_head(draft: _Draft, input: ContextInput) -> None:
    projection = draft.projection
    if input.system_prompt is not None and input.system_prompt != projection.head_text("prompt"):
        draft.add(SystemPrompt(text=input.system_prompt))
    runtime = input.runtime_init_data
    if runtime is not None and render_runtime(runtime) != projection.head_text("runtime"):
        draft.add(RuntimeInit(data=runtime))
    if input.tool_specs is not None and input.tool_specs != projection.tool_specs:
        draft.add(ToolsChange(tools=input.tool_specs))


def _bring_input(draft: _Draft, input: ContextInput) -> None:
    for position, message in enumerate(input.input_messages):
        newest = position == len(input.input_messages) - 1
        hints = hints_section(draft.projection, input.runtime_hints) if newest else None
        sections: LevelOfDetailSections = input_sections(
            draft.projection, message, added=[hints] if hints else ()
        )
        draft.add(ModelInput(message=message, sections=sections))


def _limits(window: int | None, price_step: int | None) -> ModelLimits | None:
    return None if window is None and price_step is None else ModelLimits(window, price_step)
