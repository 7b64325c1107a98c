"""A call as the arguments of ``converse_stream``."""

from __future__ import annotations

from turnlog.contract import JsonObject, SpecificTool, ToolSpec

from .._config import CacheConfig, ModelRequest
from .._fold_cache import FoldCache
from .._history import is_strict, object_schema, safe_name, split_system
from ._config import BedrockConfig
from ._turns import Turns
from ._vendor import Vendor, vendor_of

_NO_TOOL: JsonObject = {
    "toolSpec": {
        "name": "no_tool",
        "description": "No tool can be called.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


def build_arguments(request: ModelRequest, cache: FoldCache[Turns]) -> JsonObject:
    config: BedrockConfig = request.config
    vendor = vendor_of(config.model_id)
    system, messages = split_system(request.messages, request.system_prompt)
    turns = cache.fold((request.metadata.session_id, config.model_id), tuple(messages), lambda: Turns(vendor))
    if turns.last_role is None:
        turns.say("Begin.")
    elif turns.last_role == "assistant" and not turns.ends_verbatim:
        turns.say("Continue.")
    mark = _mark(config.cache_config) if vendor.cache else None
    instructions: list[JsonObject] = [{"text": text} for text in system if text.strip()]
    if instructions and mark:
        instructions.append({"cachePoint": mark})
    optional: JsonObject = {
        "system": instructions,
        "inferenceConfig": _inference(config),
        "toolConfig": _tools(request, config, vendor, turns, mark),
        "additionalModelRequestFields": config.additional_request_fields,
        "additionalModelResponseFieldPaths": config.additional_response_paths,
        "guardrailConfig": config.guardrail,
        "performanceConfig": config.performance,
        "serviceTier": {"type": config.service_tier} if config.service_tier else None,
        "outputConfig": {"effort": config.effort} if config.effort else None,
    }
    given = {name: value for name, value in optional.items() if value}
    return {"modelId": config.model_id, "messages": turns.write(mark), **given, **request.params}


def _inference(config: BedrockConfig) -> JsonObject:
    known = {
        "maxTokens": config.max_tokens,
        "temperature": config.temperature,
        "topP": config.top_p,
        "stopSequences": config.stop_sequences,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tools(
    request: ModelRequest, config: BedrockConfig, vendor: Vendor, turns: Turns, mark: JsonObject | None
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
