"""``google:`` models: Gemini at the Developer API, at Vertex, and at servers that speak its protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from turnlog.contract import (
    AgentError,
    Chunk,
    Feature,
    JsonObject,
    SpecificTool,
    StreamStart,
    ToolSpec,
    encode,
)

from .._base import batched
from .._config import CAPABLE, ModelConfig, ModelRequest
from .._turns import FoldCache
from ..http import HttpModel, HttpModelConfig
from ..wire import ToolNames, object_schema, split_system
from ._schema import json_schema
from ._stream import ORIGIN, GeminiReader
from ._turns import Contents, Form, is_third_generation, reads_files, wire_name

_LEVELS = ("minimal", "low", "medium", "high", "dynamic", "disabled")


class GoogleConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``thinking`` is a budget in tokens, one of ``minimal``, ``low``, ``medium``, ``high``, ``dynamic`` and
    ``disabled``, or the API's own object; ``include_thoughts`` shows what was thought (it does where
    ``thinking`` is set).

    ``platform`` is ``vertex`` for Google Cloud: with ``project`` and ``location``, or a ``base_url`` up to
    the location; there the key is an access token, sent as a bearer token, unless it looks like an API key
    or ``auth`` says otherwise. ``safety_settings`` are category → threshold. ``server_tools`` are tools that
    run at Google, in the API's own form (``{"codeExecution": {}}``). ``response_schema`` is a JSON schema
    that the answer's text must fit.
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
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def build(self, request: ModelRequest[GoogleConfig], form: Form) -> bytes:
        config = request.config
        system, messages = split_system(request.messages, None)
        contents = self._contents.fold(
            (request.metadata.session_id, form), tuple(messages), lambda: Contents(form)
        )
        contents.close()
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
            tools = [msgspec.Raw(self._declared(request.tool_specs))] if request.tool_specs else []
            optional["tools"] = [*tools, *(config.server_tools or ())]
            optional["toolConfig"] = _tool_config(request, config, form)
        return {name: value for name, value in optional.items() if value not in (None, {}, [])}

    def _declared(self, specs: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] != specs:
            self._tools = (specs, encode({"functionDeclarations": [_function(spec) for spec in specs]}))
        return self._tools[1]


def _function(spec: ToolSpec) -> JsonObject:
    name, schema = wire_name(spec.name), object_schema(spec.parameter_schema)
    return {
        "name": name,
        "description": spec.description or name,
        "parametersJsonSchema": json_schema(schema),
    }


def _generation(config: GoogleConfig, schema: JsonObject | None) -> JsonObject:
    held: JsonObject = {}
    if schema is not None:
        held = {"responseMimeType": "application/json", "responseJsonSchema": json_schema(schema)}
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


VERTEX = "vertex"
MOST_CONTINUATIONS = 100
_RESOURCES = ("models/", "tunedModels/", "publishers/", "endpoints/")
_API_KEYS = ("AIza", "AQ.")


class GoogleModel(HttpModel[GoogleConfig]):
    """generateContent, streamed.

    The Developer API's key comes from ``api_key``, else ``GEMINI_API_KEY``, else ``GOOGLE_API_KEY``. At
    Vertex the key is an access token (``api_key``, else ``CLOUDSDK_AUTH_ACCESS_TOKEN``), or an API key. One
    that expires is better renewed by a ``client``: an ``httpx2.AsyncClient`` with its own ``auth``.
    """

    provider_id: ClassVar[str] = "google"
    specification: ClassVar[str] = "gemini"
    config_type: ClassVar[type[ModelConfig]] = GoogleConfig
    features: ClassVar[frozenset[Feature]] = CAPABLE
    default_base_url: ClassVar[str] = "https://generativelanguage.googleapis.com/v1beta"
    url_variables: ClassVar[tuple[str, ...]] = ("GOOGLE_GEMINI_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    vertex_key_variables: ClassVar[tuple[str, ...]] = ("CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_API_KEY")

    def __init__(self, config: GoogleConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    def _features(self) -> frozenset[Feature]:
        return self.features if reads_files(self._config.model_id) else self.features - {"files"}

    @batched
    async def _stream(self, request: ModelRequest[GoogleConfig]) -> AsyncGenerator[Sequence[Chunk], None]:
        config = request.config
        form = Form(
            self._platform(config), is_third_generation(config.model_id), reads_files(config.model_id)
        )
        headers, address = self._headers(config), self._address(config)
        body = self._builder.build(request, form)
        reader = GeminiReader(
            config.model_id,
            ToolNames(request.tool_specs, wire_name),
            origin=form.origin,
            provider=self.provider_id,
        )
        for number in range(MOST_CONTINUATIONS):
            continued = body
            if number:
                token = encode(reader.continuation)
                continued = b"".join((body[:-1], b',"continuationToken":', token, b"}"))
                reader.go_on()
            async with self._send(request, address, continued, headers) as exchange:
                if not number:
                    yield [StreamStart(model_id=config.model_id, request_id=exchange.request_id)]
                try:
                    async for events in exchange.sse():
                        for chunks in reader.batches(events, request.raw):
                            yield chunks
                        if reader.failure is not None:
                            raise reader.failure
                    exchange.finished()
                    if reader.cut:
                        raise exchange.unfinished()
                    if reader.continuation is None:
                        yield reader.finish()
                        return
                except AgentError:
                    yield reader.left()
                    raise
        raise AgentError(
            "ModelProtocolError",
            f"{config.model_id} broke its answer off {MOST_CONTINUATIONS} times to be continued",
            retryable=False,
        )

    # ── where and as whom ──

    def _platform(self, config: GoogleConfig) -> str:
        if config.platform:
            return config.platform
        host = urlsplit(config.base_url or self._client_url()).hostname or ""
        return VERTEX if config.project or "aiplatform" in host else ORIGIN

    def _client_url(self) -> str:
        return str(getattr(self._client, "base_url", ""))

    def _url(self, config: HttpModelConfig) -> str:
        """The address up to the version, or up to the location at Vertex."""
        assert isinstance(config, GoogleConfig)
        vertex = self._platform(config) == VERTEX
        where = config.location or "global"
        if vertex and not config.base_url and not self._client_url():
            url = f"https://{'' if where == 'global' else f'{where}-'}aiplatform.googleapis.com"
        else:
            url = super()._url(config)
        if not urlsplit(url).path:
            url = f"{url}/v1" if vertex else f"{url}/v1beta"
        if vertex and config.project and "/projects/" not in url:
            url = f"{url}/projects/{config.project}/locations/{where}"
        return url

    def _address(self, config: GoogleConfig) -> str:
        url, model = self._url(config), config.model_id
        if model.startswith("projects/"):
            url = url.partition("/projects/")[0]
        elif not model.startswith(_RESOURCES):
            home = "publishers/google/models" if self._platform(config) == VERTEX else "models"
            model = f"{home}/{model}"
        return f"{url}/{model}:streamGenerateContent?alt=sse"

    def _headers(self, config: GoogleConfig) -> dict[str, str]:
        headers = {"accept": "text/event-stream"}
        vertex = self._platform(config) == VERTEX
        key = self._key(config, self.vertex_key_variables if vertex else self.key_variables)
        if key:
            bearer = config.auth == "bearer" if config.auth else vertex and not key.startswith(_API_KEYS)
            headers["authorization" if bearer else "x-goog-api-key"] = f"Bearer {key}" if bearer else key
        return headers
