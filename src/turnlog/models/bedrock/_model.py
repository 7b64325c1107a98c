"""``bedrock:`` models: Amazon's Converse API through a botocore client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, ClassVar

from turnlog.contract import AgentError, Feature, JsonObject, SpecificTool, ToolSpec, encode

from .._answer import as_object, as_text
from .._base import Chunk, Model, batched
from .._config import CAPABLE, ModelConfig, ModelRequest
from .._turns import LOST_THOUGHTS, FoldCache, cache_mark
from ..wire import ToolNames, closed_schema, is_strict, object_schema, safe_name, schema_name, split_system
from ._client import Pump, explain
from ._stream import ConverseReader
from ._turns import Turns, Vendor, vendor_of


class BedrockConfig(ModelConfig, frozen=True, kw_only=True):
    """``additional_request_fields`` are the model's own (``{"thinking": {…}}`` for Claude, for example);
    ``guardrail``, ``performance`` and ``service_tier`` go out as they are; ``system_tools`` names tools that
    run at the provider. ``region`` matters only when no client is handed in.

    Times are in seconds: until the first event, and between two of them.
    """

    region: str | None = None
    additional_request_fields: JsonObject | None = None
    additional_response_paths: list[str] | None = None
    guardrail: JsonObject | None = None
    performance: JsonObject | None = None
    service_tier: str | None = None
    effort: str | None = None
    system_tools: list[str] | None = None
    timeout_first_byte: float = 600.0
    timeout_silence: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout_first_byte", "timeout_silence"):
            if not getattr(self, name) > 0:
                raise AgentError(
                    "ConfigInvalid", f"{name} is {getattr(self, name)}; it must be more than 0 seconds"
                )


_NO_TOOL: JsonObject = {
    "toolSpec": {
        "name": "no_tool",
        "description": "No tool can be called.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


def build_arguments(
    request: ModelRequest[BedrockConfig], cache: FoldCache[Turns]
) -> tuple[JsonObject, str | None]:
    """(the arguments, why they do not ask for the thinking that is configured, where they do not)."""
    config = request.config
    vendor = vendor_of(config.model_id)
    system, messages = split_system(request.messages, None)
    turns = cache.fold((request.metadata.session_id, config.model_id), tuple(messages), lambda: Turns(vendor))
    turns.close()
    mark = cache_mark(config.cache_config, "default") if vendor.cache else None
    instructions = _instructions(request, system, mark)
    fields, why = _own_fields(config, turns)
    output: JsonObject = {"effort": config.effort} if config.effort else {}
    if request.output_schema is not None:
        schema = encode(closed_schema(request.output_schema)).decode()
        held = {"jsonSchema": {"name": schema_name(request.output_schema), "schema": schema}}
        output["textFormat"] = {"type": "json_schema", "structure": held}
    optional: JsonObject = {
        "system": instructions,
        "inferenceConfig": _inference(config),
        "toolConfig": _tools(request, config, vendor, turns, mark),
        "additionalModelRequestFields": fields,
        "additionalModelResponseFieldPaths": config.additional_response_paths,
        "guardrailConfig": config.guardrail,
        "performanceConfig": config.performance,
        "serviceTier": {"type": config.service_tier} if config.service_tier else None,
        "outputConfig": output,
        "requestMetadata": {"traceId": request.metadata.trace_id} if request.metadata.trace_id else None,
    }
    given = {name: value for name, value in optional.items() if value}
    return {"modelId": config.model_id, "messages": turns.write(mark), **given, **request.params}, why


def _own_fields(config: BedrockConfig, turns: Turns) -> tuple[JsonObject | None, str | None]:
    """The model's own fields, without a thinking budget where Claude would refuse it."""
    fields = config.additional_request_fields
    if not fields or as_object(fields.get("thinking")).get("type") != "enabled" or not turns.lost_thoughts:
        return fields, None
    return {name: value for name, value in fields.items() if name != "thinking"}, LOST_THOUGHTS


def _instructions(
    request: ModelRequest[BedrockConfig], system: list[str], mark: JsonObject | None
) -> list[JsonObject]:
    """The system prompt, with a cache mark after the part that its author marked, else at the end."""
    parts = [part for part in request.prompt_parts if part.text.strip()]
    blocks: list[JsonObject] = [{"text": part.text} for part in parts]
    blocks += [{"text": text} for text in system if text.strip()]
    if blocks and mark:
        marked = [at + 1 for at, part in enumerate(parts) if part.cache]
        blocks.insert(marked[-1] if marked else len(blocks), {"cachePoint": mark})
    return blocks


