"""Token counts in the many spellings of OpenAI's protocols and the servers that speak them."""

from __future__ import annotations

from typing import Any, cast

from turnlog.contract import TokenUsage


def read_usage(found: dict[str, Any]) -> TokenUsage | None:
    """None for a usage object without counts."""
    given = _count(found, "prompt_tokens", "input_tokens")
    written = _count(found, "completion_tokens", "output_tokens")
    if given is None and written is None:
        return None
    given, written = given or 0, written or 0
    inputs = _table(found, "prompt_tokens_details", "input_tokens_details")
    outputs = _table(found, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(outputs, "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(found, "reasoning_tokens")
    total = _count(found, "total_tokens")
    if total is not None and reasoning and total == given + written + reasoning:
        written += reasoning  # xAI counts what was thought apart from what was said
    cached = _count(inputs, "cached_tokens")
    if cached is None:
        cached = _count(found, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    stored = _count(inputs, "cache_write_tokens", "cache_creation_tokens")
    if stored is None:
        stored = _count(found, "cache_creation_input_tokens")
    return TokenUsage(
        input_tokens=given,
        output_tokens=written,
        total_tokens=given + written if total is None else total,
        cached_input_tokens=cached,
        cache_write_tokens=stored,
        reasoning_tokens=reasoning,
        cost=_cost(found),
    )


def _count(found: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return int(value)
    return None


def _table(found: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        value = found.get(name)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return {}


def _cost(found: dict[str, Any]) -> float | None:
    value = found.get("cost")
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("total_cost")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
