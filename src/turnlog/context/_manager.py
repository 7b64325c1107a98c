"""The part between the log and the model: what is sent now, and what must be appended so that it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypedDict, Unpack

import msgspec

from turnlog.contract import (
    HINTS,
    LIVE_SCREEN,
    Entry,
    EntryPayload,
    Fold,
    JsonObject,
    LevelOfDetailSections,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    RuntimeInit,
    Section,
    SystemPrompt,
    ToolsChange,
    ToolSpec,
    encode,
    seal,
)

from ._lane import ContextStats, ModelContext
from ._options import ContextOptions, WindowOf
from ._planner import FoldPlanner
from ._projection import Projection, render_runtime
from ._render import ResultContent, TextKind, content_text, hidden_ids, input_text, make_grains, make_preview
from ._shrink import FoldReason
from ._snapshot import dump_projection, load_projection

Screen = Callable[[], "str | None"]
"""Renders the whole LiveScreen; called only when a fold has to show it."""

PAGE = 8_000
"""Bytes of one page of recalled text, where the window allows it."""

_SLICE = 1_000
"""Entries that are folded in one go: some milliseconds."""

_RECAP_GROWTH = 0.1
"""Share of the threshold that a context grows by before a recap that came to nothing is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInput:
    """What the next call needs. What is given here and differs from the log becomes an entry to append.

    ``input_messages`` are not in the log yet. ``cold``: the provider's cache has expired. ``turn_end``: no
    call is in progress, the best moment for a fold. ``plan=False`` folds nothing, and ``fold`` is a fold that
    was decided before: a replay gives the recorded one. ``window`` is the target's in tokens, as its server
    told it.
    """

    target: ModelInvocationDescriptor | None = None
    tool_specs: Sequence[ToolSpec] | None = None
    system_prompt: str | None = None
    runtime_init_data: JsonObject | None = None
    runtime_hints: JsonObject | None = None
    input_messages: Sequence[Message] = ()
    cold: bool = False
    turn_end: bool = False
    plan: bool = True
    fold: Fold | None = None
    screen: Screen | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBuildResult:
    """The request, and the payloads to append, in this order, before it is sent."""

    context: ModelContext
    entries_to_append: Sequence[EntryPayload] = ()
    compacted: bool = False

    @property
    def model_messages(self) -> Sequence[Message]:
        return self.context.messages

    @property
    def model_tool_specs(self) -> Sequence[ToolSpec]:
        return self.context.tool_specs

    @property
    def stats(self) -> ContextStats:
        return self.context.stats


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUpdateInput:
    """``overflow_hint``: the provider refused the prompt as too long; ``overflow_step`` counts the refusals
    of the same prompt from 1. ``manual``: somebody asked for a fold now."""

    target: ModelInvocationDescriptor | None = None
    overflow_hint: bool = False
    overflow_step: int = 0
    manual: bool = False
    screen: Screen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUpdateResult:
    """The payloads to append, none when nothing is worth folding, and the sizes once they are appended."""

    entries_to_append: Sequence[EntryPayload] = ()
    compacted: bool = False
    stats: ContextStats


class Told(TypedDict, total=False):
    """What is known of a text that is about to be appended: its author's own ``summary`` and ``gist``, and
    what is shown behind it (``sections``, runtime ``hints``, what changed on the LiveScreen: ``screen``)."""

    summary: str | None
    gist: str | None
    sections: Sequence[Section]
    hints: JsonObject | None
    screen: str | None


