"""Every number the room uses, in one value, and what a model allows. All limits are tokens of one
estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from turnlog.contract import AgentError, ModelInvocationDescriptor, Value, model_facts


class ContextOptions(Value, frozen=True, kw_only=True):
    """How large a context may grow and how it shrinks.

    ``window`` and ``price_step`` override the table; ``fold_at`` is the ceiling that holds on any model.
    ``preview_at`` is 2,500 where it is not given, less in a small window. Shares are of the fold threshold H,
    except ``window_share`` and ``price_share``. ``recap_instructions`` tell the model what a recap has to
    keep; ``recap_wait`` is how many seconds one is waited for when a prompt did not fit.
    """

    window: int | None = None
    price_step: int | None = None
    fold_at: int = 120_000
    window_share: float = 0.75
    price_share: float = 0.95
    cold_share: float = 0.6
    recap_share: float = 0.6
    recap_instructions: str | None = None
    recap_wait: float = 20.0
    turn_end_share: float = 0.9
    target_share: float = 0.5
    tail_share: float = 0.2
    merge_share: float = 0.3
    min_freed_share: float = 0.15
    min_freed_tokens: int = 8_000
    user_cap: int = 2_000
    preview_at: int | None = None
    bytes_per_token: float = 3.45
    image_tokens: int = 1_500
    fold: bool = True

    def __post_init__(self) -> None:
        for name in ("window", "price_step", "fold_at", "user_cap", "preview_at", "image_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AgentError("ConfigInvalid", f"context.{name} is {value}; it counts tokens, at least 1")
        for name in (
            "window_share",
            "price_share",
            "cold_share",
            "recap_share",
            "target_share",
            "tail_share",
        ):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise AgentError(
                    "ConfigInvalid", f"context.{name} is {value}; it is a share, above 0 up to 1"
                )
        if not 0 <= self.recap_wait <= 600:
            raise AgentError(
                "ConfigInvalid", f"context.recap_wait is {self.recap_wait}; it may be 0 to 600 seconds"
            )
        if self.tail_share >= self.target_share:
            raise AgentError(
                "ConfigInvalid",
                f"context.tail_share {self.tail_share} is not below target_share {self.target_share}; "
                "the kept tail has to fit into what a fold leaves",
            )
        if self.bytes_per_token <= 0:
            raise AgentError("ConfigInvalid", f"context.bytes_per_token is {self.bytes_per_token}")


WindowOf: TypeAlias = Callable[[ModelInvocationDescriptor], "int | None"]
"""A model's own word on its window, in tokens; None where it has none."""


class ModelLimits(NamedTuple):
    """``window`` in tokens; above ``price_step`` the provider charges more for all of them."""

    window: int | None = None
    price_step: int | None = None


def lookup_limits(model: str) -> ModelLimits:
    """The limits of a model by name; both unknown when the table does not hold it."""
    facts = model_facts(model)
    return ModelLimits(facts.window, facts.price_step)


def smallest_limits(
    options: ContextOptions,
    targets: Iterable[ModelInvocationDescriptor],
    window_of: WindowOf | None = None,
) -> ModelLimits:
    """What holds for all of these models at once; what the options say comes first, then what ``window_of``
    knows of a model, then the table."""
    windows: list[int] = []
    steps: list[int] = []
    for target in targets:
        limits = lookup_limits(target.model)
        window = (window_of(target) if window_of is not None else None) or limits.window
        if window is not None:
            windows.append(window)
        if limits.price_step is not None:
            steps.append(limits.price_step)
    return ModelLimits(
        options.window or min(windows, default=None), options.price_step or min(steps, default=None)
    )


def fold_threshold(options: ContextOptions, limits: ModelLimits) -> int:
    """H: the tokens at which a context is folded."""
    bounds: list[float] = [options.fold_at]
    if limits.window is not None:
        bounds.append(options.window_share * limits.window)
    if limits.price_step is not None:
        bounds.append(options.price_share * limits.price_step)
    return int(min(bounds))
