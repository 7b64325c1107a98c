"""Where Gemini requests go, and as whom."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from models.google_wire import HELLO, piece, sse
from models.recorded import PlayingTransport
from turnlog.contract import AgentError
from turnlog.models import load_model
from turnlog.models.google import GoogleModel

CLOUD = "aiplatform.googleapis.com"
VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_GEMINI_BASE_URL")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


async def sent(model_id: str = "gemini-2.5-pro", base: str = "", **config: Any) -> httpx2.Request:
    """The request of one call, through a client that answers in process."""
    body = sse(piece({"text": "ok"}, finish="STOP"))
    transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [body])
    async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
        model = GoogleModel(model_id, client=client, **config)
        deltas = [delta async for delta in model.stream(HELLO)]
    assert deltas[-1].kind == "done", deltas[-1]
    return transport.requests[0]


@pytest.mark.parametrize(
    ("model_id", "config", "url"),
    [
        ("m", {}, "https://generativelanguage.googleapis.com/v1beta/models/m"),
        ("models/m", {}, "https://generativelanguage.googleapis.com/v1beta/models/m"),
        ("tunedModels/m", {}, "https://generativelanguage.googleapis.com/v1beta/tunedModels/m"),
        ("m", {"base_url": "https://proxy.test"}, "https://proxy.test/v1beta/models/m"),
        ("m", {"base_url": "https://proxy.test/v1/"}, "https://proxy.test/v1/models/m"),
        ("m", {"platform": "vertex"}, f"https://{CLOUD}/v1/publishers/google/models/m"),
        (
            "m",
            {"project": "p"},
            f"https://{CLOUD}/v1/projects/p/locations/global/publishers/google/models/m",
        ),
        (
            "m",
            {"project": "p", "location": "us-east1"},
            f"https://us-east1-{CLOUD}/v1/projects/p/locations/us-east1/publishers/google/models/m",
        ),
        (
            "m",
            {"base_url": f"https://eu-{CLOUD}/v1beta1/projects/p/locations/eu"},
            f"https://eu-{CLOUD}/v1beta1/projects/p/locations/eu/publishers/google/models/m",
        ),
        (
            "projects/p/locations/l/endpoints/7",
            {"project": "p", "location": "l"},
            f"https://l-{CLOUD}/v1/projects/p/locations/l/endpoints/7",
        ),
        (
            "publishers/google/models/m",
            {"platform": "vertex"},
            f"https://{CLOUD}/v1/publishers/google/models/m",
        ),
    ],
)
async def test_addresses(model_id: str, config: dict[str, Any], url: str) -> None:
    request = await sent(model_id, **config)
    assert str(request.url) == f"{url}:streamGenerateContent?alt=sse"


async def test_a_client_brings_its_address() -> None:
    request = await sent(base=f"https://{CLOUD}/v1/projects/p/locations/l")
    assert (
        request.url.path
        == "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:streamGenerateContent"
    )
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("config", "header", "value"),
    [
        ({"api_key": "secret-one"}, "x-goog-api-key", "secret-one"),
        ({"api_key": "secret-one", "auth": "bearer"}, "authorization", "Bearer secret-one"),
        ({"api_key": "ya29.secret", "project": "p"}, "authorization", "Bearer ya29.secret"),
        ({"api_key": "AIzaSecretOne", "platform": "vertex"}, "x-goog-api-key", "AIzaSecretOne"),
        ({"api_key": "secret-one", "project": "p", "auth": "api-key"}, "x-goog-api-key", "secret-one"),
    ],
)
async def test_how_the_key_is_sent(config: dict[str, Any], header: str, value: str) -> None:
    request = await sent(**config)
    assert request.headers[header] == value
    assert len({"authorization", "x-goog-api-key"} & set(request.headers)) == 1
    assert "key" not in str(request.url.query)


def key_of(**config: Any) -> str | None:
    model = GoogleModel("m", **config)
    headers = model._headers(model.get_config())  # pyright: ignore[reportPrivateUsage]
    return headers.get("x-goog-api-key") or headers.get("authorization")


@pytest.mark.spec("P-3")
def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "second-secret")
    assert key_of() == "second-secret"
    monkeypatch.setenv("GEMINI_API_KEY", "first-secret")
    assert key_of() == "first-secret"
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "ya29.third-secret")
    assert key_of(project="p") == "Bearer ya29.third-secret"
    assert key_of() == "first-secret"


@pytest.mark.spec("E-2")
def test_no_key() -> None:
    with pytest.raises(AgentError, match="GEMINI_API_KEY or GOOGLE_API_KEY") as caught:
        key_of()
    assert caught.value.code == "ModelAuthError"


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": True},
        {"thinking": "much"},
        {"thinking": -2},
        {"platform": "google", "project": "p"},
        {"platform": "azure"},
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentError) as caught:
        GoogleModel("m", **fields)
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.spec("P-3")
@pytest.mark.parametrize(
    ("name", "window", "longest"),
    [
        ("gemini-2.5-flash", 1_048_576, 65_536),
        ("models/gemini-3.1-pro-preview", 1_048_576, 65_536),
        ("gemini-1.5-pro-002", 2_097_152, 8_192),
        ("something-else", None, None),
    ],
)
def test_it_loads_by_name(name: str, window: int | None, longest: int | None) -> None:
    model = load_model(f"google:{name}")
    assert isinstance(model, GoogleModel)
    info = model.model_info()
    assert (info.context_window, info.max_output_tokens) == (window, longest)
    assert (info.provider_id, info.specification) == ("google", "gemini")
    assert model.supports("images") and model.supports("forced_tool")
