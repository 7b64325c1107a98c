"""When to fold and what. Its only output is the fold entry; replaying a log never needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from turnlog.contract import AgentError, Fold, Grain, ModelInvocationDescriptor

from ._options import ModelLimits, WindowOf, fold_threshold, smallest_limits
from ._projection import Projection
from ._shrink import Aim, FoldDraft, FoldReason, shrink

MAX_OVERFLOW_STEPS = 3


class FoldPlanner:
    """Plans one fold over a projection. Looks at nothing but its arguments.

    ``screen`` renders the LiveScreen that the fold will show; it is asked when a fold is due. ``told`` is the
    window of ``target`` as its server tells it, before the log has it.
    """

    draft: ClassVar[type[FoldDraft]] = FoldDraft
    grains: ClassVar[tuple[Grain, ...]] = ("summary", "gist")
    """The levels below the text itself, in the order that a fold goes through them."""

    def __init__(
        self,
        projection: Projection,
        *,
        target: ModelInvocationDescriptor | None = None,
        window_of: WindowOf | None = None,
        screen: Callable[[], str | None] | None = None,
        told: int | None = None,
    ) -> None:
        self.projection = projection
        self._screen = screen
        self._told = told
        self._window_of = window_of
        self.options = projection.options
        self.target = target

    def plan(
        self,
        reason: FoldReason = "threshold",
        *,
        cold: bool = False,
        turn_end: bool = False,
        limits: ModelLimits | None = None,
        overflow_step: int = 0,
    ) -> Fold | None:
        """A fold, or None when there is no need or it would free too little.

        Raises ``ConfigInvalid`` when prompt and tools alone leave no room, and ``ContextOverflow`` when the
        provider refused the prompt and nothing is left to shrink.
        """
        if not self.options.fold and reason not in {"overflow", "manual"}:
            return None
        before = self.projection.tokens(self.target)
        limits = self._limits() if limits is None else limits
        self._check_head(fold_threshold(self.options, limits))
        threshold = self._threshold(limits)
        due = self._due(reason, before, threshold, cold=cold, turn_end=turn_end)
        if due is None:
            return None
        overflow_step = max(overflow_step, 1) if due == "overflow" else 0
        if overflow_step > MAX_OVERFLOW_STEPS:
            raise AgentError(
                "ContextOverflow",
                f"the prompt still does not fit after {MAX_OVERFLOW_STEPS} folds (about {before} tokens); "
                "set context.window to the model's real window, or start a new session",
            )
        draft = self.draft(self.projection, self.target)  # only now: a plan that is not due costs nothing
        aim = self._aim(due, before, threshold, overflow_step)
        least = self._least_freed(before, threshold)
        if not self._is_worth_trying(draft, aim, least):
            return None
        shrink(draft, aim)
        return self._accept(draft.finish(due, before, overflow_step), least)

    # ── whether ──

    def threshold(self) -> int:
        """H: the tokens at which a context for this target is folded."""
        return self._threshold(self._limits())

    def window(self) -> int | None:
        """The smallest window that is known or was learned of the models in use, in tokens."""
        return self._learn(self._limits()).window

    def known_limits(self) -> ModelLimits:
        """The window and the price step that hold for the models of this log, as far as they are known."""
        return self._learn(self._limits())

    def _threshold(self, limits: ModelLimits) -> int:
        return fold_threshold(self.options, self._learn(limits))

    def _limits(self) -> ModelLimits:
        return smallest_limits(self.options, self._targets(), self._window_of)

    def _targets(self) -> dict[ModelInvocationDescriptor, None]:
        targets = dict(self.projection.targets)
        if self.target is not None:
            targets[self.target] = None
        return targets

    def _learn(self, limits: ModelLimits) -> ModelLimits:
        """A provider that refused a prompt knows its window better than any table, and so does a server."""
        learned = self.projection.windows.window(self._targets(), self.projection.meter)
        if self._told is not None:
            learned = min(learned or self._told, self._told)
        if learned is None or (limits.window is not None and limits.window <= learned):
            return limits
        return ModelLimits(learned, limits.price_step)

    def _check_head(self, threshold: int) -> None:
        head = self.projection.meter.tokens(len(self.projection.head.wire), self.target)
        room = int(threshold * (1 - self.options.tail_share))
        if head > room:
            raise AgentError(
                "ConfigInvalid",
                f"the system prompt and tools take about {head} tokens; a context is folded at {threshold} "
                f"and keeps a tail, so at most {room} can go to them; "
                "shorten them, raise context.fold_at, or use a model with a larger window",
                meta={"head_tokens": head, "fold_at": threshold},
            )

    def _due(
        self, reason: FoldReason, before: int, threshold: int, *, cold: bool, turn_end: bool
    ) -> FoldReason | None:
        if reason in {"overflow", "manual"}:
            return reason
        if before >= threshold:
            return "threshold"
        if turn_end and before >= self.options.turn_end_share * threshold:
            return "turn_end"
        return "cold" if cold and before >= self.options.cold_share * threshold else None

    def _aim(self, reason: FoldReason, before: int, threshold: int, step: int) -> Aim:
        """On overflow our own count was wrong, so the aim is a share of what was refused."""
        options, head = self.options, len(self.projection.head.wire)
        base = min(before, threshold) if reason in {"overflow", "manual"} else threshold
        share = options.target_share if step < MAX_OVERFLOW_STEPS else options.target_share / 2
        whole = self.projection.meter.weight(base, self.target)
        whole = max(whole - self._shown_again(), whole // 2)
        tail = 0 if step >= MAX_OVERFLOW_STEPS else int(whole * options.tail_share)
        return Aim(
            reason=reason,
            step=step,
            target=max(int(whole * share), min(head + tail, whole * 9 // 10)),
            tail=tail,
            grains=self.grains,
            ceiling=whole if reason not in {"overflow"} else int(whole * share),
            # What was refused twice is too long in all its parts, the user's own words too.
            merge_at=int(
                self.projection.meter.weight(threshold, self.target)
                * options.merge_share
                / 2 ** max(step - 1, 0)
            ),
        )

    def _least_freed(self, before: int, threshold: int) -> int:
        """A fold breaks the cache: less than this is not worth it. In a small window even a little is."""
        share = self.options.min_freed_share
        return int(max(share * before, min(self.options.min_freed_tokens, share * threshold)))

    def _shown_again(self) -> int:
        """Bytes that the fold itself will show: room that it has to leave."""
        screen = self._screen() if self._screen is not None else None
        return len(screen.encode()) if screen else 0

    def _is_worth_trying(self, draft: FoldDraft, aim: Aim, least: int) -> bool:
        """Whether enough could be freed at best; costs a sum, before any text is made."""
        if aim.reason in {"overflow", "manual"}:
            return True
        weights = [draft.weigh(unit) for unit in draft.units]
        kept = draft.kept_from(aim.tail)
        most = sum(weights[:kept]) + max(weights[kept:], default=0)
        return self.projection.meter.tokens(most, self.target) >= least

    def _accept(self, fold: Fold, least: int) -> Fold | None:
        freed = fold.tokens_before - fold.tokens_after
        if fold.reason == "overflow":
            if freed > 0:
                return fold
            head = self.projection.meter.tokens(len(self.projection.head.wire), self.target)
            raise AgentError(
                "ContextOverflow",
                f"the prompt does not fit and nothing is left to shrink (about {fold.tokens_before} tokens, "
                f"of which {head} are system prompt and tools); shorten those, or use a model with a larger "
                "window",
            )
        if fold.reason == "manual":
            return fold if freed > 0 else None
        return fold if freed >= least else None


def plan_fold(
    projection: Projection,
    *,
    target: ModelInvocationDescriptor | None = None,
    reason: FoldReason = "threshold",
    cold: bool = False,
    turn_end: bool = False,
    limits: ModelLimits | None = None,
    overflow_step: int = 0,
) -> Fold | None:
    """:meth:`FoldPlanner.plan` over ``projection`` for a call to ``target``."""
    return FoldPlanner(projection, target=target).plan(
        reason, cold=cold, turn_end=turn_end, limits=limits, overflow_step=overflow_step
    )