def _inference(config: BedrockConfig) -> JsonObject:
    known = {
        "maxTokens": config.max_tokens,
        "temperature": config.temperature,
        "topP": config.top_p,
        "stopSequences": config.stop_sequences,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tools(
    request: ModelRequest[BedrockConfig],
    config: BedrockConfig,
    vendor: Vendor,
    turns: Turns,
    mark: JsonObject | None,
) -> JsonObject | None:
    """Converse cannot be told to call no tool: then none is shown, or one that does nothing where the
    history holds calls and some tool must be named."""
    tools: list[JsonObject] = []
    if request.tool_choice != "none":
        tools = [_tool(spec, vendor) for spec in request.tool_specs]
        tools += [{"systemTool": {"name": name}} for name in config.system_tools or ()]
    if not tools:
        return {"tools": [_NO_TOOL]} if turns.has_calls else None
    if mark and vendor.cache_tools:
        tools.append({"cachePoint": mark})
    choice = request.tool_choice
    match choice:
        case "required":
            return {"tools": tools, "toolChoice": {"any": {}}}
        case SpecificTool():
            return {"tools": tools, "toolChoice": {"tool": {"name": safe_name(choice.name)}}}
        case "auto" | "none" | None:
            return {"tools": tools}


def _tool(spec: ToolSpec, vendor: Vendor) -> JsonObject:
    schema = object_schema(spec.parameter_schema)
    tool: JsonObject = {"name": safe_name(spec.name), "inputSchema": {"json": schema}}
    if spec.description.strip():
        tool["description"] = spec.description
    if spec.strict and vendor.name == "anthropic" and is_strict(schema):
        tool["strict"] = True
    return {"toolSpec": tool}


class BedrockModel(Model[BedrockConfig]):
    """Converse, streamed. ``client`` is a botocore or boto3 client of ``bedrock-runtime``.

    Without one, a client is made from botocore's own configuration at the first call; it does not retry.
    A client handed in keeps its own settings: switch its retries off (``retries={"total_max_attempts": 1}``),
    since the caller of the model retries. Its calls block, so each runs in a thread of its own.
    """

    provider_id: ClassVar[str] = "bedrock"
    specification: ClassVar[str] = "bedrock-converse"
    config_type: ClassVar[type[ModelConfig]] = BedrockConfig
    features: ClassVar[frozenset[Feature]] = CAPABLE

    def __init__(self, config: BedrockConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._turns: FoldCache[Turns] = FoldCache()
        self._made: Any = None
        if self._client is not None and not callable(getattr(self._client, "converse_stream", None)):
            raise AgentError(
                "ConfigInvalid",
                f"client is a {type(self._client).__name__} without converse_stream; "
                "make one with create_client('bedrock-runtime')",
            )

    @batched
    async def _stream(self, request: ModelRequest[BedrockConfig]) -> AsyncGenerator[Sequence[Chunk], None]:
        config = request.config
        arguments, why = build_arguments(request, self._turns)
        pump = Pump(lambda: self._open(arguments, config))
        reader: ConverseReader | None = None
        pump.start()
        try:
            request_id, *events = await _within(pump, config.timeout_first_byte, "timeout_first_byte")
            reader = ConverseReader(
                config.model_id,
                vendor_of(config.model_id).name,
                names=ToolNames(request.tool_specs),
                request_id=request_id,
                reason=why,
            )
            while True:
                for chunks in reader.batches(events, request.raw):
                    yield chunks
                if reader.failure is not None:
                    raise reader.failure
                if reader.ended:
                    return
                try:
                    events = await _within(pump, config.timeout_silence, "timeout_silence")
                except StopAsyncIteration:
                    yield reader.end()
                    return
        finally:
            if reader is not None and reader.ended:
                await pump.drain()
            pump.close()

    def _open(self, arguments: JsonObject, config: BedrockConfig) -> tuple[str | None, Iterable[Any]]:
        """In the thread: send the request, wait for the answer's head."""
        client: Any = self._client or self._made
        if client is None:
            client = self._made = _make_client(config)
        response: JsonObject = client.converse_stream(**arguments)
        meta: JsonObject = response.get("ResponseMetadata") or {}
        kind = as_text(as_object(meta.get("HTTPHeaders")).get("content-type"))
        if kind.startswith("text/html"):
            response["stream"].close()
            raise AgentError(
                "ModelProtocolError",
                f"bedrock answered {meta.get('HTTPStatusCode', '')} with {kind} instead of an event stream; "
                "a proxy or login page is in between, or the client's endpoint is wrong",
                retryable=False,
            )
        return meta.get("RequestId"), response["stream"]

    def _map_error(self, error: BaseException) -> AgentError:
        return explain(error) or super()._map_error(error)

    def _features(self) -> frozenset[Feature]:
        vendor = vendor_of(self._config.model_id)
        can: dict[Feature, bool] = {
            "images": vendor.images,
            "files": vendor.files,
            "cache": vendor.cache,
            "forced_tool": vendor.forced_tool,
            "output_schema": vendor.schemas,
        }
        return self.features - {name for name, has in can.items() if not has}

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()


async def _within(pump: Pump, limit: float, name: str) -> list[Any]:
    if pump.is_ready:
        return await pump.some()
    try:
        async with asyncio.timeout(limit):
            return await pump.some()
    except TimeoutError as error:
        raise AgentError(
            "ModelTimeout", f"bedrock sent nothing for {limit:g} seconds; raise {name} if it may", cause=error
        ) from error


def _make_client(config: BedrockConfig) -> Any:
    try:
        from botocore.config import Config  # pyright: ignore
        from botocore.session import get_session  # pyright: ignore
    except ModuleNotFoundError as error:
        raise AgentError(
            "PluginMissing",
            "Bedrock needs a client: pip install botocore, or pass client=… (botocore's or boto3's, "
            "of bedrock-runtime)",
            cause=error,
        ) from error
    settings: Any = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        read_timeout=max(config.timeout_first_byte, config.timeout_silence),
    )
    session: Any = get_session()
    return session.create_client("bedrock-runtime", region_name=config.region, config=settings)
