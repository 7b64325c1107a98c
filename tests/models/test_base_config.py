"""Requests, configuration, the provider's own words, and names of models."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from models.yielding import (
    DONE,
    HELLO,
    START,
    Yielding,
    args,
    call_start,
    drain,
    end,
    text,
)
from turnlog.contract import (
    AgentError,
    MessageDelta,
    RequestMetadata,
    Secret,
    SpecificTool,
    decode,
    encode,
)
from turnlog.models import BUILT_IN, Model, ModelConfig, ModelRequest, load_model
from turnlog.testing import ScriptedModel, Turn

# ── requests and configuration ──


@pytest.mark.spec("P-1")
async def test_start_says_which_call_of_the_run_it_is() -> None:
    metadata = RequestMetadata(session_id="s", run_id="run_1", model_call_index=3, attempt=2)
    deltas = await drain(Yielding(START, DONE), request_metadata=metadata)
    assert {delta.run_id for delta in deltas} == {"run_1"}
    assert encode(deltas[0].payload) == b'{"modelId":"m","modelCallIndex":3,"attempt":2}'
    failed = await drain(Yielding(), request_metadata=metadata)
    assert encode(failed[0].payload) == b'{"modelId":"m","modelCallIndex":3,"attempt":2}'


@pytest.mark.spec("P-10")
async def test_parameters_of_a_call_win_over_the_configuration() -> None:
    model = Yielding(START, DONE, temperature=0.5, tool_choice="auto")
    await drain(model, temperature=1.0, seed=7, tool_choice=SpecificTool(name="add"))
    request = model.seen[0]
    assert request.config.temperature == 1.0
    assert request.params == {"seed": 7}
    assert request.tool_choice == SpecificTool(name="add")
    assert model.get_config().temperature == 0.5
    await drain(model)
    assert model.seen[1].config.temperature == 0.5
    assert model.seen[1].tool_choice == "auto"


def test_bad_parameters_raise_before_anything_is_sent() -> None:
    model = Yielding(START, DONE)
    with pytest.raises(AgentError, match="temperature is 9"):
        model.stream(HELLO, temperature=9)
    with pytest.raises(AgentError, match="takes a list of messages"):
        model.stream("hello")  # pyright: ignore[reportArgumentType]
    assert model.seen == []


@pytest.mark.spec("P-1")
def test_bad_configuration_raises_at_construction() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 3}, "temperature is 3"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": "high"}, r"Expected `float.*topP"),
        ({"wibble": 1}, r"no field 'wibble'; it has model_id, temperature"),
        ({"tool_choice": "sometimes"}, "toolChoice"),
        ({"stop_sequences": "END"}, "stopSequences"),
        ({"cache_config": {"strategy": "maybe"}}, r"cacheConfig\.strategy"),
    ]
    for fields, why in cases:
        with pytest.raises(AgentError, match=why) as caught:
            Yielding(START, **fields)
        assert caught.value.code == "ConfigInvalid"
    with pytest.raises(AgentError, match="model_id is empty"):
        ScriptedModel(model_id="")
    with pytest.raises(AgentError, match="takes a ModelConfig, not a dict"):
        Model.__init__(Yielding.__new__(Yielding), {"model_id": "m"})  # pyright: ignore[reportArgumentType]


@pytest.mark.spec("P-1")
async def test_update_config_holds_for_later_calls_only() -> None:
    model = Yielding(START, text("a"), DONE, max_tokens=10)
    stream = model.stream(HELLO)
    model.update_config(max_tokens=20)
    assert [delta.kind async for delta in stream] == ["start", "text", "done"]
    await drain(model)
    assert [request.config.max_tokens for request in model.seen] == [10, 20]
    with pytest.raises(AgentError, match="max_tokens is -1"):
        model.update_config(max_tokens=-1)
    assert model.get_config() == ModelConfig(model_id="m", max_tokens=20)


def test_model_info_and_features() -> None:
    model = Yielding()
    assert model.model_info().model_id == "m"
    assert model.supports("tools")
    assert not model.supports("telepathy")
    assert model.descriptor.specification == "third-party"


# ── the provider's own words ──


class Tapped(Yielding):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for number, chunk in enumerate(self.chunks):
            if request.raw is not None:
                request.raw.append({"event": number, "key": "sk-very-secret-value"})
            yield chunk


@pytest.mark.spec("D-9")
async def test_provider_raw_is_off_by_default_and_never_holds_a_secret() -> None:
    Secret("sk-very-secret-value")
    model = Tapped(START, text("a"), call_start("a"), args("a", "{}"), end("a"), DONE)
    assert all(delta.provider_raw is None for delta in await drain(model))
    deltas = await drain(model, include_raw=True)
    assert [delta.provider_raw for delta in deltas] == [
        {"events": [{"event": number, "key": "[secret]"}]} for number in range(6)
    ]
    failed = await drain(Tapped(START, None, include_raw=True))
    assert failed[-1].provider_raw == {"events": [{"event": 1, "key": "[secret]"}]}


# ── the catalog ──


@pytest.mark.spec("P-3")
def test_an_unknown_prefix_lists_the_known_ones() -> None:
    with pytest.raises(AgentError, match="no model prefix 'antropic'") as caught:
        load_model("antropic:claude")
    assert caught.value.code == "ConfigInvalid"
    for prefix in BUILT_IN:
        assert prefix in caught.value.message


@pytest.mark.parametrize("name", ["scripted", "scripted:", "openai", "anthropic:"])
def test_a_name_without_a_model_says_how_to_write_it(name: str) -> None:
    prefix = name.partition(":")[0]
    what = "FILE" if prefix == "scripted" else "MODEL"
    with pytest.raises(AgentError, match=f"names no model; write {prefix}:{what}"):
        load_model(name)


PLUGIN = """
from turnlog.models import ScriptedModel

