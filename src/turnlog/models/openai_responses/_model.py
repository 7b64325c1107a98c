"""``openai:`` models: OpenAI's Responses API, and every server that speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnlog.contract import AgentError, Chunk, Feature, JsonObject, StreamStart

from .._config import ModelConfig, ModelRequest
from .._openai import OpenAIModel, Quirks, sees
from ..http._exchange import raw_event
from ..wire import ToolNames
from ._input import Form
from ._items import FAMILY
from ._request import OFFICIAL, OpenAIResponsesConfig, RequestBuilder
from ._stream import ResponsesReader


class OpenAIResponsesModel(OpenAIModel[OpenAIResponsesConfig]):
    """``OpenAIResponsesModel("gpt-5.2")``, or with ``base_url`` any server that speaks the protocol.

    The host says which variable holds the key and how a server differs; fields of
    :class:`OpenAIResponsesConfig` say it where the host does not. Nothing is kept at the provider unless
    ``store`` is set, and no answer leans on an earlier one by its id: each call carries all it needs.
    """

    specification: ClassVar[str] = FAMILY
    config_type: ClassVar[type[ModelConfig]] = OpenAIResponsesConfig
    features: ClassVar[frozenset[Feature]] = frozenset(
        {"text", "tools", "parallel_tools", "forced_tool", "thinking", "images", "cache", "output_schema"}
    )
    sdk_required: ClassVar[tuple[str, ...]] = ("model", "input")

    def __init__(self, config: OpenAIResponsesConfig | str | None = None, **fields: Any) -> None:
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

    async def _stream(self, request: ModelRequest[OpenAIResponsesConfig]) -> AsyncGenerator[Chunk, None]:
        config = request.config
        base, quirks = self._url(config), self._quirks(config)
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
        address, headers = _address(base, config, quirks), self._auth(config, quirks)
        async with self._send(request, address, body, headers, quirks.provider) as exchange:
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


def _form(base: str, config: OpenAIResponsesConfig, quirks: Quirks) -> Form:
    official = quirks.provider in OFFICIAL
    return Form(
        host=urlsplit(base).hostname or "",
        model=config.model_id,
        images=sees(config, quirks),
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
