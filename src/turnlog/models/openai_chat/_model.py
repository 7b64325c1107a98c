"""OpenAI Chat Completions, and every server that speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnlog.contract import Chunk, Feature, StreamStart

from .._base import batched
from .._config import CAPABLE, ModelConfig, ModelRequest
from .._openai import OpenAIModel, Quirks, reads_files, sees
from ..wire import ToolNames
from ._request import FAMILY, Form, OpenAIChatConfig, RequestBuilder
from ._stream import ChatReader


class OpenAIChatModel(OpenAIModel[OpenAIChatConfig]):
    """``OpenAIChatModel("gpt-5.2")``, or with ``base_url`` any compatible server.

    The host says how a server differs and which variable holds its key (see ``HOSTS``); fields of
    :class:`OpenAIChatConfig` say it where the host does not.
    """

    specification: ClassVar[str] = FAMILY
    config_type: ClassVar[type[ModelConfig]] = OpenAIChatConfig
    features: ClassVar[frozenset[Feature]] = CAPABLE
    sdk_required: ClassVar[tuple[str, ...]] = ("model", "messages")

    def __init__(self, config: OpenAIChatConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    def _sdk_create(self, client: Any) -> Any:
        completions = getattr(getattr(client, "chat", None), "completions", None)
        return completions.with_streaming_response.create if completions is not None else None

    @batched
    async def _stream(self, request: ModelRequest[OpenAIChatConfig]) -> AsyncGenerator[list[Chunk], None]:
        config = request.config
        base, quirks = self._url(config), self._quirks(config)
        form = _form(base, config, quirks)
        body, digest = self._builder.build(request, form, quirks)
        reader = ChatReader(
            ToolNames(request.tool_specs),
            quirks.provider,
            origin=_origin(form, digest),
            think_tags=config.think_tags,
            keep_reasoning=form.reasoning_back != "off",
        )
        address, headers = _address(base, config, quirks), self._auth(config, quirks)
        async with self._send(request, address, body, headers, quirks.provider) as exchange:
            yield [StreamStart(model_id=config.model_id, request_id=exchange.request_id)]
            async for events in exchange.sse():
                for chunks in reader.batches(events, request.raw):
                    yield chunks
                if reader.failure is not None:
                    raise reader.failure
                if reader.ended:
                    exchange.finished()
                    break
            if where := reader.cut:
                raise exchange.unfinished(where)
            yield reader.finish()


def _form(base: str, config: OpenAIChatConfig, quirks: Quirks) -> Form:
    return Form(
        host=urlsplit(base).hostname or "",
        model=config.model_id,
        nine_character_ids=quirks.nine_character_ids,
        images=sees(config, quirks),
        files=reads_files(config, quirks),
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