class Odd(ScriptedModel):
    provider_id = "odd"

def make(name, **config):
    return Odd(["from a plugin"], model_id=name, **config)

def wrong(name, **config):
    return "not a model"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that adds prefixes, as installing it would."""
    (tmp_path / "odd_models.py").write_text(PLUGIN)
    info = tmp_path / "odd_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[turnlog.models]\nodd = odd_models:make\nwrong = odd_models:wrong\ngone = nowhere:make\n"
        "scripted = odd_models:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_models", raising=False)


@pytest.mark.spec("P-3")
@pytest.mark.usefixtures("plugin")
async def test_another_package_adds_a_prefix_through_an_entry_point(tmp_path: Path) -> None:
    model = load_model("odd:m-1:latest", temperature=0.25)
    assert model.descriptor.provider_id == "odd"
    assert model.get_config().model_id == "m-1:latest"
    assert model.get_config().temperature == 0.25
    with pytest.raises(AgentError, match="odd"):
        load_model("nothing:m")
    with pytest.raises(AgentError, match="made a str, which is no Model"):
        load_model("wrong:m")
    with pytest.raises(AgentError, match="No module named 'nowhere'") as caught:
        load_model("gone:m")
    assert caught.value.code == "PluginMissing"
    script = tmp_path / "script.json"
    script.write_text('["built in"]')
    assert load_model(f"scripted:{script}").descriptor.provider_id == "scripted"


@pytest.mark.spec("D-1")
async def test_every_kind_of_delta_reads_back() -> None:
    turn = Turn(thinking="hm", text="hello", tool_calls=[{"name": "add", "arguments": {"a": 1}}])
    deltas = await drain(ScriptedModel([turn]))
    deltas += await drain(ScriptedModel([AgentError("ModelTimeout", "slow", meta={"retry_after": 1})]))
    assert {delta.kind for delta in deltas} == {
        "start", "text", "thinking", "tool_call_start", "tool_call_args", "tool_call_end",
        "usage", "done", "error",
    }  # fmt: skip
    for delta in deltas:
        assert decode(encode(delta), MessageDelta) == delta
        assert msgspec.json.decode(encode(delta))["kind"] == delta.kind
