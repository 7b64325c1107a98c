"""One table of models: whoever asks for a name gets the same answer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

import turnlog.contract
from turnlog.context import lookup_limits
from turnlog.contract import (
    Feature,
    ModelInvocationDescriptor,
    TokenUsage,
    cost_of,
    model_facts,
    model_prices,
)
from turnlog.models import Model, ScriptedModel
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.bedrock import BedrockModel
from turnlog.models.google import GoogleModel
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.models.openai_responses import OpenAIResponsesModel

ROOM = Path(turnlog.contract.__file__).parent


def rows(table: str) -> list[list[str]]:
    lines = (ROOM / table).read_text("utf-8").splitlines()
    return [line.split() for line in lines if line[0] != "#"]


ROWS = rows("model_table.txt")
NAMES = sorted({row[1].removeprefix("=") for row in ROWS} | {row[0] for row in rows("known_models.txt")})
ADAPTERS: list[type[Model[Any]]] = [
    AnthropicModel,
    BedrockModel,
    GoogleModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
]


@pytest.mark.spec("P-12", "C-9")
def test_no_name_has_two_answers() -> None:
    for name in NAMES:
        facts = model_facts(name)
        assert lookup_limits(name)[:2] == (facts.window, facts.price_step), name
        for adapter in ADAPTERS:
            info = adapter(name).model_info()
            assert (info.context_window, info.max_output_tokens) == (facts.window, facts.max_output), name
            assert adapter(name).window_of(adapter(name).descriptor) == facts.window


@pytest.mark.spec("P-12")
@pytest.mark.parametrize(
    ("names", "window"),
    [
        ("deepseek-chat deepseek-reasoner deepseek/deepseek-chat", 64_000),
        ("gpt-5.3 gpt-5-3 openai/gpt-5.3", 128_000),
        ("gpt-5.4 gpt-5.4-2026-03-05", 1_050_000),
        ("magistral-medium-2509 magistral-small", 131_072),
        ("devstral-2512 devstral", 262_144),
        ("kimi-k2", 131_072),
        ("glm-4.6", 200_000),
        (
            "us.anthropic.claude-sonnet-4-5-20250929-v1:0 claude-sonnet-4-5 claude-sonnet-4-5@20250929",
            200_000,
        ),
        ("amazon.nova-pro-v1:0", 300_000),
        ("meta.llama3-1-70b-instruct-v1:0", 128_000),
        ("llama-3.1-8b", 131_072),
        ("gemini-2.5-pro models/gemini-2.5-pro", 1_048_576),
        ("a-model-that-nobody-knows", None),
    ],
)
def test_windows_by_name(names: str, window: int | None) -> None:
    assert {model_facts(name).window for name in names.split()} == {window}


@pytest.mark.spec("P-12")
def test_what_is_configured_counts_before_the_table() -> None:
    for adapter in ADAPTERS:
        info = adapter("gpt-5.4", context_window=7, max_output_tokens=3).model_info()
        assert (info.context_window, info.max_output_tokens) == (7, 3)


@pytest.mark.spec("P-12", "O-2")
def test_prices_are_those_of_the_source() -> None:
    source: Any = pytest.importorskip("genai_prices")
    counts = source.Usage(
        input_tokens=10_000, output_tokens=500, cache_read_tokens=100, cache_write_tokens=50
    )
    usage = TokenUsage(
        input_tokens=10_000,
        output_tokens=500,
        total_tokens=10_500,
        cached_input_tokens=100,
        cache_write_tokens=50,
    )
    # The table has the price that holds where no hours are named; DeepSeek charges more by day.
    evening = datetime.now(UTC).replace(hour=20)
    for provider, model in [
        ("anthropic", "claude-sonnet-4-5"),
        ("openai", "gpt-5.2"),
        ("google", "gemini-2.5-pro"),
        ("deepseek", "deepseek-chat"),
        ("mistral", "mistral-large-latest"),
        ("groq", "llama-3.3-70b-versatile"),
    ]:
        target = ModelInvocationDescriptor(provider_id=provider, specification="x", model=model)
        price = source.calc_price(counts, model, provider_id=provider, genai_request_timestamp=evening)
        assert cost_of(target, usage) == pytest.approx(float(price.total_price)), model


def test_more_is_charged_above_a_step() -> None:
    below, above = (model_prices("openai", "gpt-5.4", tokens) for tokens in (272_000, 272_001))
    assert below is not None and above is not None
    assert above.input > below.input and above.output > below.output
    assert model_facts("gpt-5.4").price_step == 272_000


@pytest.mark.spec("P-10")
def test_features_have_one_name() -> None:
    for adapter in [*ADAPTERS, ScriptedModel]:
        assert adapter.features <= set(get_args(Feature)), adapter
    chat = OpenAIChatModel("gpt-5.2")
    assert chat.supports("stop_sequences") and AnthropicModel("claude-sonnet-4-5").supports("stop_sequences")
