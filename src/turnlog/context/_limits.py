"""Window sizes and price steps of well-known models. Data: the longest matching beginning wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from turnlog.contract import ModelInvocationDescriptor

from ._options import ContextOptions

WindowOf: TypeAlias = Callable[[ModelInvocationDescriptor], "int | None"]
"""A model's own word on its window, in tokens; None where it has none."""


class ModelLimits(NamedTuple):
    """``window`` in tokens; above ``price_step`` the provider charges more for all of them."""

    window: int | None = None
    price_step: int | None = None


LIMITS: dict[str, ModelLimits] = {
    "claude": ModelLimits(200_000),
    "claude-fable-5": ModelLimits(1_000_000),
    "claude-haiku-5": ModelLimits(1_000_000, 100_000),
    "claude-opus-4-6": ModelLimits(1_000_000, 200_000),
    "claude-opus-4-7": ModelLimits(1_000_000),
    "claude-opus-4-8": ModelLimits(1_000_000),
    "claude-opus-5": ModelLimits(1_000_000),
    "claude-sonnet-4-5": ModelLimits(200_000, 200_000),
    "claude-sonnet-4-6": ModelLimits(1_000_000, 200_000),
    "claude-sonnet-5": ModelLimits(1_000_000),
    "codestral": ModelLimits(256_000),
    "deepseek": ModelLimits(128_000),
    "deepseek-chat": ModelLimits(64_000),
    "deepseek-reasoner": ModelLimits(64_000),
    "deepseek-v4": ModelLimits(1_000_000),
    "devstral": ModelLimits(256_000),
    "gemini": ModelLimits(1_000_000),
    "gemini-1.5": ModelLimits(1_000_000, 128_000),
    "gemini-2.5-pro": ModelLimits(1_000_000, 200_000),
    "gemini-3-pro": ModelLimits(1_000_000, 200_000),
    "gemini-3.1-pro": ModelLimits(1_000_000, 200_000),
    "gemma-3": ModelLimits(128_000),
    "gemma-4": ModelLimits(262_144),
    "glm-4": ModelLimits(128_000),
    "glm-5": ModelLimits(200_000),
    "gpt-3.5": ModelLimits(16_385),
    "gpt-4": ModelLimits(8_192),
    "gpt-4-turbo": ModelLimits(128_000),
    "gpt-4.1": ModelLimits(1_000_000),
    "gpt-4o": ModelLimits(128_000),
    "gpt-5": ModelLimits(400_000),
    "gpt-5.3": ModelLimits(128_000),
    "gpt-5.3-codex": ModelLimits(400_000),
    "gpt-5.4": ModelLimits(1_050_000, 272_000),
    "gpt-5.4-mini": ModelLimits(400_000),
    "gpt-5.4-nano": ModelLimits(400_000),
    "gpt-5.5": ModelLimits(1_000_000, 272_000),
    "gpt-5.6": ModelLimits(1_050_000, 272_000),
    "gpt-6": ModelLimits(1_050_000, 272_000),
    "gpt-oss": ModelLimits(131_072),
    "grok-3": ModelLimits(131_072),
    "grok-4": ModelLimits(256_000),
    "grok-4.": ModelLimits(500_000, 199_999),
    "grok-4-1-fast": ModelLimits(2_000_000),
    "grok-4-fast": ModelLimits(2_000_000),
    "grok-code": ModelLimits(256_000),
    "kimi-k2": ModelLimits(131_072),
    "kimi-k2.": ModelLimits(262_144),
    "kimi-k3": ModelLimits(1_000_000),
    "llama-3": ModelLimits(131_072),
    "llama-4": ModelLimits(131_072),
    "magistral": ModelLimits(128_000),
    "ministral": ModelLimits(128_000),
    "mistral": ModelLimits(128_000),
    "mistral-large": ModelLimits(256_000),
    "o1": ModelLimits(200_000),
    "o1-mini": ModelLimits(128_000),
    "o3": ModelLimits(200_000),
    "o4": ModelLimits(200_000),
    "qwen": ModelLimits(32_000),
    "qwen3": ModelLimits(131_072),
}
"""By the beginning of the model's own name, without vendor or region before it."""


def lookup_limits(model: str) -> ModelLimits:
    """The limits of a model by name; both unknown when the table does not hold it."""
    name = model.lower().rsplit("/", 1)[-1]
    for vendor in ("anthropic.", "openai.", "meta.", "mistral.", "qwen.", "deepseek.", "google.", "amazon."):
        _, found, rest = name.partition(vendor)
        if found:
            name = rest
    best = max((key for key in LIMITS if name.startswith(key)), key=len, default="")
    return LIMITS.get(best, ModelLimits())


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
