"""``local:`` models: llama.cpp on this machine, offline and without a key, spoken to by our own adapters."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, cast

import msgspec

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    Feature,
    JsonObject,
    ModelInvocationDescriptor,
    Secret,
    SpecificTool,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    ToolChoice,
    ToolSpec,
)

from .._base import Model
from .._config import ModelConfig, ModelInfo, ModelRequest
from ..wire import ToolNames, object_schema, safe_name
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

FAMILY = "openai-chat"
"""The protocol that a forced call is made over."""

_KEY = "forced"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


# ── a forced tool choice ──
# The server takes it as advice, or not at all; a schema it enforces, token by token. So the choice becomes a
# schema, and the JSON that answers it becomes a call.


def forced_tools(choice: ToolChoice | None, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """The tools of which ``choice`` demands one; none when the model is free."""
    if isinstance(choice, SpecificTool):
        found = [tool for tool in tools if tool.name == choice.name]
        if not found:
            names = ", ".join(tool.name for tool in tools) or "none"
            raise AgentError(
                "ModelBadRequest",
                f"the tool choice is {choice.name!r}, but the tools of this call are {names}",
            )
        return found
    return list(tools) if choice == "required" else []


def answer_schema(tools: Sequence[ToolSpec]) -> JsonObject:
    """What the answer must look like: the arguments of a single tool, or the name and arguments of one."""
    if len(tools) == 1:
        return _closed(tools[0].parameter_schema)
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": safe_name(tool.name)},
                    "arguments": _moved(
                        _closed(tool.parameter_schema), f"#/anyOf/{place}/properties/arguments"
                    ),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for place, tool in enumerate(tools)
        ]
    }


async def as_call(
    answer: AsyncIterator[Chunk], tools: Sequence[ToolSpec], names: ToolNames
) -> AsyncGenerator[Chunk, None]:
    """The chunks of ``answer``, its text as a call. A call that was cut has no end (and never runs)."""
    reader = _Reader(tools[0].name if len(tools) == 1 else None, names)
    async for chunk in answer:
        match chunk:
            case TextChunk():
                for part in reader.push(chunk.text_delta):
                    yield part
            case StreamDone():
                if chunk.finish_reason != "stop":
                    raise _cut(chunk.finish_reason)
                for part in reader.end():
                    yield part
                yield msgspec.structs.replace(chunk, finish_reason="tool_calls")
            case CallStart() | CallArgs() | CallEnd():
                # Its template may let the server see a call in the very text the schema asked for.
                raise AgentError(
                    "ModelProtocolError", "the server sent a call where a schema was to be answered"
                )
            case StreamStart() | ThinkingChunk() | TokenUsage() | StreamError():
                yield chunk


class _Reader:
    """Takes the arguments out of the answer as it grows. ``name`` is known where only one tool may be."""

    def __init__(self, name: str | None, names: ToolNames) -> None:
        self._wrapped = name is None
        self._names = names
        self._name = name
        self._text = ""
        self._begun = False
        self._sent = False

    def push(self, text: str) -> list[Chunk]:
        self._text += text
        chunks: list[Chunk] = []
        if not self._begun:
            if self._wrapped:
                head = _HEAD.match(self._text)
                if head is None:
                    return []
                self._name = self._names.ours(msgspec.json.decode(head[1], type=str))
                self._text = self._text[head.end() :]
            self._begun = True
            chunks.append(
                CallStart(tool_call_id=_KEY, tool_name=self._name or "", provider_data={"origin": FAMILY})
            )
        if not self._sent:
            self._text = self._text.lstrip()
        # The last brace closes the wrapping; which one is the last shows only at the end.
        ready = self._text.rstrip(" \t\r\n}") if self._wrapped else self._text
        self._text = self._text[len(ready) :]
        if ready:
            self._sent = True
            chunks.append(CallArgs(tool_call_id=_KEY, args_text_delta=ready))
        return chunks

    def end(self) -> list[Chunk]:
        if not self._begun:
            raise AgentError(
                "ModelProtocolError", "the answer ended before it named a tool; the model was to call one"
            )
        rest = self._text.rstrip().removesuffix("}").rstrip() if self._wrapped else ""
        last: list[Chunk] = [CallArgs(tool_call_id=_KEY, args_text_delta=rest)] if rest else []
        return [*last, CallEnd(tool_call_id=_KEY)]


def _cut(reason: str) -> AgentError:
    if reason == "length":
        return AgentError(
            "ModelProtocolError",
            "the answer hit the output limit inside its tool call; raise max_tokens or n_ctx",
            retryable=False,
        )
    return AgentError("ModelProtocolError", f"the answer stopped inside its tool call ({reason})")


def _closed(schema: JsonObject) -> JsonObject:
    """No keys beyond those named: a small model invents them where it may."""
    whole = object_schema(schema)
    return whole if "additionalProperties" in whole else {**whole, "additionalProperties": False}


def _moved(node: Any, place: str) -> Any:
    """``node`` with its references within itself written for its place in a larger schema."""
    if isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        return {
            name: _moved_reference(value, place) if name == "$ref" else _moved(value, place)
            for name, value in fields.items()
        }
    return [_moved(item, place) for item in cast("list[Any]", node)] if isinstance(node, list) else node


def _moved_reference(value: Any, place: str) -> Any:
    if isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    return _moved(value, place)


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
        window = self._config.n_ctx or self._config.context_window or self.told_window(self.descriptor)
        return msgspec.structs.replace(super().model_info(), context_window=window)

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        asks = self.model_info().context_window is None and target == self.descriptor
        return self._ask_window(self._config) if asks else None

    async def _ask_window(self, config: LocalConfig) -> None:
        """What the weights were trained for is known once the server has loaded them."""
        adapter = self._adapter("chat")
        with suppress(AgentError):  # a server that does not start fails the call, with its reason
            endpoint = await self._endpoint(config)
            adapter.update_config(base_url=f"{endpoint.base_url}/v1", api_key=Secret(endpoint.api_key))
            if (asking := adapter.ask_window(adapter.descriptor)) is not None:
                await asking

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        if target != self.descriptor:
            return None
        adapter = self._adapters.get("chat")
        return self._config.n_ctx or (adapter.told_window(adapter.descriptor) if adapter else None)

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
