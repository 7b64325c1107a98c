"""Where requests go, and with which key."""

from __future__ import annotations

import pytest

from models.anthropic_wire import (
    HELLO,
    anthropic,
    begin,
    end,
    sse,
    text,
)
from turnlog.contract import DoneDelta
from turnlog.models.anthropic import AnthropicModel
from turnlog.testing import Loopback, LoopbackAnswer


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/v1/messages"),
        ("/v1", "/v1/messages"),
        ("/anthropic/", "/anthropic/v1/messages"),
        ("/x/v1/messages", "/x/v1/messages"),
    ],
)
async def test_addresses(suffix: str, path: str) -> None:
    async with Loopback(LoopbackAnswer.sse(b"")) as server:
        model = AnthropicModel("m", base_url=server.url + suffix, api_key="key-123456", betas=["b1", "b2"])
        _ = [delta async for delta in model.stream(HELLO)]
        await model.close()
    request = server.requests[0]
    assert request.path == path
    assert request.headers["x-api-key"] == "key-123456"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["anthropic-beta"] == "b1,b2"
    assert "authorization" not in request.headers


async def test_vertex() -> None:
    async with Loopback(LoopbackAnswer.sse(b"")) as server:
        base = f"{server.url}/v1/projects/p/locations/l"
        model = AnthropicModel(
            "claude-opus-4-1@20250805", base_url=base, api_key="token-1234", platform="vertex"
        )
        _ = [delta async for delta in model.stream(HELLO)]
        await model.close()
    request = server.requests[0]
    assert request.path.endswith("/publishers/anthropic/models/claude-opus-4-1@20250805:streamRawPredict")
    assert request.headers["authorization"] == "Bearer token-1234"
    assert request.json["anthropic_version"] == "vertex-2023-10-16"
    assert "model" not in request.json


async def test_a_token_of_the_environment_is_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment")
    async with Loopback(LoopbackAnswer.sse(b"")) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        model = AnthropicModel("claude-sonnet-4-5")
        _ = [delta async for delta in model.stream(HELLO)]
        await model.close()
    assert server.requests[0].headers["authorization"] == "Bearer token-of-the-environment"


async def test_no_key_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    deltas = [delta async for delta in AnthropicModel("claude-sonnet-4-5").stream(HELLO)]
    error = deltas[-1].payload
    assert error.error_code == "ModelAuthError"  # type: ignore[union-attr]
    assert "ANTHROPIC_API_KEY" in error.message  # type: ignore[union-attr]


async def test_a_connection_is_used_again() -> None:
    answer = LoopbackAnswer.sse(sse(begin(), *text(0, "ok"), *end("end_turn")))
    async with Loopback(answer) as server:
        model = anthropic(server)
        for _ in range(3):
            deltas = [delta async for delta in model.stream(HELLO)]
            assert isinstance(deltas[-1], DoneDelta)
        assert server.connections == 1
        await model.close()
