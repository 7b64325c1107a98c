"""What a call costs, by the table of models; unknown is said as None."""

from __future__ import annotations

from turnlog.contract import ModelInvocationDescriptor, TokenUsage, model_prices

_LISTED_UNDER = {
    "bedrock": ("aws",),
    "xai": ("x-ai",),
    "moonshot": ("moonshotai",),
    "azure": ("azure", "openai"),
    "zai": ("zai", "zhipuai"),
}
"""Our names of providers where the table has others; the first one that knows a model decides."""


def cost_of(target: ModelInvocationDescriptor, usage: TokenUsage) -> float | None:
    """US dollars for ``usage`` of ``target``, or None when its price is not known.

    A model's name alone is not enough: a server of one's own may use it too.
    """
    cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    plain = usage.input_tokens - cached - written
    if min(plain, cached, written, usage.output_tokens) < 0:
        return None  # counts that cannot be, as some servers send
    for provider in _LISTED_UNDER.get(target.provider_id, (target.provider_id,)):
        prices = model_prices(provider, target.model, usage.input_tokens)
        if prices is not None:
            total = plain * prices.input + usage.output_tokens * prices.output
            total += cached * (prices.input if prices.cached is None else prices.cached)
            total += written * (prices.input if prices.written is None else prices.written)
            return total / 1_000_000
    return None
