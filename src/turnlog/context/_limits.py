"""How much may be sent: window sizes and price steps, and the tokens at which a context is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from turnlog.contract import ModelInvocationDescriptor, model_facts

from ._options import ContextOptions

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
