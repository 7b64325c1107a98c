"""What the model saw at a past call, and what filled it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

from ._lane import ContextStats, Lane, ModelContext, wire_of
from ._options import ContextOptions, fold_threshold, weigh
from ._planner import FoldPlanner
from ._projection import Projection
from ._render import hidden_ids
from ._units import InputUnit, OutputUnit, ResultsUnit, TextKind, TextUnit, Unit

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
    planner = FoldPlanner(projection, target=started.payload.target, told=started.payload.window)
    limits = planner.known_limits()
    filling = _Filling()
    filling.take(projection, started.payload.target)
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
        gauge=filling.parts(projection, started.payload.target),
        window=limits.window,
        fold_at=fold_threshold(projection.options, limits) if projection.options.fold else None,
        folds=sum(isinstance(entry, FoldEntry) for entry in entries[:position]),
        origins=filling.origins,
    )


class CallStep(Value, frozen=True, kw_only=True):
    """One call of all calls of a log: as :class:`ContextView`, but of the messages only those that are new.
    The first ``known`` are those of the call before, unchanged. ``origins`` are those of the last messages,
    as many as may differ from the call before. ``head_changed``: the system prompt or the tools are others
    than there."""

    call: int
    entry_id: str
    target: ModelInvocationDescriptor
    system_prompt: str | None
    tool_specs: list[ToolSpec]
    head_changed: bool
    known: int
    added: list[Message]
    origins: list[MessageOrigin]
    context_hash: str
    recorded_hash: str
    redacted: bool
    gauge: list[GaugePart]
    window: int | None = None
    fold_at: int | None = None
    folds: int


def explain_all(entries: Sequence[Entry], *, options: ContextOptions | None = None) -> Iterator[CallStep]:
    """What the model saw at every call of the log, in order, for the cost of reading it once: a call costs
    what is new in it. ``entries`` are the visible ones."""
    hidden = hidden_ids(entries)
    projection = Projection(options, hidden=hidden)
    fillings: dict[Lane, _Filling] = {}
    shown: list[Message] = []
    head: tuple[str | None, list[ToolSpec]] | None = None
    last: Lane | None = None
    number = folds = breaks = 0
    redacted = False
    for entry in entries:
        if isinstance(entry, ModelCallStartedEntry):
            number += 1
            target = entry.payload.target
            context = projection.emit(target)
            lane = projection.lane(target)
            if projection.breaks != breaks:
                breaks, fillings = projection.breaks, {}  # the lanes before a break are gone
            filling = fillings.setdefault(lane, _Filling())
            filling.take(projection, target)
            grown, last = lane is last, lane
            known = len(shown) if grown else _common(shown, context.messages)
            limits = FoldPlanner(projection, target=target, told=entry.payload.window).known_limits()
            before, head = head, (context.system_prompt, context.tool_specs)
            yield CallStep(
                call=number,
                entry_id=entry.id,
                target=target,
                system_prompt=context.system_prompt,
                tool_specs=context.tool_specs,
                head_changed=before is not None and before != head,
                known=known,
                added=list(context.messages[known:]),
                origins=filling.origins[known if grown else 0 :],
                context_hash=context.context_hash,
                recorded_hash=entry.payload.context_hash,
                redacted=redacted,
                gauge=filling.parts(projection, target),
                window=limits.window,
                fold_at=fold_threshold(projection.options, limits) if projection.options.fold else None,
                folds=folds,
            )
            shown[known:] = context.messages[known:]
        projection.step(entry)
        folds += isinstance(entry, FoldEntry)
        redacted = redacted or entry.id in hidden


def _common(earlier: Sequence[Message], later: Sequence[Message]) -> int:
    """How many messages both begin with."""
    common = 0
    for left, right in zip(earlier, later, strict=False):
        if left is not right and wire_of(left) != wire_of(right):
            break
        common += 1
    return common


class _Filling:
    """What fills one lane, by kind, and where each of its messages comes from; taken in as the lane grows."""

    def __init__(self) -> None:
        self.origins: list[MessageOrigin] = []
        self._weights: dict[str, tuple[int, int]] = {}
        self._seen = (0, 0)

    def take(self, projection: Projection, target: ModelInvocationDescriptor | None) -> int:
        """Take in what is new in the lane of ``target``; how many messages that is."""
        lane = projection.lane(target)
        before = len(self.origins)
        for unit, message in lane.pairs(projection.units, self._seen):
            weight = weigh(message, len(wire_of(message)), projection.options)
            self._count(unit, message, weight, projection.options)
            tokens = projection.meter.tokens(weight, target)
            self.origins.append(_origin(unit, message, tokens))
        self._seen = (lane.position, len(lane.messages))
        return len(self.origins) - before

    def _add(self, kind: str, weight: int) -> None:
        if weight:
            total, count = self._weights.get(kind, (0, 0))
            self._weights[kind] = (total + weight, count + 1)

    def _count(self, unit: Unit, message: Message, weight: int, options: ContextOptions) -> None:
        match unit:
            case InputUnit():
                self._add("user" if unit.level.grain == "live" else "user, folded", weight)
            case OutputUnit():
                bare = unit.render()
                plain = weigh(bare, len(wire_of(bare)), options)
                self._add("assistant", plain)
                self._add("thinking", weight - plain)
            case ResultsUnit():
                for part in message.tool_results:
                    live = unit.level(part.payload.tool_call_id).grain == "live"
                    self._add("tool results" if live else "tool results, folded", len(encode(part)))
            case TextUnit():
                self._add(_TEXT_NAMES[unit.kind], weight)

    def parts(self, projection: Projection, target: ModelInvocationDescriptor | None) -> list[GaugePart]:
        head = projection.head
        prompt = len((head.system_prompt or "").encode())
        specs = [len(encode(spec)) for spec in head.tool_specs]
        weights = {"system prompt": (prompt, 1), "tools": (sum(specs), len(specs)), **self._weights}
        total = sum(weight for weight, _ in weights.values()) or 1
        found = [
            GaugePart(
                kind=kind,
                tokens=projection.meter.tokens(weight, target),
                share=round(weight / total, 4),
                count=count,
            )
            for kind, (weight, count) in weights.items()
            if weight
        ]
        return sorted(found, key=lambda part: (-part.tokens, part.kind))


def _origin(unit: Unit, message: Message, tokens: int) -> MessageOrigin:
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
    return MessageOrigin(first=unit.first_seq, last=unit.last_seq, tokens=tokens, kind=kind, folded=folded)


def gauge(projection: Projection, target: ModelInvocationDescriptor | None = None) -> list[GaugePart]:
    """What fills the window, by kind, the largest first."""
    filling = _Filling()
    filling.take(projection, target)
    return filling.parts(projection, target)


def diff_contexts(earlier: ModelContext, later: ModelContext) -> ContextDiff:
    """Where two contexts part, counted in messages and bytes from the beginning."""
    head_changed = (earlier.system_prompt, earlier.tool_specs) != (later.system_prompt, later.tool_specs)
    common = _common(earlier.messages, later.messages)
    return ContextDiff(
        grown=not head_changed and common == len(earlier.messages),
        head_changed=head_changed,
        common_messages=common,
        common_bytes=sum(len(wire_of(message)) for message in later.messages[:common]),
        removed=list(earlier.messages[common:]),
        added=list(later.messages[common:]),
    )