class ContextManager(Protocol):
    """Decides what a model sees of one session. Subscribes to the session and keeps what it needs.

    Everything it answers follows from the entries it was given and from its arguments: it reads no clock,
    environment or file, so that the same log always gives the same bytes. One object serves one session.
    ``turnlog.testing.check_context_manager`` tests one. A subclass inherits the last four methods.
    """

    def step(self, entry: Entry) -> None:
        """Take in the next entry of the log. Raises nothing for an entry that the session accepted."""
        ...

    def refold(self, entries: Iterable[Entry]) -> None:
        """Forget everything and take in ``entries``: the past looks different, since an entry was redacted,
        purged or never written. Hidden entries come without their content."""
        ...

    def build_context(self, input: ContextInput) -> ContextBuildResult:
        """What to send now. Changes nothing by itself: the caller appends what it returns.

        Raises ``ConfigInvalid`` when prompt and tools leave no room for a conversation.
        """
        ...

    def compute_context_updates(self, input: ContextUpdateInput) -> ContextUpdateResult:
        """What to append so that the next call fits. Changes nothing by itself.

        Raises ``ContextOverflow`` when the prompt was refused and nothing is left to shrink.
        """
        ...

    def input_sections(self, message: Message, **told: Unpack[Told]) -> LevelOfDetailSections | None:
        """What is stored beside an input that is about to be appended: its lower levels of detail, and what
        is shown behind it (``sections``, hints that changed, what changed on the LiveScreen)."""
        return _plain_sections(told.get("sections", ()), told.get("screen"))

    def result_sections(self, content: ResultContent, **told: Unpack[Told]) -> LevelOfDetailSections | None:
        """The same for a tool's result. ``summary`` and ``gist`` are its author's own."""
        return _plain_sections(told.get("sections", ()), told.get("screen"))

    def preview(self, text: str, handle: str) -> str | None:
        """What is sent of a result that is too long to send whole; None sends it whole. ``handle`` names
        the artifact that holds all of it."""
        return None

    @property
    def page_size(self) -> int:
        """The bytes of one page of ``recall`` or ``read_artifact``."""
        return PAGE

    @property
    def live_ids(self) -> set[str]:
        """The entries whose whole text is in view, which a search need not bring back."""
        return set()

    def recap_due(
        self, stats: ContextStats, target: ModelInvocationDescriptor, *, asked_at: int = 0
    ) -> str | None:
        """The id of the first entry that a recap asked for now would not cover; None when none is due.

        ``stats`` are those of the context just sent, ``asked_at`` its size in tokens when a recap was last
        asked for.
        """
        return None


