"""``anthropic:`` models: Anthropic, its models on other clouds, and servers that speak its protocol."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from turnlog.contract import AgentError, Feature, bare_name, model_facts

from .._base import Chunk
from .._cache import FoldCache
from .._config import ModelConfig, ModelRequest
from ..http import HttpModel
from ..http._exchange import raw_event
from ..wire import ToolNames
from ._request import AnthropicConfig, build_body
from ._stream import MessagesReader
from ._turns import Turns

_TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"
_NO_SCHEMA = re.compile(r"claude-([v123]|instant|(opus|sonnet|haiku)-(3|4(-0|-20|@|$)))")
"""Models from before answers could be held to a schema."""


class AnthropicModel(HttpModel[AnthropicConfig]):
    """The Messages API, streamed.

    ``base_url`` may name any server that speaks it, with or without ``/v1`` at the end. The key comes from
    ``api_key``, else ``ANTHROPIC_API_KEY``, else ``ANTHROPIC_AUTH_TOKEN``, which is sent as a bearer token.
    """

    provider_id: ClassVar[str] = "anthropic"
    specification: ClassVar[str] = "anthropic-messages"
    config_type: ClassVar[type[ModelConfig]] = AnthropicConfig
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
    default_base_url: ClassVar[str] = "https://api.anthropic.com"
    url_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", _TOKEN_VARIABLE)

    def __init__(self, config: AnthropicConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._turns: FoldCache[Turns] = FoldCache()

    def _check_config(self, config: AnthropicConfig) -> None:
        if config.platform == "vertex" and not config.base_url:
            raise AgentError(
                "ConfigInvalid",
                "platform 'vertex' needs base_url, up to the location: "
                "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION",
            )

    async def _stream(self, request: ModelRequest[AnthropicConfig]) -> AsyncIterator[Chunk]:
        config = request.config
        headers = self._headers(config)
        body, why = build_body(request, self._turns)
        async with self._send(request, self._address(config), body, headers) as exchange:
            reader = MessagesReader(
                config.model_id,
                names=ToolNames(request.tool_specs),
                provider=self.provider_id,
                request_id=exchange.request_id,
                reason=why,
            )
            async for events in exchange.sse():
                for name, data in events:
                    if request.raw is not None:
                        request.raw.append(raw_event(name, data))
                    for chunk in reader.feed(name, data):
                        if reader.ended:
                            exchange.finished()
                        yield chunk
                    if reader.ended:
                        return
            raise exchange.unfinished()

    def _address(self, config: AnthropicConfig) -> str:
        url = self._url(config)
        if config.platform == "vertex":
            return f"{url}/publishers/anthropic/models/{config.model_id}:streamRawPredict"
        if url.endswith("/messages"):
            return url
        return f"{url}/messages" if url.endswith("/v1") else f"{url}/v1/messages"

    def _headers(self, config: AnthropicConfig) -> dict[str, str]:
        headers = {"accept": "text/event-stream", "anthropic-version": config.anthropic_version}
        if config.betas:
            headers["anthropic-beta"] = ",".join(config.betas)
        key = self._key(config)
        if key:
            if self._sends_bearer(config, key):
                headers["authorization"] = f"Bearer {key}"
            else:
                headers["x-api-key"] = key
        return headers

    @staticmethod
    def _sends_bearer(config: AnthropicConfig, key: str) -> bool:
        if config.auth is not None:
            return config.auth == "bearer"
        return config.platform == "vertex" or (
            config.api_key is None and key == os.environ.get(_TOKEN_VARIABLE, "").strip()
        )

    def _features(self) -> frozenset[Feature]:
        model = bare_name(self._config.model_id)
        # A model that always thinks refuses to be forced to call a tool.
        lacks: set[Feature] = {"forced_tool"} if model_facts(model).thinks == "always" else set()
        if not model.startswith("claude-") or _NO_SCHEMA.match(model):
            lacks.add("output_schema")
        return self.features - lacks
