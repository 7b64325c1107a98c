"""OpenAI Chat Completions, and every server that speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnlog.contract import Chunk, ModelInvocationDescriptor, StreamStart

from .._config import ModelConfig, ModelInfo, ModelRequest
from .._history import ToolNames
from .._http import HttpModel, HttpModelConfig, raw_event
from .._windows import window_of
from ._config import OpenAIChatConfig
from ._messages import FAMILY, Form
from ._quirks import Quirks, quirks_of
from ._request import RequestBuilder
from ._stream import ChatReader


class OpenAIChatModel(HttpModel):
    """``OpenAIChatModel("gpt-5.2")``, or with ``base_url`` any compatible server.

    The host says how a server differs and which variable holds its key (see ``HOSTS``); fields of
    :class:`OpenAIChatConfig` say it where the host does not.
    """

    provider_id: ClassVar[str] = "openai"
    specification: ClassVar[str] = FAMILY
    config_type: ClassVar[type[ModelConfig]] = OpenAIChatConfig
    features: ClassVar[frozenset[str]] = frozenset(
        {
            "text",
            "tools",
            "parallel_tools",
            "forced_tool",
            "thinking",
            "images",
            "stop",
            "cache",
            "structured",
        }
    )
    default_base_url: ClassVar[str] = "https://api.openai.com/v1"
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    sdk_required: ClassVar[tuple[str, ...]] = ("model", "messages")

    def __init__(self, config: OpenAIChatConfig | str | None = None, **fields: object) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    def _sdk_create(self, client: Any) -> Any:
        completions = getattr(getattr(client, "chat", None), "completions", None)
        return completions.with_streaming_response.create if completions is not None else None

    @property
    def descriptor(self) -> ModelInvocationDescriptor:
        config: OpenAIChatConfig = self._config
        provider = quirks_of(self._url(config), config.model_id).provider
        return ModelInvocationDescriptor(
            provider_id=provider, specification=self.specification, model=config.model_id
        )

    def model_info(self) -> ModelInfo:
        info = super().model_info()
        config: OpenAIChatConfig = self._config
        quirks = quirks_of(self._url(config), config.model_id)
        sees = quirks.images if config.images is None else config.images
        features = info.features if sees else info.features - {"images"}
        window, longest = window_of(config.model_id)
        return ModelInfo(
            provider_id=quirks.provider,
            specification=info.specification,
            model_id=info.model_id,
            context_window=config.context_window or window,
            max_output_tokens=config.max_output_tokens or longest,
            features=features,
        )

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        config: OpenAIChatConfig = request.config
        base = self._url(config)
        quirks = quirks_of(base, config.model_id)
        form = _form(base, config, quirks)
        body, digest = self._builder.build(request, form, quirks)
        reader = ChatReader(
            ToolNames(request.tool_specs),
            quirks.provider,
            origin=_origin(form, digest),
            think_tags=config.think_tags,
            keep_reasoning=form.reasoning_back != "off",
        )
        async with self._send(
            _address(base, config, quirks), body, self._auth(config, quirks), config, quirks.provider
        ) as exchange:
            yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
            async for events in exchange.sse():
                for name, data in events:
                    if request.raw is not None:
                        request.raw.append(raw_event(name, data))
                    for chunk in reader.push(data, name):
                        yield chunk
                    if reader.done:  # what a server says after the end does not count
                        break
                if reader.done:
                    exchange.finished()
                    break
            if where := reader.cut:
                raise exchange.unfinished(where)
            for chunk in reader.finish():
                yield chunk

    def _auth(self, config: HttpModelConfig, quirks: Quirks) -> dict[str, str]:
        headers = {"accept": "text/event-stream"}
        key = self._key(config, quirks.key_variables, quirks.provider)
        if key:
            headers["api-key" if quirks.azure else "authorization"] = key if quirks.azure else f"Bearer {key}"
        if isinstance(config, OpenAIChatConfig):
            if config.organization:
                headers["openai-organization"] = config.organization
            if config.project:
                headers["openai-project"] = config.project
        return headers


def _form(base: str, config: OpenAIChatConfig, quirks: Quirks) -> Form:
    return Form(
        host=urlsplit(base).hostname or "",
        model=config.model_id,
        nine_character_ids=quirks.nine_character_ids,
        images=quirks.images if config.images is None else config.images,
        reasoning_back=config.reasoning_back or quirks.reasoning_back,
    )


def _origin(form: Form, digest: str) -> dict[str, str]:
    """What marks data as this server's own; the digest binds signed thoughts to what preceded them."""
    origin = {"origin": FAMILY, "host": form.host, "model_id": form.model}
    if form.reasoning_back == "reasoning_details":
        origin["wire"] = digest
    return origin


def _address(base: str, config: OpenAIChatConfig, quirks: Quirks) -> str:
    """Where to post. Azure's older form has the deployment in its path and the version in the query."""
    if quirks.azure and not urlsplit(base).path.strip("/"):
        version = config.api_version or "2024-10-21"
        return f"{base}/openai/deployments/{config.model_id}/chat/completions?api-version={version}"
    query = f"?api-version={config.api_version}" if config.api_version else ""
    return f"{base}/chat/completions{query}"
