"""``openai:`` models: OpenAI's Responses API, and every server that speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnlog.contract import AgentError, Chunk, JsonObject, ModelInvocationDescriptor, StreamStart

from .._config import ModelConfig, ModelInfo, ModelRequest
from .._history import ToolNames
from .._http import HttpModel, raw_event
from .._windows import window_of
from ..openai_chat import Quirks, quirks_of
from ._config import OpenAIResponsesConfig
from ._input import Form
from ._items import FAMILY
from ._request import OFFICIAL, RequestBuilder
from ._stream import ResponsesReader


class OpenAIResponsesModel(HttpModel):
    """``OpenAIResponsesModel("gpt-5.2")``, or with ``base_url`` any server that speaks the protocol.

    The host says which variable holds the key and how a server differs; fields of
    :class:`OpenAIResponsesConfig` say it where the host does not. Nothing is kept at the provider unless
    ``store`` is set, and no answer leans on an earlier one by its id: each call carries all it needs.
    """

    provider_id: ClassVar[str] = "openai"
    specification: ClassVar[str] = FAMILY
    config_type: ClassVar[type[ModelConfig]] = OpenAIResponsesConfig
    features: ClassVar[frozenset[str]] = frozenset(
        {"text", "tools", "parallel_tools", "forced_tool", "thinking", "images", "cache", "structured"}
    )
    default_base_url: ClassVar[str] = "https://api.openai.com/v1"
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    sdk_required: ClassVar[tuple[str, ...]] = ("model", "input")

    def __init__(self, config: OpenAIResponsesConfig | str | None = None, **fields: object) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    def _sdk_create(self, client: Any) -> Any:
        responses = getattr(client, "responses", None)
        return responses.with_streaming_response.create if responses is not None else None

    def _check_config(self, config: OpenAIResponsesConfig) -> None:
        if config.stop_sequences and self._quirks(config).provider in OFFICIAL:
            raise AgentError(
                "ConfigInvalid",
                "stop_sequences: the Responses API of OpenAI and Azure has none; leave them out, "
                f"or use openai-chat:{config.model_id}",
            )

    def _quirks(self, config: OpenAIResponsesConfig) -> Quirks:
        return quirks_of(self._url(config), config.model_id)

    @property
    def descriptor(self) -> ModelInvocationDescriptor:
        config: OpenAIResponsesConfig = self._config
        return ModelInvocationDescriptor(
            provider_id=self._quirks(config).provider, specification=FAMILY, model=config.model_id
        )

    def model_info(self) -> ModelInfo:
        config: OpenAIResponsesConfig = self._config
        quirks = self._quirks(config)
        window, longest = window_of(config.model_id)
        sees = quirks.images if config.images is None else config.images
        return ModelInfo(
            provider_id=quirks.provider,
            specification=FAMILY,
            model_id=config.model_id,
            context_window=config.context_window or window,
            max_output_tokens=config.max_output_tokens or longest,
            features=self.features if sees else self.features - {"images"},
        )

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        config: OpenAIResponsesConfig = request.config
        base = self._url(config)
        quirks = quirks_of(base, config.model_id)
        form = _form(base, config, quirks)
        body, digest = self._builder.build(request, form, quirks.provider)
        reader = ResponsesReader(
            config.model_id,
            names=ToolNames(request.tool_specs),
            provider=quirks.provider,
            origin=_origin(form, digest),
            stored=config.store,
            limit=config.max_tokens,
        )
        address = _address(base, config, quirks)
        async with self._send(address, body, self._auth(config, quirks), config, quirks.provider) as exchange:
            yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
            async for events in exchange.sse():
                for name, data in events:
                    if request.raw is not None:
                        request.raw.append(raw_event(name, data))
                    chunks = reader.push(name, data)
                    if reader.ended:
                        exchange.finished()
                    for chunk in chunks:
                        yield chunk
                    if reader.ended:
                        return
            raise exchange.unfinished()

    def _auth(self, config: OpenAIResponsesConfig, quirks: Quirks) -> dict[str, str]:
        headers = {"accept": "text/event-stream"}
        key = self._key(config, quirks.key_variables, quirks.provider)
        if key:
            headers["api-key" if quirks.azure else "authorization"] = key if quirks.azure else f"Bearer {key}"
        if config.organization:
            headers["openai-organization"] = config.organization
        if config.project:
            headers["openai-project"] = config.project
        return headers


def _form(base: str, config: OpenAIResponsesConfig, quirks: Quirks) -> Form:
    official = quirks.provider in OFFICIAL
    return Form(
        host=urlsplit(base).hostname or "",
        model=config.model_id,
        images=quirks.images if config.images is None else config.images,
        image_results=official if config.image_results is None else config.image_results,
        # Azure refuses the ids of items that it did not keep.
        item_ids=config.store or not quirks.azure if config.item_ids is None else config.item_ids,
        runs_custom_tools=quirks.provider == "xai",
    )


def _origin(form: Form, digest: str) -> JsonObject:
    """What marks data as this server's and model's own, over the wire that preceded it."""
    return {"origin": FAMILY, "host": form.host, "model_id": form.model, "wire": digest}


def _address(base: str, config: OpenAIResponsesConfig, quirks: Quirks) -> str:
    """Where to post. Azure has its path below ``/openai``, in an older form with a version in the query."""
    query = f"?api-version={config.api_version}" if config.api_version else ""
    if quirks.azure and not urlsplit(base).path.strip("/"):
        return f"{base}/openai/responses{query}" if query else f"{base}/openai/v1/responses"
    return f"{base}{query}" if base.endswith("/responses") else f"{base}/responses{query}"
