"""What a Responses model can be told, and one call as the bytes of a request."""

from __future__ import annotations

import re
from typing import cast

import msgspec

from turnlog.contract import JsonObject, SpecificTool, ToolChoice, ToolSpec

from .._cache import FoldCache, Wire
from .._config import ModelRequest
from .._loose import as_object
from .._openai import OpenAIConfig, cache_key
from ..wire import is_strict, object_schema, safe_name, schema_name
from ._input import Form, InputWriter


class OpenAIResponsesConfig(OpenAIConfig, frozen=True, kw_only=True):
    """Fields of the protocol, and some that say how a server differs where its host does not tell.

    ``server_tools`` are tools that run at the provider, in the API's own form. ``store`` lets the provider
    keep the answers; off, thoughts come back encrypted and travel with the history (``encrypted_reasoning``
    says whether to ask for them). ``item_ids`` says whether what goes back carries the ids it came with,
    ``image_results`` whether a tool's result may hold images, ``images`` whether the model sees at all. A
    ``response_format`` in the words of Chat Completions is understood too.
    """

    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    server_tools: list[JsonObject] | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    store: bool = False
    truncation: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    encrypted_reasoning: bool | None = None
    item_ids: bool | None = None
    image_results: bool | None = None


_json = msgspec.json.Encoder().encode
_ENCRYPTED = "reasoning.encrypted_content"
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

    def __init__(self) -> None:
        self._cache: FoldCache[Wire] = FoldCache()
        self._tools: tuple[tuple[ToolSpec, ...], list[JsonObject] | None, bytes] = ((), None, b"")

    def build(
        self, request: ModelRequest[OpenAIResponsesConfig], form: Form, provider: str
    ) -> tuple[bytes, str]:
        """(the body, the digest of what precedes the answer)."""
        config = request.config
        extra: JsonObject = {**request.params, **(config.extra_body or {})}
        tools = self._encode_tools(request.tool_specs, config.server_tools)
        instructions = request.system_prompt or None
        seed = _json(instructions) + tools
        wire = self._cache.fold(
            (request.metadata.session_id, form),
            request.messages,
            lambda: Wire(InputWriter(form).encode, seed),
            seed,
        )
        digest, items = wire.digest(), wire.data or _NO_INPUT
        fields = _fields(config, request, provider)
        fields = {name: value for name, value in fields.items() if value is not None and name not in extra}
        if "input" in extra or "tools" in extra:  # someone's own words replace ours
            fields["input"] = msgspec.Raw(b"[%b]" % items)
            if tools:
                fields["tools"] = msgspec.Raw(tools)
            return _json({**fields, **extra}), digest
        pieces = [_json({**fields, **extra})[:-1]]
        if tools:
            pieces += [b',"tools":', tools]
        return b"".join([*pieces, b',"input":[', items, b"]}"]), digest

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


def _fields(
    config: OpenAIResponsesConfig, request: ModelRequest[OpenAIResponsesConfig], provider: str
) -> JsonObject:
    sampled = provider not in OFFICIAL or _takes_temperature(config)
    reasoning = {"effort": config.reasoning_effort, "summary": config.reasoning_summary}
    text = {
        "format": _schema(request.output_schema) or _format(config.response_format),
        "verbosity": config.verbosity,
    }
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
        fields["prompt_cache_key"] = cache_key(request.metadata.session_id)
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


def _schema(schema: JsonObject | None) -> JsonObject | None:
    """What holds an answer to ``schema``; strict only where OpenAI's rules for strict schemas are kept."""
    if schema is None:
        return None
    name = schema_name(schema)
    return {"type": "json_schema", "name": name, "schema": schema, "strict": is_strict(schema)}


def _choice(choice: ToolChoice | None) -> str | JsonObject | None:
    match choice:
        case SpecificTool():
            return {"type": "function", "name": safe_name(choice.name)}
        case None | "auto" | "none" | "required":
            return cast("str | None", choice)