class ProjectionContext(ContextManager):
    """The default: an incremental projection, and a planner that folds when a context is too long.

    A call costs what is new since the last one; only a fold, a change of prompt or tools and a refold cost
    the length of what is visible. ``window_of`` gives a model's own window where it knows it. A subclass may
    name a ``planner`` of its own.
    """

    planner: ClassVar[type[FoldPlanner]] = FoldPlanner

    def __init__(self, options: ContextOptions | None = None, *, window_of: WindowOf | None = None) -> None:
        self.options = options or ContextOptions()
        self._window_of = window_of
        self._projection = Projection(self.options)
        self._waiting: list[Entry] | None = None

    @property
    def projection(self) -> Projection:
        """The fold over the entries so far. Made when it is first needed: a decision, or a tool that runs
        again after a crash, need not wait for the context of a long session."""
        if self._waiting is not None:
            self._projection = Projection.of(self._waiting, self.options)
            self._waiting = None
        return self._projection

    def catch_up(self) -> Iterator[None]:
        """Take in what waits, a slice at each step: the hall lets others have their turn in between."""
        waiting, at = self._waiting, 0
        if waiting is None:
            return
        projection = Projection(self.options, hidden=hidden_ids(waiting))
        while at < len(waiting):  # more may come meanwhile
            for entry in waiting[at : at + _SLICE]:
                projection.step(entry)
            at += _SLICE
            yield
            if self._waiting is not waiting:
                return  # refolded, or needed at once
        self._projection, self._waiting = projection, None

    def step(self, entry: Entry) -> None:
        if self._waiting is None:
            self._projection.step(entry)
        else:
            self._waiting.append(entry)

    def refold(self, entries: Iterable[Entry]) -> None:
        self._waiting = list(entries)

    # ── a snapshot, to begin with in the place of entries ──

    @property
    def snapshot_kind(self) -> str | None:
        """Whose snapshot it is, beside ``options``; None where it would not be all of it: of a class that
        takes in entries in a way of its own."""
        kind, ours = type(self), ProjectionContext
        if (kind.step, kind.refold, kind.projection) != (ours.step, ours.refold, ours.projection):
            return None
        return f"{kind.__module__}.{kind.__qualname__}"

    def snapshot(self) -> tuple[bytes, list[Entry]] | None:
        """All that was taken in, as bytes, and the entries they refer to; None while something is hidden."""
        return dump_projection(self.projection)

    def restore(self, data: bytes, entries: Mapping[int, Entry]) -> None:
        """Forget everything and begin with a snapshot. Raises ``MsgspecError``, ``LookupError`` or
        ``ValueError`` where it does not fit, and is as it was then."""
        self._projection, self._waiting = load_projection(data, entries, self.options), None

    @property
    def size(self) -> int:
        """The bytes of the longest wire that is kept ready."""
        return max((lane.size for lane in self._projection.lanes), default=0)

    # ── what to send, what to append ──

    def build_context(self, input: ContextInput) -> ContextBuildResult:
        draft = _Draft(self.projection)
        self._bring_head(draft, input)
        self._bring_input(draft, input)
        fold = input.fold
        if fold is None and input.plan:
            planner = self._planner(draft.projection, input.target, input.screen, input.window)
            fold = planner.plan(cold=input.cold, turn_end=input.turn_end)
        if fold is not None:
            draft.add(_with_screen(fold, input.screen))
        specs = input.tool_specs
        if specs is not None and list(specs) != draft.projection.tool_specs:
            draft.add(ToolsChange(tools=list(specs)))
        return ContextBuildResult(
            context=draft.projection.emit(input.target),
            entries_to_append=draft.payloads,
            compacted=fold is not None,
        )

    def compute_context_updates(self, input: ContextUpdateInput) -> ContextUpdateResult:
        reason: FoldReason = "manual" if input.manual else "threshold"
        if input.overflow_hint or input.overflow_step:
            reason = "overflow"
        draft = _Draft(self.projection)
        planner = self._planner(self.projection, input.target, input.screen)
        fold = planner.plan(reason, overflow_step=input.overflow_step)
        if fold is not None:
            draft.add(_with_screen(fold, input.screen))
        return ContextUpdateResult(
            entries_to_append=draft.payloads,
            compacted=fold is not None,
            stats=draft.projection.emit(input.target).stats,
        )

    def _planner(
        self,
        projection: Projection,
        target: ModelInvocationDescriptor | None,
        screen: Screen | None = None,
        told: int | None = None,
    ) -> FoldPlanner:
        return self.planner(projection, target=target, window_of=self._window_of, screen=screen, told=told)

    def _bring_head(self, draft: _Draft, input: ContextInput) -> None:
        prompt, runtime = input.system_prompt, input.runtime_init_data
        if prompt is not None and prompt != draft.projection.head_text("prompt"):
            draft.add(SystemPrompt(text=prompt))
        if runtime is not None and render_runtime(runtime) != draft.projection.head_text("runtime"):
            draft.add(RuntimeInit(data=runtime))

    def _bring_input(self, draft: _Draft, input: ContextInput) -> None:
        last = len(input.input_messages) - 1
        for position, message in enumerate(input.input_messages):
            hints = hints_section(draft.projection, input.runtime_hints) if position == last else None
            sections = input_sections(draft.projection, message, added=[hints] if hints else ())
            draft.add(ModelInput(message=message, sections=sections))

    # ── what is stored with an entry ──

    def input_sections(self, message: Message, **told: Unpack[Told]) -> LevelOfDetailSections:
        return input_sections(self.projection, message, **self._attached(told))

    def result_sections(self, content: ResultContent, **told: Unpack[Told]) -> LevelOfDetailSections:
        return result_sections(self.projection, content, **self._attached(told))

    def _attached(self, told: Told) -> Attached:
        news = hints_section(self.projection, told.get("hints"))
        live = _live(told.get("sections", ()), told.get("screen"))
        if news is not None:
            live.insert(len(told.get("sections", ())), news)
        return {"summary": told.get("summary"), "gist": told.get("gist"), "added": live}

    def preview(self, text: str, handle: str) -> str | None:
        if is_short(self.projection, text):
            return None
        return preview_result(self.projection, text, handle, window=self._window())

    @property
    def page_size(self) -> int:
        return min(PAGE, self.projection.meter.weight(share_of(self._window(), PAGE)))

    @property
    def live_ids(self) -> set[str]:
        return self.projection.live_ids()

    def _window(self) -> int | None:
        return self._planner(self.projection, None).window()

    # ── recaps ──

    def recap_due(
        self, stats: ContextStats, target: ModelInvocationDescriptor, *, asked_at: int = 0
    ) -> str | None:
        if self.projection.recap is not None:
            return None
        threshold = self._planner(self.projection, target).threshold()
        tokens = stats.estimated_tokens
        due = self.options.recap_share * threshold
        if 0 < asked_at <= tokens:  # smaller than it was then: it has been folded since
            due = max(due, asked_at + _RECAP_GROWTH * threshold)
        return self.projection.last_answer if tokens >= due else None


