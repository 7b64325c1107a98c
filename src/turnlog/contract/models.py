"""What is known of models by name: windows, output limits, thinking, prices. One table, asked by everyone.

The rows come from a generated table, ``model_table.txt``; ``KNOWN_BETTER`` is kept by hand and holds what
that one does not say, or has wrong. The longest beginning of a name that a row has decides, field by field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

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


class Prices(NamedTuple):
    """US dollars for a million tokens; None where a kind is charged like plain input."""

    input: float
    cached: float | None
    written: float | None
    output: float


class _Row(NamedTuple):
    provider: str
    name: str
    exact: bool
    window: int | None
    prices: Prices | None
    step: int | None
    above: Prices | None


KNOWN_BETTER = """
claude              200000   8192 asked
claude-3-           200000   4096 never
claude-3-5-         200000   8192 never
claude-3-7-         200000  64000 asked
claude-opus-4       200000  32000 asked
claude-sonnet-4     200000  64000 asked
claude-haiku-4      200000  64000 asked
claude-opus-4-5     200000  64000 asked
claude-opus-4-6    1000000 128000 asked
claude-opus-4-7    1000000 128000 asked
claude-opus-4-8    1000000 128000 asked
claude-opus-4-9    1000000 128000 asked
claude-sonnet-4-6  1000000 128000 asked
claude-sonnet-4-7  1000000 128000 asked
claude-sonnet-4-8  1000000 128000 asked
claude-opus-5      1000000 128000 default
claude-opus-5-5    1000000 128000 always
claude-opus-6      1000000 128000 default
claude-sonnet-5    1000000 128000 default
claude-sonnet-6    1000000 128000 default
claude-haiku-5     1000000 128000 default
claude-haiku-6     1000000 128000 default
claude-fable       1000000 128000 always
claude-mythos      1000000 128000 always
codestral           256000
command-r           128000   4096
deepseek            128000
deepseek-chat        64000
deepseek-reasoner    64000
deepseek-v3         128000
deepseek-v4        1000000
devstral            262144
devstral-small-2505 131072
devstral-small-2507 131072
gemini             1048576  65536
gemini-1-0           32768   8192
gemini-1-5         1048576   8192
gemini-1-5-pro     2097152   8192
gemini-2-0         1048576   8192
gemini-2-5-flash-image    65536 32768
gemini-2-5-flash-image-preview 65536 32768
gemini-3-pro-image        65536 32768
gemini-3-pro-image-preview     65536 32768
gemini-3-1-flash-image    65536 32768
gemini-3-1-flash-image-preview 65536 32768
gemma               131072   8192
gemma-3n             32768   8192
gemma-4             262144
glm-4               128000
glm-4-6             200000
glm-4-6v            128000
glm-4-7             200000
glm-5               200000
glm-5-2            1000000
glm-5-3            1000000
gpt-3-5              16385   4096
gpt-4                 8192
gpt-4-1            1000000  32768
gpt-4-turbo         128000   4096
gpt-4o              128000  16384
gpt-5               400000 128000
gpt-5-chat          128000  16384
gpt-5-1-chat        128000  16384
gpt-5-2-chat        128000  16384
gpt-5-3             128000 128000
gpt-5-3-chat        128000  16384
gpt-5-3-codex       400000 128000
gpt-5-4            1050000 128000
gpt-5-4-mini        400000 128000
gpt-5-4-nano        400000 128000
gpt-5-5            1000000 128000
gpt-5-6            1050000 128000
gpt-6              1050000 128000
gpt-oss             131072
grok-3              131072
grok-4              256000
grok-4-1-fast      2000000
grok-4-fast        2000000
grok-code           256000
kimi-k2             131072
kimi-k2-5           262144
kimi-k2-6           262144
kimi-k2-7           262144
kimi-k3            1048576
llama-3               8192
llama3                8192
llama-3-1           131072
llama3-1            131072
llama-3-2           131072
llama3-2            131072
llama-3-3           131072
llama3-3            131072
llama-4             131072
llama4              131072
magistral           131072
ministral           131072
mistral             131072
mistral-7b           32768
mistral-large-2512  262144
mistral-large-4    1048576
mistral-medium-3    131072
mixtral              32768
mixtral-8x22b        65536
nova                300000  10000
nova-micro          128000  10000
o1                  200000 100000
o1-mini             128000  65536
o1-preview          128000  32768
o3                  200000 100000
o4                  200000 100000
pixtral             131072
qwen                 32768
qwen2                32768
qwen2-5              32768
qwen3               131072
sonar               127072
"""
"""How a name begins, window, longest answer, whether it thinks: this holds until a longer row says more."""

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
    """What is known of ``model``, whoever serves it."""
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
    """Whether ``name`` is ``key``, or goes on after it with something of its own."""
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
    for line in KNOWN_BETTER.split("\n"):
        if line:
            name, window, *more = line.split()
            most = int(more[0]) if more else None
            found[name] = ModelFacts(int(window), most, _THINKS[more[1]] if len(more) > 1 else None)
    return found


@cache
def _table() -> list[list[str]]:
    """The words of each line of the generated table, which is read when first asked for."""
    loader: Any = __loader__
    data: bytes = loader.get_data(__file__.rpartition("models")[0] + "model_table.txt")
    return [line.split() for line in data.decode().splitlines() if line[0] != "#"]


def _rows(name: str) -> list[_Row]:
    """The rows that ``name`` begins with."""
    return [_row(words) for words in _table() if name.startswith(words[1].removeprefix("="))]


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
    return None if read is None else Prices(read, cached, written, answered or 0.0)
