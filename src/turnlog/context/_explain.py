"""What the model saw at a past call, and what filled it."""

from __future__ import annotations

from collections.abc import Sequence

from turnlog.contract import (
    AgentError,
    Entry,
    FoldEntry,
    Message,
    ModelCallStartedEntry,
    ModelInvocationDescriptor,
    ToolSpec,
    Value,
    encode,
)

from ._lane import ContextStats, ModelContext, wire_of
from ._options import ContextOptions, fold_threshold, weigh
from ._planner import FoldPlanner
from ._projection import Projection
from ._render import hidden_ids
from ._units import InputUnit, OutputUnit, ResultsUnit, TextKind, TextUnit

_TEXT_NAMES: dict[TextKind, str] = {
    "segment": "segments",
    "branch": "branch",
    "screen": "live screen",
    "hints": "hints",
    "partial": "assistant",
    "note": "assistant",
}


class GaugePart(Value, frozen=True, kw_only=True):
    """How much of a context one kind of content takes."""

    kind: str
    tokens: int
    share: float
    count: int


class MessageOrigin(Value, frozen=True, kw_only=True):
    """Where one message of a context comes from: the entries ``first`` to ``last`` of the log, how large it
    is, and whether it is shown at another level of detail than live."""

    first: int
    last: int
    tokens: int
    kind: str
    folded: bool = False


class ContextView(Value, frozen=True, kw_only=True):
    """One past call. ``matches`` says whether the bytes shown are those whose hash was recorded; after a
    redaction they cannot be, and ``redacted`` says so. ``window`` is the model's where it is known,
    ``fold_at`` the tokens at which a context is folded, ``folds`` how often that had happened."""

    call: int
    entry_id: str
    run_id: str | None
    model_call_index: int
    attempt: int
    target: ModelInvocationDescriptor
    system_prompt: str | None
    tool_specs: list[ToolSpec]
    messages: list[Message]
    context_hash: str
    recorded_hash: str
    matches: bool
    redacted: bool
    stats: ContextStats
    gauge: list[GaugePart]
    window: int | None = None
    fold_at: int | None = None
    folds: int
    origins: list[MessageOrigin]

    def context(self) -> ModelContext:
        """What was sent, apart from what is known about it."""
        return ModelContext(
            messages=self.messages,
            tool_specs=self.tool_specs,
            system_prompt=self.system_prompt,
            context_hash=self.context_hash,
            stats=self.stats,
        )


class ContextDiff(Value, frozen=True, kw_only=True):
    """How a later context differs from an earlier one. ``grown``: it only has more at its end."""

    grown: bool
    head_changed: bool
    common_messages: int
    common_bytes: int
    removed: list[Message]
    added: list[Message]


def explain(
    entries: Sequence[Entry], call_index: int = -1, *, options: ContextOptions | None = None
) -> ContextView:
    """What the model saw at the ``call_index``-th call of the log, from 1; -1 is the last.

    ``entries`` are the visible ones: what was redacted since is not shown again. Raises
    ``ContextInvalidInput`` when there is no such call.
    """
    calls = [at for at, entry in enumerate(entries) if isinstance(entry, ModelCallStartedEntry)]
    number = call_index if call_index > 0 else len(calls) + 1 + call_index
    if not 1 <= number <= len(calls):
        raise AgentError(
            "ContextInvalidInput",
            f"there is no model call {call_index} in this session; it has {len(calls)}, counted from 1",
        )
    position = calls[number - 1]
    started = entries[position]
    assert isinstance(started, ModelCallStartedEntry)
    hidden = hidden_ids(entries)
    projection = Projection(options, hidden=hidden)
    for entry in entries[:position]:
        projection.step(entry)
    context = projection.emit(started.payload.target)
    limits = FoldPlanner(projection, target=started.payload.target).known_limits()
    return ContextView(
        call=number,
        entry_id=started.id,
        run_id=started.run_id,
        model_call_index=started.payload.model_call_index,
        attempt=started.payload.attempt,
        target=started.payload.target,
        system_prompt=context.system_prompt,
        tool_specs=context.tool_specs,
        messages=list(context.messages),
        context_hash=context.context_hash,
        recorded_hash=started.payload.context_hash,
        matches=context.context_hash == started.payload.context_hash,
        redacted=any(entry.id in hidden for entry in entries[:position]),
        stats=context.stats,
        gauge=gauge(projection, started.payload.target),
        window=limits.window,
        fold_at=fold_threshold(projection.options, limits) if projection.options.fold else None,
        folds=sum(isinstance(entry, FoldEntry) for entry in entries[:position]),
        origins=_origins(projection, started.payload.target),
    )


