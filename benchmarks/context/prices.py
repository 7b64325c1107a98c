"""What a call costs, with what a provider charges for a prefix it has seen. Dollars for a million tokens."""

from __future__ import annotations

from typing import NamedTuple


class Price(NamedTuple):
    """``step`` is where a longer prompt costs ``step_factor`` times as much, all of it. ``marked``: only what
    an earlier request ended in or marked can be read back; others find any common beginning by themselves.
    What no call has read for ``lifetime`` seconds is cached no longer."""

    label: str
    provider: str
    model: str
    input: float
    cache_read: float
    cache_write: float
    output: float
    step: int | None = None
    step_factor: float = 2.0
    marked: bool = False
    lifetime: float = 300.0

    def cost(self, seen: float, new: float, output: float) -> float:
        total = seen * self.cache_read + new * self.cache_write
        if self.step is not None and seen + new > self.step:
            total *= self.step_factor
        return (total + output * self.output) / 1e6


BUILT_IN = (
    Price("Anthropic", "anthropic", "claude-opus-4-5", 5.0, 0.5, 6.25, 25.0, marked=True),
    Price("OpenAI", "openai", "gpt-5.2", 1.75, 0.175, 1.75, 14.0, lifetime=600),
    Price("Google", "google", "gemini-2.5-pro", 1.25, 0.125, 1.25, 10.0, 200_000),
    Price("DeepSeek", "deepseek", "deepseek-v3.2", 0.28, 0.028, 0.28, 0.42, lifetime=7200),
)
"""Public list prices; genai-prices, where it is installed, has the newer word. Lifetimes are assumptions, not
taken from the providers' pages: they matter only where a session rests, and an hour is past most of them."""


def current_prices() -> list[Price]:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return list(BUILT_IN)
    found: list[Price] = []
    for price in BUILT_IN:
        try:
            made = calc_price(Usage(input_tokens=1), price.model, provider_id=price.provider).model_price
        except LookupError:
            found.append(price)
            continue
        values = {
            "input": _plain(getattr(made, "input_mtok", None), price.input),
            "cache_read": _plain(getattr(made, "cache_read_mtok", None), price.cache_read),
            "output": _plain(getattr(made, "output_mtok", None), price.output),
        }
        write = _plain(getattr(made, "cache_write_mtok", None), values["input"])
        found.append(price._replace(**values, cache_write=write))
    return found


def _plain(value: object, fallback: float) -> float:
    """A price; of a stepped one, the first."""
    value = getattr(value, "base", value)
    return float(value) if value is not None else fallback  # type: ignore[arg-type]
