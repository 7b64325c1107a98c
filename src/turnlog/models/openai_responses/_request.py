"""One call as the bytes of a Responses request."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import cast

import msgspec

from turnlog.contract import JsonObject, SpecificTool, ToolChoice, ToolSpec

from .._config import ModelRequest
from .._history import is_strict, object_schema, safe_name
from .._loose import as_object
from .._wire_cache import WireCache
from ._config import OpenAIResponsesConfig
from ._input import Form, InputWriter

_json = msgspec.json.Encoder().encode
_ENCRYPTED = "reasoning.encrypted_content"
_LONGEST_CACHE_KEY = 64
_NO_INPUT = b'{"role":"user","content":"Begin."}'

OFFICIAL = frozenset({"openai", "azure"})
"""Providers whose own rules hold for the names of models."""

_SPARE = frozenset({"groq"})
"""Providers that refuse a request for thoughts or a name for its cache."""

_NEVER_THINKS = re.compile(r"gpt-(3|4)|chatgpt|gpt-5.*chat|ft:gpt-(3|4)")
"""Models that refuse to be asked for encrypted thoughts, at OpenAI and Azure."""

_NO_TEMPERATURE = re.compile(r"o\d|gpt-5(?!.*chat)|gpt-[6-9]|codex")
"""Models that refuse ``temperature`` and ``top_p``, the newer ones only while they think."""

_THINKS_AT_WILL = re.compile(r"gpt-5\.[1-9]|gpt-[6-9]")


class RequestBuilder:
    """Keeps what does not change between calls: the encoded history and the encoded tools."""

    __slots__ = ("_cache", "_tools")

    def __init__(self) -> None:
        self._cache = WireCache()
        self._tools: tuple[tuple[ToolSpec, ...], list[JsonObject] | None, bytes] = ((), None, b"")

    def build(self, request: ModelRequest, form: Form, provider: str) -> tuple[bytes, str]:
        """(the body, the digest of what precedes the answer)."""
        config: OpenAIResponsesConfig = request.config
        extra: JsonObject = {**request.params, **(config.extra_body or {})}
        tools = self._encode_tools(request.tool_specs, config.server_tools)
        instructions = request.system_prompt or None
        wire = self._cache.encode(
            (request.metadata.session_id, form),
            request.messages,
            InputWriter(form).encode,
            _json(instructions) + tools,
        )
        items = wire.data or _NO_INPUT
        fields = _fields(config, request, provider)
        fields = {name: value for name, value in fields.items() if value is not None and name not in extra}
        if "input" in extra or "tools" in extra:  # someone's own words replace ours
            fields["input"] = msgspec.Raw(b"[%b]" % items)
            if tools:
                fields["tools"] = msgspec.Raw(tools)
            return _json({**fields, **extra}), wire.digest
        pieces = [_json({**fields, **extra})[:-1]]
        if tools:
            pieces += [b',"tools":', tools]
        return b"".join([*pieces, b',"input":[', items, b"]}"]), wire.digest

    def _encode_tools(self, specs: tuple[ToolSpec, ...], server: list[JsonObject] | None) -> bytes:
        if not specs and not server:
            return b""
        if self._tools[:2] != (specs, server) or not self._tools[2]:
            self._tools = (specs, server, _json([*map(_tool, specs), *(server or ())]))
        return self._tools[2]


def _tool(spec: ToolSpec) -> JsonObject:
    schema = object_schema(spec.parameter_schema)
    return {
        "type": "function",
        "name": safe_name(spec.name),
        "description": spec.description,
        "parameters": schema,
        # Left out, it would count as true, and the schema be changed to fit.
        "strict": bool(spec.strict) and is_strict(schema),
    }


def _fields(config: OpenAIResponsesConfig, request: ModelRequest, provider: str) -> JsonObject:
    sampled = provider not in OFFICIAL or _takes_temperature(config)
    reasoning = {"effort": config.reasoning_effort, "summary": config.reasoning_summary}
    text = {"format": _format(config.response_format), "verbosity": config.verbosity}
    fields: JsonObject = {
        "model": config.model_id,
        "stream": True,
        "store": config.store,
        "include": _include(config, provider) or None,
        "instructions": request.system_prompt or None,
        "max_output_tokens": config.max_tokens,
        "temperature": config.temperature if sampled else None,
        "top_p": config.top_p if sampled else None,
        "stop": config.stop_sequences or None,
        "reasoning": {name: value for name, value in reasoning.items() if value} or None,
        "text": {name: value for name, value in text.items() if value} or None,
        "max_tool_calls": config.max_tool_calls,
        "metadata": config.metadata or None,
        "truncation": config.truncation,
        "service_tier": config.service_tier,
        "safety_identifier": config.safety_identifier,
    }
    if request.tool_specs or config.server_tools:
        fields["tool_choice"] = _choice(request.tool_choice)
        fields["parallel_tool_calls"] = config.parallel_tool_calls
    cache = config.cache_config
    if provider not in _SPARE and (cache is None or cache.strategy == "auto"):
        fields["prompt_cache_key"] = _cache_key(request.metadata.session_id)
        fields["prompt_cache_retention"] = cache.ttl if cache else None
    return fields


def _takes_temperature(config: OpenAIResponsesConfig) -> bool:
    if not _NO_TEMPERATURE.match(config.model_id):
        return True
    return config.reasoning_effort == "none" and bool(_THINKS_AT_WILL.match(config.model_id))


def _include(config: OpenAIResponsesConfig, provider: str) -> list[str]:
    asked = list(config.include or ())
    wanted = config.encrypted_reasoning
    if wanted is None:
        refused = provider in OFFICIAL and _NEVER_THINKS.match(config.model_id)
        wanted = not config.store and not refused and provider not in _SPARE
    if wanted and _ENCRYPTED not in asked:
        asked.append(_ENCRYPTED)
    return asked


def _format(given: JsonObject | None) -> JsonObject | None:
    """The format of the answer; that of Chat Completions has one level more."""
    if given is None or not isinstance(given.get("json_schema"), dict):
        return given
    return {"type": "json_schema", **as_object(given["json_schema"])}


def _cache_key(session_id: str) -> str | None:
    """What names the prefix that a session's calls share; the API takes so many characters and no more."""
    if len(session_id) <= _LONGEST_CACHE_KEY:
        return session_id or None
    return sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


def _choice(choice: ToolChoice | None) -> str | JsonObject | None:
    match choice:
        case SpecificTool():
            return {"type": "function", "name": safe_name(choice.name)}
        case None | "auto" | "none" | "required":
            return cast("str | None", choice)
