"""A call as the body of a Messages request, in bytes."""

from __future__ import annotations

from turnlog.contract import JsonObject, SpecificTool, ToolSpec, encode

from .._config import CacheConfig, ModelRequest
from .._fold_cache import FoldCache
from .._history import is_strict, object_schema, safe_name, split_system
from ._config import AnthropicConfig
from ._limits import DEFAULT_MAX_TOKENS, ModelLimits, limits_of
from ._turns import Turns

MAX_MARKS = 4
VERTEX_VERSION = "vertex-2023-10-16"
_NO_TOOL: JsonObject = {
    "name": "no_tool",
    "description": "No tool can be called.",
    "input_schema": {"type": "object", "properties": {}},
}


def build_body(request: ModelRequest, cache: FoldCache[Turns]) -> bytes:
    config: AnthropicConfig = request.config
    system, messages = split_system(request.messages, request.system_prompt)
    unsigned = config.unsigned_thinking
    turns = cache.fold(
        (request.metadata.session_id, unsigned), tuple(messages), lambda: Turns(unsigned_thinking=unsigned)
    )
    _close(turns)
    head = _settings(request, config, turns)
    overrides = {**request.params, **(config.extra_body or {})}
    mark = None if "cache_control" in overrides else _mark(config.cache_config)
    tools = _tools(request.tool_specs, config, turns)
    free = MAX_MARKS - turns.mark_count if mark else 0
    instructions: list[JsonObject] = [{"type": "text", "text": text} for text in system if text.strip()]
    if instructions:
        head["system"] = _marked(instructions, mark)
        free -= 1
    if tools:
        head["tools"] = _marked(tools, mark if free > 0 else None)
    head.update(overrides)
    parts = turns.write(b',"cache_control":' + encode(mark) if mark else None)
    return b"".join((encode(head)[:-1], b',"messages":[', *parts, b"]}"))


def _close(turns: Turns) -> None:
    """Make sure that it is the model's turn. After a pause its own words are the last ones."""
    if turns.last_role is None:
        turns.say("Begin.")
    elif turns.last_role == "assistant" and not turns.ends_verbatim:
        turns.say("Continue.")


def _settings(request: ModelRequest, config: AnthropicConfig, turns: Turns) -> JsonObject:
    limits = limits_of(config.model_id)
    choice = _tool_choice(request, config, turns)
    thinking = _thinking(config, limits, turns, forced=choice.get("type") in ("any", "tool"))
    output: JsonObject = {"effort": config.effort} if config.effort else {}
    optional: JsonObject = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "stop_sequences": config.stop_sequences,
        "thinking": thinking,
        "output_config": output,
        "tool_choice": choice,
        "metadata": {"user_id": config.user_id} if config.user_id else None,
        "service_tier": config.service_tier,
        "container": config.container or turns.container,
    }
    head: JsonObject = (
        {"anthropic_version": VERTEX_VERSION} if config.platform == "vertex" else {"model": config.model_id}
    )
    head["max_tokens"] = _max_tokens(config, limits, thinking)
    head["stream"] = True
    head.update({name: value for name, value in optional.items() if value not in (None, {}, [])})
    return head


def _max_tokens(config: AnthropicConfig, limits: ModelLimits, thinking: JsonObject) -> int:
    if config.max_tokens is not None:
        return config.max_tokens
    most = min(limits.max_output, DEFAULT_MAX_TOKENS)
    budget = thinking.get("budget_tokens")
    return min(budget + most, limits.max_output) if isinstance(budget, int) else most


def _thinking(config: AnthropicConfig, limits: ModelLimits, turns: Turns, *, forced: bool) -> JsonObject:
    """What to say about thinking; empty leaves it to the model's default.

    The API refuses thinking beside a forced tool, and a budget in the middle of work that began without
    thinking (another model began it, say): there it is left out.
    """
    asked = config.thinking
    match asked:
        case None:
            wanted: JsonObject = {}
        case int():
            wanted = {"type": "enabled", "budget_tokens": asked}
        case str():
            wanted = {"type": asked}
        case _:
            wanted = asked
    kind = wanted.get("type", "disabled")
    if forced and (kind != "disabled" or limits.thinks == "by default"):
        return {"type": "disabled"} if limits.thinks == "by default" else {}
    if kind == "enabled" and turns.answers_calls and turns.loop_thinks is False:
        return {}
    return wanted


def _tool_choice(request: ModelRequest, config: AnthropicConfig, turns: Turns) -> JsonObject:
    if not request.tool_specs and not config.server_tools:
        return {"type": "none"} if turns.has_calls else {}
    choice = request.tool_choice
    match choice:
        case "none":
            return {"type": "none"}
        case "required":
            said: JsonObject = {"type": "any"}
        case SpecificTool():
            said = {"type": "tool", "name": safe_name(choice.name)}
        case "auto" | None:
            said = {"type": "auto"} if choice or config.parallel_tool_calls is False else {}
    if config.parallel_tool_calls is False:
        said["disable_parallel_tool_use"] = True
    return said


def _tools(specs: tuple[ToolSpec, ...], config: AnthropicConfig, turns: Turns) -> list[JsonObject]:
    """The tools of a call. A history with calls must name some, even when none may be called."""
    tools = [_tool(spec, config) for spec in specs]
    tools += config.server_tools or ()
    return tools or ([_NO_TOOL] if turns.has_calls else [])


def _tool(spec: ToolSpec, config: AnthropicConfig) -> JsonObject:
    schema = object_schema(spec.parameter_schema)
    tool: JsonObject = {"name": safe_name(spec.name), "description": spec.description, "input_schema": schema}
    if spec.strict and is_strict(schema):
        tool["strict"] = True
    if config.eager_tool_streaming is not None:
        tool["eager_input_streaming"] = config.eager_tool_streaming
    return tool


def _mark(cache: CacheConfig | None) -> JsonObject | None:
    if cache is not None and cache.strategy == "off":
        return None
    return {"type": "ephemeral", "ttl": cache.ttl} if cache and cache.ttl else {"type": "ephemeral"}


def _marked(blocks: list[JsonObject], mark: JsonObject | None) -> list[JsonObject]:
    """``blocks`` with ``mark`` on the last one that may carry it: a tool loaded later may not."""
    if mark:
        for at in range(len(blocks) - 1, -1, -1):
            if not blocks[at].get("defer_loading"):
                blocks[at] = {**blocks[at], "cache_control": mark}
                break
    return blocks
