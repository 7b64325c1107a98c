"""One call as the bytes of a Chat Completions request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from turnlog.contract import (
    JsonObject,
    Message,
    SpecificTool,
    TextPart,
    ThinkingPart,
    ToolChoice,
    ToolSpec,
)

from .._config import ModelRequest
from .._history import is_strict, object_schema, safe_name
from .._wire_cache import Wire, WireCache
from ._config import OpenAIChatConfig
from ._messages import Form
from ._quirks import Quirks

_json = msgspec.json.Encoder().encode
_NO_INPUT = b'{"role":"user","content":"Begin."}'
_GO_ON = b'{"role":"user","content":"Continue."}'
"""Mistral refuses a conversation whose last word is the model's."""


class RequestBuilder:
    """Keeps what does not change between calls: the encoded history and the encoded tools."""

    __slots__ = ("_cache", "_tools")

    def __init__(self) -> None:
        self._cache = WireCache()
        self._tools: tuple[tuple[ToolSpec, ...], bool, bytes] = ((), False, b"")

    def build(self, request: ModelRequest, form: Form, quirks: Quirks) -> tuple[bytes, str]:
        """(the body, the digest of what precedes the answer)."""
        config: OpenAIChatConfig = request.config
        extra: JsonObject = {**request.params, **(config.extra_body or {})}
        tools = self._encode_tools(request.tool_specs, quirks.strict_tools)
        system = b""
        if request.system_prompt:
            system = _json({"role": "system", "content": request.system_prompt})
        wire = self._messages(request, form, system + tools)
        if not wire.pieces:
            wire = wire._replace(pieces=(_NO_INPUT,))
        elif quirks.nine_character_ids and _ends_with_answer(request.messages):
            wire = wire._replace(pieces=(*wire.pieces, _GO_ON))
        fields = _fields(config, request, quirks)
        fields = {name: value for name, value in fields.items() if value is not None and name not in extra}
        if "messages" in extra or "tools" in extra:  # someone's own words replace ours
            fields = {"messages": msgspec.Raw(b"".join([b"[", *_listed(system, wire), b"]"])), **fields}
            if tools:
                fields["tools"] = msgspec.Raw(tools)
            return _json({**fields, **extra}), wire.digest
        pieces = [_json({**fields, **extra})[:-1], b',"messages":[', *_listed(system, wire), b"]"]
        if tools:
            pieces += [b',"tools":', tools]
        return b"".join([*pieces, b"}"]), wire.digest

    def _messages(self, request: ModelRequest, form: Form, seed: bytes) -> Wire:
        key = (request.metadata.session_id, form)
        return self._cache.encode(key, request.messages, form.encode, seed)

    def _encode_tools(self, specs: tuple[ToolSpec, ...], strict: bool) -> bytes:
        if not specs:
            return b""
        known, known_strict, data = self._tools
        if known_strict != strict or known != specs:
            data = _json([_tool(spec, strict) for spec in specs])
            self._tools = (specs, strict, data)
        return data


def _ends_with_answer(messages: Sequence[Message]) -> bool:
    for message in reversed(messages):
        if message.text.strip() or message.tool_calls:
            return message.role == "assistant" and not message.tool_calls
        if any(not isinstance(part, TextPart | ThinkingPart) for part in message.parts):
            return False  # pictures, files, results
    return False


def _listed(system: bytes, wire: Wire) -> list[bytes]:
    """The messages and the commas between them, to be joined once with everything else."""
    listed: list[bytes] = []
    for piece in (system, *wire.pieces) if system else wire.pieces:
        listed += (b",", piece) if listed else (piece,)
    return listed


def _tool(spec: ToolSpec, strict: bool) -> dict[str, Any]:
    schema = object_schema(spec.parameter_schema)
    function: dict[str, Any] = {
        "name": safe_name(spec.name),
        "description": spec.description,
        "parameters": schema,
    }
    if spec.strict is not None and strict:
        function["strict"] = spec.strict and is_strict(schema)
    return {"type": "function", "function": function}


def _fields(config: OpenAIChatConfig, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    usage = quirks.usage_on_request if config.include_usage is None else config.include_usage
    fields: dict[str, Any] = {
        "model": config.model_id,
        "stream": True,
        "stream_options": {"include_usage": True} if usage else None,
        "temperature": config.temperature,
        "top_p": config.top_p,
        config.max_tokens_field or quirks.max_tokens_field: config.max_tokens,
        "stop": config.stop_sequences or None,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        quirks.seed_field: config.seed,
        "reasoning_effort": config.reasoning_effort,
        "verbosity": config.verbosity,
        "response_format": config.response_format,
        "service_tier": config.service_tier,
        "user": config.user,
    }
    if request.tool_specs:
        fields["tool_choice"] = _choice(request.tool_choice, quirks)
        fields["parallel_tool_calls"] = config.parallel_tool_calls
    cache = config.cache_config
    if cache is not None and cache.strategy == "auto" and quirks.cache_key:
        fields["prompt_cache_key"] = request.metadata.session_id or None
    return fields


def _choice(choice: ToolChoice | None, quirks: Quirks) -> Any:
    match choice:
        case None:
            return None
        case SpecificTool():
            return {"type": "function", "function": {"name": safe_name(choice.name)}}
        case "required":
            return quirks.required_word
        case "auto" | "none":
            return cast("str", choice)