class _Draft:
    """A projection that takes in payloads which nobody has appended yet. The original stays as it was."""

    def __init__(self, projection: Projection) -> None:
        self.projection = projection
        self.payloads: list[EntryPayload] = []
        self._seq = projection.last_seq

    def add(self, payload: EntryPayload) -> None:
        if not self.payloads:
            self.projection = self.projection.copy()
        self._seq += 1
        self.payloads.append(payload)
        sealed = seal(
            payload,
            id=f"draft-{self._seq}",
            previous_id=None,
            previous_hash="",
            session_id="",
            seq=self._seq,
            timestamp="",
        )
        self.projection.step(sealed.entry)


def _with_screen(fold: Fold, screen: Screen | None) -> Fold:
    return fold if screen is None else msgspec.structs.replace(fold, screen=screen())


def _plain_sections(sections: Sequence[Section], screen: str | None) -> LevelOfDetailSections | None:
    live = _live(sections, screen)
    return LevelOfDetailSections(live=live, summary=[], gist=[]) if live else None


def _live(sections: Sequence[Section], screen: str | None) -> list[Section]:
    return [*sections, *([(LIVE_SCREEN, screen)] if screen else ())]


# ── the grains of what is about to be written; the hall asks for them just before an append ──


class Attached(TypedDict, total=False):
    """A text's own shorter versions, and what is shown behind it."""

    summary: str | None
    gist: str | None
    added: Sequence[Section]


def input_sections(
    projection: Projection, message: Message, **attached: Unpack[Attached]
) -> LevelOfDetailSections:
    """The grains of an input; ``added`` (its sections, LiveScreen, hints) is shown behind its live text."""
    return _sections(projection, input_text(message, attached.get("added", ())), "input", attached)


def result_sections(
    projection: Projection, content: ResultContent, **attached: Unpack[Attached]
) -> LevelOfDetailSections:
    """The grains of a tool result. What the tool's author gives wins, unless it is longer than the text."""
    return _sections(projection, content_text(content), "tool_result", attached)


def _sections(projection: Projection, text: str, kind: TextKind, attached: Attached) -> LevelOfDetailSections:
    summary, gist = attached.get("summary"), attached.get("gist")
    if summary is not None and len(summary) > len(text):
        summary = None
    if gist is not None and len(gist) > len(text):
        gist = None
    if summary is None or gist is None:
        made = make_grains(text, kind, projection.vocabulary)
        gist = (
            gist if gist is not None else (made.gist if summary is None else min(made.gist, summary, key=len))
        )
        summary = summary if summary is not None else made.summary
    return LevelOfDetailSections(
        live=list(attached.get("added", ())), summary=[("", summary)], gist=[("", gist)]
    )


def hints_section(projection: Projection, hints: JsonObject | None) -> Section | None:
    """The section that shows runtime hints, when they are not what was last shown.

    None says nothing about them; an empty object takes back what was shown.
    """
    if hints is None or (not hints and projection.shown_hints is None):
        return None
    text = encode(hints).decode()
    return None if text == projection.shown_hints else (HINTS, text)


def preview_result(
    projection: Projection, text: str, handle: str, *, window: int | None = None
) -> str | None:
    """What is sent of a result that is too long to send whole, or None when it is not.

    ``handle`` says how the model gets the rest, such as the path of the artifact that holds it. ``window`` is
    the model's own, in tokens, where the caller knows it: one result takes only a small part of it.
    """
    if is_short(projection, text):
        return None
    allowed = projection.options.preview_at
    if allowed is None:
        allowed = share_of(FoldPlanner(projection).window() if window is None else window, PREVIEW)
    limit = projection.meter.weight(allowed)
    return make_preview(text, limit, handle) if len(text.encode()) > limit else None


def is_short(projection: Projection, text: str) -> bool:
    """Whether a result is sent whole, whatever the window is."""
    if projection.options.preview_at is not None:
        return False
    return len(text.encode()) <= projection.meter.weight(_LEAST_SHARE)


def share_of(window: int | None, most: int) -> int:
    """What one result or page may take of a window: ``most`` tokens, less where the window is small."""
    return most if window is None else min(most, max(window * 3 // 40, _LEAST_SHARE))


PREVIEW = 2_500
"""Tokens above which a result is sent as a preview, where the window allows that much."""

_LEAST_SHARE = 150
"""Tokens below which an excerpt says too little."""
