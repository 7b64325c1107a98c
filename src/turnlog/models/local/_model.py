"""``local:`` models: llama.cpp on this machine, offline and without a key, spoken to by our own adapters."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, cast

import msgspec

from turnlog.contract import AgentError, Chunk, Feature, ModelInvocationDescriptor, Secret

from .._base import Model
from .._config import ModelConfig, ModelInfo, ModelRequest
from ..wire import ToolNames
from ._forced import answer_schema, as_call, forced_tools
from ._server import (
    INSTALL,
    Endpoint,
    ServerFailed,
    ServerMissing,
    ServerRefused,
    ServerSpec,
    ensure_server,
)
from ._weights import LocalConfig, WeightsMissing, WeightsUnknown, find_template, find_weights


class _Protocol(NamedTuple):
    module: str
    name: str
    specification: str
    fields: dict[str, Any]


PROTOCOLS: dict[str, _Protocol] = {
    "chat": _Protocol("openai_chat", "OpenAIChatModel", "openai-chat", {"images": False}),
    "responses": _Protocol("openai_responses", "OpenAIResponsesModel", "openai-responses", {}),
    "messages": _Protocol("anthropic", "AnthropicModel", "anthropic-messages", {}),
}
"""``protocol`` → the adapter that speaks it."""

_SHARED = ("model_id", "temperature", "max_tokens", "top_p", "stop_sequences", "cache_config", "include_raw")


class LocalModel(Model[LocalConfig]):
    """``LocalModel()``, ``LocalModel("qwen2.5-coder-1.5b")``, ``LocalModel("./model.gguf")``.

    The first call starts the server; all models with the same weights, window and template share it. A
    forced tool choice is answered under a schema, so that even a model that never calls a tool by itself
    makes the call.
    """

    provider_id: ClassVar[str] = "local"
    specification: ClassVar[str] = "openai-chat"
    config_type: ClassVar[type[ModelConfig]] = LocalConfig
    features: ClassVar[frozenset[Feature]] = frozenset(
        {"text", "tools", "forced_tool", "output_schema", "stop_sequences"}
    )

    def __init__(self, config: LocalConfig | str | None = None, **fields: Any) -> None:
        self._adapters: dict[str, Model] = {}
        super().__init__(config or None, **fields)

    def _check_config(self, config: LocalConfig) -> None:
        if find_spec("xllamacpp") is None:
            raise AgentError(
                "PluginMissing", f"local models need xllamacpp, which is not installed; run: {INSTALL}"
            )
        _spec(config)

    @property
    def descriptor(self) -> ModelInvocationDescriptor:
        config = self._config
        return ModelInvocationDescriptor(
            provider_id=self.provider_id,
            specification=PROTOCOLS[config.protocol].specification,
            model=config.model_id,
        )

    def model_info(self) -> ModelInfo:
        window = self._config.n_ctx or self._config.context_window
        return msgspec.structs.replace(super().model_info(), context_window=window)

    async def _stream(self, request: ModelRequest[LocalConfig]) -> AsyncGenerator[Chunk, None]:
        config = request.config
        forced = forced_tools(request.tool_choice, request.tool_specs)
        names = ToolNames(request.tool_specs)
        # The other two protocols have no way to hold an answer to a schema.
        protocol = "chat" if forced or request.output_schema is not None else config.protocol
        endpoint = await self._endpoint(config)
        body: dict[str, Any] = {} if config.seed is None else {"seed": config.seed}
        if forced:
            schema = {"name": "call", "schema": answer_schema(forced)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
            # The tools are still shown, but what follows is the answer to a schema, not to be read as a call.
            request = msgspec.structs.replace(request, tool_choice="none", output_schema=None)
        adapter = self._adapter(protocol)
        inner = msgspec.structs.replace(
            request, config=_inner_config(adapter, protocol, config, endpoint, body)
        )
        answer = cast("AsyncGenerator[Chunk, None]", adapter._stream(inner))
        chunks = as_call(answer, forced, names) if forced else answer
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            for source in (chunks, answer):
                # A loop that is shut down closes all generators at once: then another is at it already.
                if not getattr(source, "ag_running", False):
                    await source.aclose()

    async def _endpoint(self, config: LocalConfig) -> Endpoint:
        """Where the server of ``config`` listens; it is started when there is none."""
        try:
            return await ensure_server(_spec(config))
        except ServerMissing as error:
            raise AgentError("PluginMissing", str(error), cause=error) from error
        except ServerRefused as error:
            raise AgentError("ConfigInvalid", str(error), cause=error) from error
        except ServerFailed as error:
            raise AgentError("ModelServerError", str(error), cause=error) from error

    def _adapter(self, protocol: str) -> Model:
        adapter = self._adapters.get(protocol)
        if adapter is None:
            wanted = PROTOCOLS[protocol]
            kind = getattr(import_module(f"..{wanted.module}", __package__), wanted.name)
            adapter = self._adapters[protocol] = kind(self._config.model_id, client=self._client)
        return adapter

    def _map_error(self, error: BaseException) -> AgentError:
        adapter = next(iter(self._adapters.values()), None)
        return super()._map_error(error) if adapter is None else adapter._map_error(error)

    async def close(self) -> None:
        for adapter in self._adapters.values():
            await adapter.close()


def _spec(config: LocalConfig) -> ServerSpec:
    try:
        weights = find_weights(config.model_id)
    except WeightsUnknown as error:
        raise AgentError("ConfigInvalid", str(error), cause=error) from error
    except WeightsMissing as error:
        raise AgentError("PluginMissing", str(error), cause=error) from error
    return ServerSpec(
        weights=weights, n_ctx=config.n_ctx, chat_template=find_template(config), threads=config.threads
    )


def _inner_config(
    adapter: Model, protocol: str, config: LocalConfig, endpoint: Endpoint, body: dict[str, Any]
) -> Any:
    kind: Any = adapter.config_type
    return kind(
        **{name: getattr(config, name) for name in _SHARED},
        **PROTOCOLS[protocol].fields,
        base_url=f"{endpoint.base_url}/v1",
        api_key=Secret(endpoint.api_key),
        # llama.cpp drops kept connections without a word: the next request would meet a dead one.
        extra_headers={"connection": "close"},
        extra_body=body or None,
    )
