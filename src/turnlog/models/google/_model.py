"""``google:`` models: Gemini at the Developer API, at Vertex, and at servers that speak its protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnlog.contract import AgentError, Chunk, Feature, StreamStart, encode

from .._config import ModelConfig, ModelRequest
from ..http import HttpModel, HttpModelConfig
from ..http._exchange import raw_event
from ..wire import ToolNames
from ._events import ORIGIN
from ._request import GoogleConfig, RequestBuilder
from ._stream import GeminiReader
from ._turns import Form, is_third_generation, wire_name

VERTEX = "vertex"
MOST_CONTINUATIONS = 100
_RESOURCES = ("models/", "tunedModels/", "publishers/", "endpoints/")
_API_KEYS = ("AIza", "AQ.")


class GoogleModel(HttpModel[GoogleConfig]):
    """generateContent, streamed.

    The Developer API's key comes from ``api_key``, else ``GEMINI_API_KEY``, else ``GOOGLE_API_KEY``. At
    Vertex the key is an access token (``api_key``, else ``CLOUDSDK_AUTH_ACCESS_TOKEN``), or an API key. One
    that expires is better renewed by a ``client``: an ``httpx2.AsyncClient`` with its own ``auth``.
    """

    provider_id: ClassVar[str] = "google"
    specification: ClassVar[str] = "gemini"
    config_type: ClassVar[type[ModelConfig]] = GoogleConfig
    features: ClassVar[frozenset[Feature]] = frozenset(
        {
            "text",
            "tools",
            "parallel_tools",
            "forced_tool",
            "thinking",
            "images",
            "stop_sequences",
            "cache",
            "output_schema",
        }
    )
    default_base_url: ClassVar[str] = "https://generativelanguage.googleapis.com/v1beta"
    url_variables: ClassVar[tuple[str, ...]] = ("GOOGLE_GEMINI_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    vertex_key_variables: ClassVar[tuple[str, ...]] = ("CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_API_KEY")

    def __init__(self, config: GoogleConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    async def _stream(self, request: ModelRequest[GoogleConfig]) -> AsyncGenerator[Chunk, None]:
        config = request.config
        form = Form(self._platform(config), is_third_generation(config.model_id))
        headers, address = self._headers(config), self._address(config)
        body = self._builder.build(request, form)
        reader = GeminiReader(
            config.model_id,
            ToolNames(request.tool_specs, wire_name),
            origin=form.origin,
            provider=self.provider_id,
        )
        for number in range(MOST_CONTINUATIONS):
            continued = body
            if number:
                token = encode(reader.continuation)
                continued = b"".join((body[:-1], b',"continuationToken":', token, b"}"))
                reader.go_on()
            async with self._send(request, address, continued, headers) as exchange:
                if not number:
                    yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
                try:
                    async for events in exchange.sse():
                        for _, data in events:
                            if request.raw is not None:
                                request.raw.append(raw_event("", data))
                            for chunk in reader.feed(data):
                                yield chunk
                    exchange.finished()
                    if reader.cut:
                        raise exchange.unfinished()
                    if reader.continuation is None:
                        for chunk in reader.finish():
                            yield chunk
                        return
                except AgentError:
                    for chunk in reader.left():
                        yield chunk
                    raise
        raise AgentError(
            "ModelProtocolError",
            f"{config.model_id} broke its answer off {MOST_CONTINUATIONS} times to be continued",
            retryable=False,
        )

    # ── where and as whom ──

    def _platform(self, config: GoogleConfig) -> str:
        if config.platform:
            return config.platform
        host = urlsplit(config.base_url or self._client_url()).hostname or ""
        return VERTEX if config.project or "aiplatform" in host else ORIGIN

    def _client_url(self) -> str:
        return str(getattr(self._client, "base_url", ""))

    def _url(self, config: HttpModelConfig) -> str:
        """The address up to the version, or up to the location at Vertex."""
        assert isinstance(config, GoogleConfig)
        vertex = self._platform(config) == VERTEX
        where = config.location or "global"
        if vertex and not config.base_url and not self._client_url():
            url = f"https://{'' if where == 'global' else f'{where}-'}aiplatform.googleapis.com"
        else:
            url = super()._url(config)
        if not urlsplit(url).path:
            url = f"{url}/v1" if vertex else f"{url}/v1beta"
        if vertex and config.project and "/projects/" not in url:
            url = f"{url}/projects/{config.project}/locations/{where}"
        return url

    def _address(self, config: GoogleConfig) -> str:
        url, model = self._url(config), config.model_id
        if model.startswith("projects/"):
            url = url.partition("/projects/")[0]
        elif not model.startswith(_RESOURCES):
            home = "publishers/google/models" if self._platform(config) == VERTEX else "models"
            model = f"{home}/{model}"
        return f"{url}/{model}:streamGenerateContent?alt=sse"

    def _headers(self, config: GoogleConfig) -> dict[str, str]:
        headers = {"accept": "text/event-stream"}
        vertex = self._platform(config) == VERTEX
        key = self._key(config, self.vertex_key_variables if vertex else self.key_variables)
        if key:
            bearer = config.auth == "bearer" if config.auth else vertex and not key.startswith(_API_KEYS)
            headers["authorization" if bearer else "x-goog-api-key"] = f"Bearer {key}" if bearer else key
        return headers
