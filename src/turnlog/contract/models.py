"""What is known of models by name: windows, output limits, thinking, prices. One table, asked by everyone.

The rows come from a generated table, ``model_table.txt``; ``known_models.txt`` is kept by hand and holds what
that one does not say, or has wrong. The longest beginning of a name that a row has decides, field by field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from ._base import JsonObject, Value
from .run import ModelInvocationDescriptor, TokenUsage

Thinks: TypeAlias = Literal["never", "when asked", "by default", "always"]

Feature: TypeAlias = Literal[
    "text",
    "tools",
    "parallel_tools",
    "forced_tool",
    "thinking",
    "images",
    "files",
    "stop_sequences",
    "cache",
    "output_schema",
]
"""What a model can do, as ``Model.supports`` is asked for it."""


class ModelFacts(NamedTuple):
    """None where nothing is known. ``window`` and ``max_output`` are in tokens; above ``price_step`` tokens
    of input the provider charges more for all of them."""

    window: int | None = None
    max_output: int | None = None
    thinks: Thinks | None = None
    price_step: int | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars for a million tokens; None where a kind is charged like plain input."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None

    def charge(self, usage: TokenUsage) -> float | None:
        """US dollars for ``usage``; None for counts that cannot be, as some servers send."""
        cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        plain = usage.input_tokens - cached - written
        if min(plain, cached, written, usage.output_tokens) < 0:
            return None
        total = plain * self.input + usage.output_tokens * self.output
        total += cached * (self.input if self.cached is None else self.cached)
        total += written * (self.input if self.written is None else self.written)
        return total / 1_000_000


class _Row(NamedTuple):
    provider: str
    name: str
    exact: bool
    window: int | None
    prices: Prices | None
    step: int | None
    above: Prices | None


_THINKS: dict[str, Thinks] = {
    "never": "never",
    "asked": "when asked",
    "default": "by default",
    "always": "always",
}
_SERVERS = frozenset({"aws", "azure", "cerebras", "groq", "fireworks", "together"})
"""Who serves models of others: what the makers say of a window counts before them."""

_REGIONS = r"(?:us|eu|apac|jp|au|ca|sa|me|af|global|us-gov)"
_VENDORS = (
    r"(?:anthropic|openai|meta|mistral|qwen|deepseek|google|amazon|cohere|moonshot|moonshotai|minimax|zai)"
)
_PREFIX = re.compile(rf"^(?:{_REGIONS}\.)?(?:{_VENDORS}\.)?")
_DATED = re.compile(r"[-@](?:\d{4}-\d\d-\d\d|\d{8}|latest)(?:-v\d+)?$|-v\d+$")


@lru_cache(maxsize=1024)
def bare_name(model: str) -> str:
    """A model's own name: without who serves it, a region or a vendor before it, dots written as dashes."""
    name = model.lower().rsplit("/", 1)[-1]
    name = _PREFIX.sub("", name)
    return re.sub(r":\d+$", "", name).replace(".", "-")


@lru_cache(maxsize=1024)
def model_facts(model: str) -> ModelFacts:
    """What is known of ``model``, at any provider."""
    name = bare_name(model)
    ours = max((key for key in _ours() if _begins(name, key)), key=len, default="")
    facts = _ours().get(ours, ModelFacts())
    rows = [row for row in _rows(name) if row.window is not None or row.step is not None]
    makers = [row for row in rows if row.provider not in _SERVERS]
    found = _best(name, makers) or _best(name, rows)
    if found is None:
        return facts
    window = (
        found.window if found.window and (len(found.name) > len(ours) or not facts.window) else facts.window
    )
    return facts._replace(window=window, price_step=found.step)


def model_prices(provider: str, model: str, input_tokens: int = 0) -> Prices | None:
    """What ``provider`` charges for a call of ``model`` that reads so many tokens; None when unknown."""
    found = _priced(provider, model)
    if found is None:
        return None
    return found.above if found.above and found.step and input_tokens > found.step else found.prices


@lru_cache(maxsize=1024)
def _priced(provider: str, model: str) -> _Row | None:
    name = bare_name(model)
    rows = [row for row in _rows(name) if row.provider == provider and row.prices is not None]
    return _best(name, rows, strict=True) or _best(_DATED.sub("", name), rows, strict=True)


def _begins(name: str, key: str) -> bool:
    """Whether ``name`` is ``key``, or continues it with a suffix of its own."""
    return name.startswith(key) and (key[-1] == "-" or not name[len(key) : len(key) + 1].isalnum())


def _best(name: str, rows: list[_Row], *, strict: bool = False) -> _Row | None:
    """The first row of the longest name that fits; one that is exact fits other names only at a border."""
    best: _Row | None = None
    for row in rows:
        if not name.startswith(row.name) or (best is not None and len(row.name) <= len(best.name)):
            continue
        rest = name[len(row.name) :]
        if not row.exact or not rest or (not strict and not rest[0].isalnum()):
            best = row
    return best


@cache
def _ours() -> dict[str, ModelFacts]:
    found: dict[str, ModelFacts] = {}
    for name, window, *more in _lines("known_models.txt"):
        most = int(more[0]) if more else None
        found[name] = ModelFacts(int(window), most, _THINKS[more[1]] if len(more) > 1 else None)
    return found


@cache
def _lines(name: str) -> list[list[str]]:
    """The words of each line of a table beside this file, which is read when first asked for."""
    loader: Any = __loader__
    data: bytes = loader.get_data(__file__.rpartition("models")[0] + name)
    return [line.split() for line in data.decode().splitlines() if line[0] != "#"]


def _rows(name: str) -> list[_Row]:
    """The rows that ``name`` begins with."""
    return [_row(words) for words in _lines("model_table.txt") if name.startswith(words[1].removeprefix("="))]


def _row(words: Sequence[str]) -> _Row:
    provider, name, window, *rest = words
    numbers = [None if word == "-" else float(word) for word in rest]
    numbers += [None] * (9 - len(numbers))
    return _Row(
        provider,
        name.removeprefix("="),
        name.startswith("="),
        None if window == "-" else int(window),
        _prices(numbers[:4]),
        int(numbers[4]) if numbers[4] is not None else None,
        _prices(numbers[5:9]),
    )


def _prices(numbers: list[float | None]) -> Prices | None:
    read, cached, written, answered = numbers
    if read is None:
        return None
    return Prices(input=read, cached=cached, written=written, output=answered or 0.0)


# ── what is sent to one, and what it costs ──


class ModelParams(Value, frozen=True, kw_only=True):
    """What is sent with the calls of a run. A field that is not given is left to the model's configuration.

    ``thinking`` is a budget in tokens or a word (``low``, ``high``, ``adaptive``, ``disabled``, …), as the
    model takes it. ``extra`` holds the provider's own parameters, as its adapter documents them.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    thinking: int | str | None = None
    extra: JsonObject | None = None

    def to_fields(self) -> JsonObject:
        """Keyword arguments of ``Model.stream``: those that are set, the provider's own among them."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "extra"}
        return {**{name: value for name, value in given.items() if value is not None}, **(self.extra or {})}


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
    for provider in _LISTED_UNDER.get(target.provider_id, (target.provider_id,)):
        prices = model_prices(provider, target.model, usage.input_tokens)
        if prices is not None:
            return prices.charge(usage)
    return None