def _origins(projection: Projection, target: ModelInvocationDescriptor) -> list[MessageOrigin]:
    found: list[MessageOrigin] = []
    for unit, message in projection.lane(target).pairs(projection.units):
        tokens = projection.meter.tokens(weigh(message, len(wire_of(message)), projection.options), target)
        folded = False
        match unit:
            case InputUnit():
                kind, folded = "user", unit.level.grain != "live"
            case OutputUnit():
                kind = "assistant"
            case ResultsUnit():
                kind = "tool results"
                calls = [part.payload.tool_call_id for part in message.tool_results]
                folded = any(unit.level(call).grain != "live" for call in calls)
            case TextUnit():
                kind, folded = _TEXT_NAMES[unit.kind], unit.kind == "segment"
        found.append(
            MessageOrigin(first=unit.first_seq, last=unit.last_seq, tokens=tokens, kind=kind, folded=folded)
        )
    return found


def gauge(projection: Projection, target: ModelInvocationDescriptor | None = None) -> list[GaugePart]:
    """What fills the window, by kind, the largest first."""
    weights: dict[str, list[int]] = {}

    def count(kind: str, weight: int) -> None:
        if weight:
            weights.setdefault(kind, []).append(weight)

    head = projection.head
    count("system prompt", len((head.system_prompt or "").encode()))
    for spec in head.tool_specs:
        count("tools", len(encode(spec)))
    for unit, message in projection.lane(target).pairs(projection.units):
        weight = weigh(message, len(wire_of(message)), projection.options)
        match unit:
            case InputUnit():
                count("user" if unit.level.grain == "live" else "user, folded", weight)
            case OutputUnit():
                bare = unit.render()
                plain = weigh(bare, len(wire_of(bare)), projection.options)
                count("assistant", plain)
                count("thinking", weight - plain)
            case ResultsUnit():
                for part in message.tool_results:
                    live = unit.level(part.payload.tool_call_id).grain == "live"
                    count("tool results" if live else "tool results, folded", len(encode(part)))
            case TextUnit():
                count(_TEXT_NAMES[unit.kind], weight)
    total = sum(sum(values) for values in weights.values()) or 1
    parts = [
        GaugePart(
            kind=kind,
            tokens=projection.meter.tokens(sum(values), target),
            share=round(sum(values) / total, 4),
            count=len(values),
        )
        for kind, values in weights.items()
    ]
    return sorted(parts, key=lambda part: (-part.tokens, part.kind))


def diff_contexts(earlier: ModelContext, later: ModelContext) -> ContextDiff:
    """Where two contexts part, counted in messages and bytes from the beginning."""
    head_changed = (earlier.system_prompt, earlier.tool_specs) != (later.system_prompt, later.tool_specs)
    common = size = 0
    for left, right in zip(earlier.messages, later.messages, strict=False):
        wire = wire_of(left)
        if left is not right and wire != wire_of(right):
            break
        common += 1
        size += len(wire)
    return ContextDiff(
        grown=not head_changed and common == len(earlier.messages),
        head_changed=head_changed,
        common_messages=common,
        common_bytes=size,
        removed=list(earlier.messages[common:]),
        added=list(later.messages[common:]),
    )
