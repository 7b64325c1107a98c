"""Prices from genai-prices' offline table, when it is installed; unknown is said as None."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from turnlog.contract import ModelInvocationDescriptor, TokenUsage

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "google": "google", "bedrock": "aws"}


def cost_of(target: ModelInvocationDescriptor, usage: TokenUsage) -> float | None:
    """US dollars for ``usage`` of ``target``, or None when its price is not known."""
    if not _installed():
        return None
    prices: Any = __import__("genai_prices")
    counts = prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        found = prices.calc_price(counts, target.model, provider_id=_PROVIDERS.get(target.provider_id))
    except LookupError:
        return None
    return float(found.total_price)


@cache
def _installed() -> bool:
    return find_spec("genai_prices") is not None
