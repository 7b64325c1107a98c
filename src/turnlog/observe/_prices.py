"""Prices from genai-prices' offline table, when it is installed; unknown is said as None."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from turnlog.contract import ModelInvocationDescriptor, TokenUsage

_PROVIDERS = {"bedrock": "aws", "xai": "x-ai", "moonshot": "moonshotai"}
"""Our names of providers where the table has others."""


def cost_of(target: ModelInvocationDescriptor, usage: TokenUsage) -> float | None:
    """US dollars for ``usage`` of ``target``, or None when its price is not known."""
    if not _installed():
        return None
    prices: Any = __import__("genai_prices")
    provider = _PROVIDERS.get(target.provider_id, target.provider_id)
    if provider not in _known_providers():
        return None  # it would be guessed from the model's name, which a server of one's own may use too
    try:
        counts = prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_input_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        found = prices.calc_price(counts, target.model, provider_id=provider)
    except (LookupError, ValueError):  # not in the table; or counts that cannot be, as some servers send
        return None
    return float(found.total_price)


@cache
def _installed() -> bool:
    return find_spec("genai_prices") is not None


@cache
def _known_providers() -> frozenset[str]:
    data: Any = import_module("genai_prices.data")
    return frozenset(provider.id for provider in data.providers)
