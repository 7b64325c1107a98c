"""What a Gemini model can be told, and a call as the body of a request, in bytes."""

from __future__ import annotations

from typing import Literal

import msgspec

from turnlog.contract import AgentError, JsonObject, SpecificTool, ToolSpec, encode

from .._cache import FoldCache
from .._config import ModelRequest
from ..http import HttpModelConfig
from ..wire import object_schema, split_system
from ._events import ORIGIN
from ._schema import json_schema, openapi_schema
from ._turns import Contents, Form, wire_name

_LEVELS = ("minimal", "low", "medium", "high", "dynamic", "disabled")


class GoogleConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``thinking`` is a budget in tokens, one of ``minimal``, ``low``, ``medium``, ``high``, ``dynamic`` and
    ``disabled``, or the API's own object; ``include_thoughts`` shows what was thought (it does where
    ``thinking`` is set).

    ``platform`` is ``vertex`` for Google Cloud: with ``project`` and ``location``, or a ``base_url`` up to
    the location; there the key is an access token, sent as a bearer token, unless it looks like an API key
    or ``auth`` says otherwise. ``safety_settings`` are category → threshold. ``server_tools`` are tools that
    run at Google, in the API's own form (``{"codeExecution": {}}``). ``response_schema`` is a JSON schema
    that the answer's text must fit. ``tool_schema="openapi"`` is for servers that do not read JSON schemas.
    """

    thinking: int | str | JsonObject | None = None
    include_thoughts: bool | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_schema: JsonObject | None = None
    generation_config: JsonObject | None = None
    safety_settings: dict[str, str] | None = None
    server_tools: list[JsonObject] | None = None
    tool_schema: Literal["json", "openapi"] = "json"
    cached_content: str | None = None
    service_tier: str | None = None
    labels: dict[str, str] | None = None
    platform: Literal["google", "vertex"] | None = None
    project: str | None = None
    location: str | None = None
    auth: Literal["api-key", "bearer"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.thinking, bool):
            raise AgentError(
                "ConfigInvalid", "thinking is a yes or no; write 'dynamic', 'disabled', a level or a budget"
            )
        if isinstance(self.thinking, str) and self.thinking not in _LEVELS:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking!r}; expected a budget in tokens, {', '.join(_LEVELS)}, "
                "or the API's own object",
            )
        if isinstance(self.thinking, int) and self.thinking < -1:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking}; a budget is 0 or more, -1 lets the model choose",
            )
        if self.platform == "google" and self.project:
            raise AgentError("ConfigInvalid", "project is set, which only platform 'vertex' has")


_LAID_INTO = ("generationConfig", "toolConfig")
"""Objects of the body that extra fields are added to; any other is replaced whole."""


class RequestBuilder:
    """Keeps what does not change between calls: the encoded history and the encoded tools."""

    def __init__(self) -> None:
        self._contents: FoldCache[Contents] = FoldCache()
        self._tools: tuple[tuple[ToolSpec, ...], str, bytes] = ((), "", b"")

    def build(self, request: ModelRequest[GoogleConfig], form: Form) -> bytes:
        config = request.config
        system, messages = split_system(request.messages, None)
        contents = self._contents.fold(
            (request.metadata.session_id, form), tuple(messages), lambda: Contents(form)
        )
        if contents.last_role != "user":
            contents.say("Continue." if contents.last_role else "Begin.")
        head = self._head(
            request,
            config,
            form,
            [text for text in (*(part.text for part in request.prompt_parts), *system) if text.strip()],
        )
        overrides: JsonObject = {**request.params, **(config.extra_body or {})}
        for name in _LAID_INTO:
            if isinstance(overrides.get(name), dict) and isinstance(head.get(name), dict):
                overrides[name] = {**head[name], **overrides[name]}
        whole = {**head, **overrides}
        if "contents" in whole:  # someone's own words replace ours
            return encode(whole)
        start = encode(whole)[:-1] + b"," if whole else b"{"
        return b"".join((start, b'"contents":[', contents.wire, b"]}"))

    def _head(
        self, request: ModelRequest[GoogleConfig], config: GoogleConfig, form: Form, system: list[str]
    ) -> JsonObject:
        optional: JsonObject = {
            "generationConfig": _generation(config, request.output_schema or config.response_schema),
            "safetySettings": [
                {"category": category, "threshold": threshold}
                for category, threshold in (config.safety_settings or {}).items()
            ],
            "cachedContent": config.cached_content,
            "serviceTier": config.service_tier,
            "labels": config.labels,
        }
        if not config.cached_content:  # what is cached holds the instructions and the tools
            optional["systemInstruction"] = {"parts": [{"text": text} for text in system]} if system else None
            tools = [msgspec.Raw(self._declared(request.tool_specs, config))] if request.tool_specs else []
            optional["tools"] = [*tools, *(config.server_tools or ())]
            optional["toolConfig"] = _tool_config(request, config, form)
        return {name: value for name, value in optional.items() if value not in (None, {}, [])}

    def _declared(self, specs: tuple[ToolSpec, ...], config: GoogleConfig) -> bytes:
        known, style, data = self._tools
        if style != config.tool_schema or known != specs:
            declared = [_function(spec, config.tool_schema) for spec in specs]
            data = encode({"functionDeclarations": declared})
            self._tools = (specs, config.tool_schema, data)
        return data


def _function(spec: ToolSpec, style: str) -> JsonObject:
    schema = object_schema(spec.parameter_schema)
    name = wire_name(spec.name)
    function: JsonObject = {"name": name, "description": spec.description or name}
    if style == "json":
        function["parametersJsonSchema"] = json_schema(schema)
    elif schema.get("properties"):
        function["parameters"] = openapi_schema(schema)
    return function


def _generation(config: GoogleConfig, schema: JsonObject | None) -> JsonObject:
    if schema is None:
        held: JsonObject = {}
    elif config.tool_schema == "json":
        held = {"responseMimeType": "application/json", "responseJsonSchema": json_schema(schema)}
    else:
        held = {"responseMimeType": "application/json", "responseSchema": openapi_schema(schema)}
    known: JsonObject = {
        "temperature": config.temperature,
        "topP": config.top_p,
        "topK": config.top_k,
        "maxOutputTokens": config.max_tokens,
        "stopSequences": config.stop_sequences or None,
        "seed": config.seed,
        "presencePenalty": config.presence_penalty,
        "frequencyPenalty": config.frequency_penalty,
        **held,
        "thinkingConfig": _thinking(config) or None,
    }
    return {
        **{name: value for name, value in known.items() if value is not None},
        **(config.generation_config or {}),
    }


def _thinking(config: GoogleConfig) -> JsonObject:
    asked = config.thinking
    match asked:
        case None:
            wanted: JsonObject = {}
        case "disabled":
            wanted = {"thinkingBudget": 0}
        case "dynamic":
            wanted = {"thinkingBudget": -1}
        case int():
            wanted = {"thinkingBudget": asked}
        case str():
            wanted = {"thinkingLevel": asked.upper()}
        case _:
            wanted = asked
    shown = config.include_thoughts
    if shown is None and wanted and wanted.get("thinkingBudget") != 0:
        shown = True
    return wanted if shown is None else {"includeThoughts": shown, **wanted}


def _tool_config(request: ModelRequest[GoogleConfig], config: GoogleConfig, form: Form) -> JsonObject:
    if not request.tool_specs:
        return {}
    choice = request.tool_choice
    calling: JsonObject = {}
    match choice:
        case None:
            pass
        case "auto" | "none":
            calling["mode"] = choice.upper()
        case "required":
            calling["mode"] = "ANY"
        case SpecificTool():
            calling = {"mode": "ANY", "allowedFunctionNames": [wire_name(choice.name)]}
    said: JsonObject = {"functionCallingConfig": calling} if calling else {}
    if config.server_tools and form.third_generation and form.platform == ORIGIN:
        said["includeServerSideToolInvocations"] = True
    return said
