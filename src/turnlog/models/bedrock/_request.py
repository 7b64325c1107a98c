"""What Converse can be told, and a call as the arguments of ``converse_stream``."""

from __future__ import annotations

from turnlog.contract import AgentError, JsonObject, SpecificTool, ToolSpec, encode

from .._cache import FoldCache
from .._config import CacheConfig, ModelConfig, ModelRequest
from ..wire import closed_schema, is_strict, object_schema, safe_name, schema_name, split_system
from ._turns import Turns, Vendor, vendor_of


class BedrockConfig(ModelConfig, frozen=True, kw_only=True):
    """``additional_request_fields`` are the model's own (``{"thinking": {…}}`` for Claude, say);
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


def build_arguments(request: ModelRequest[BedrockConfig], cache: FoldCache[Turns]) -> JsonObject:
    config = request.config
    vendor = vendor_of(config.model_id)
    system, messages = split_system(request.messages, None)
    turns = cache.fold((request.metadata.session_id, config.model_id), tuple(messages), lambda: Turns(vendor))
    if turns.last_role is None:
        turns.say("Begin.")
    elif turns.last_role == "assistant" and not turns.ends_verbatim:
        turns.say("Continue.")
    mark = _mark(config.cache_config) if vendor.cache else None
    instructions = _instructions(request, system, mark)
    output: JsonObject = {"effort": config.effort} if config.effort else {}
    if request.output_schema is not None:
        schema = encode(closed_schema(request.output_schema)).decode()
        held = {"jsonSchema": {"name": schema_name(request.output_schema), "schema": schema}}
        output["textFormat"] = {"type": "json_schema", "structure": held}
    optional: JsonObject = {
        "system": instructions,
        "inferenceConfig": _inference(config),
        "toolConfig": _tools(request, config, vendor, turns, mark),
        "additionalModelRequestFields": config.additional_request_fields,
        "additionalModelResponseFieldPaths": config.additional_response_paths,
        "guardrailConfig": config.guardrail,
        "performanceConfig": config.performance,
        "serviceTier": {"type": config.service_tier} if config.service_tier else None,
        "outputConfig": output,
        "requestMetadata": {"traceId": request.metadata.trace_id} if request.metadata.trace_id else None,
    }
    given = {name: value for name, value in optional.items() if value}
    return {"modelId": config.model_id, "messages": turns.write(mark), **given, **request.params}


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


def _mark(cache: CacheConfig | None) -> JsonObject | None:
    if cache is not None and cache.strategy == "off":
        return None
    return {"type": "default", "ttl": cache.ttl} if cache and cache.ttl else {"type": "default"}
