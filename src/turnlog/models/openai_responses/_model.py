"""``openai:`` models: OpenAI's Responses API, and every server that speaks it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import msgspec

from turnlog.contract import (
    AgentError,
    Chunk,
    Feature,
    JsonObject,
    SpecificTool,
    StreamStart,
    ToolChoice,
    ToolSpec,
)

from .._answer import as_object
from .._base import batched
from .._config import CAPABLE, ModelConfig, ModelRequest
from .._openai import (
    OpenAIConfig,
    OpenAIModel,
    OpenAIRequests,
    Quirks,
    cache_key,
    held_schema,
    reads_files,
    sees,
    write_body,
)
from .._turns import Wire
from ..wire import ToolNames, is_strict, object_schema, safe_name
from ._input import Form, InputWriter
from ._items import FAMILY
from ._stream import ResponsesReader


class OpenAIResponsesConfig(OpenAIConfig, frozen=True, kw_only=True):
    """Fields of the protocol, and some that state how a server differs where its host is not known.

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


class RequestBuilder(OpenAIRequests):
    def build(
        self, request: ModelRequest[OpenAIResponsesConfig], form: Form, provider: str
    ) -> tuple[bytes, str]:
        """(the body, the digest of what precedes the answer)."""
        config, specs, server = request.config, request.tool_specs, request.config.server_tools
        tools = self._declared((specs, server), lambda: [*map(_tool, specs), *(server or ())])
        seed = _json(request.system_prompt or None) + tools
        wire = self._cache.fold(
            (request.metadata.session_id, form),
            request.messages,
            lambda: Wire(InputWriter(form).encode, seed),
            seed,
        )
        digest, items = wire.digest(), wire.data or _NO_INPUT
        extra: JsonObject = {**request.params, **(config.extra_body or {})}
        fields = _fields(config, request, provider)
        return write_body(fields, extra, tools=[tools], input=[b"[", items, b"]"]), digest


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
        "format": _format(config.response_format)
        if request.output_schema is None
        else {"type": "json_schema", **held_schema(request.output_schema)},
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


def _choice(choice: ToolChoice | None) -> str | JsonObject | None:
    match choice:
        case SpecificTool():
            return {"type": "function", "name": safe_name(choice.name)}
        case None | "auto" | "none" | "required":
            return cast("str | None", choice)


class OpenAIResponsesModel(OpenAIModel[OpenAIResponsesConfig]):
    """``OpenAIResponsesModel("gpt-5.2")``, or with ``base_url`` any server that speaks the protocol.

    The host says which variable holds the key and how a server differs; fields of
    :class:`OpenAIResponsesConfig` say it where the host does not. Nothing is kept at the provider unless
    ``store`` is set, and no answer leans on an earlier one by its id: each call carries all it needs.
    """

    specification: ClassVar[str] = FAMILY
    config_type: ClassVar[type[ModelConfig]] = OpenAIResponsesConfig
    features: ClassVar[frozenset[Feature]] = CAPABLE
    sdk_required: ClassVar[tuple[str, ...]] = ("model", "input")

    def __init__(self, config: OpenAIResponsesConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._builder = RequestBuilder()

    def _sdk_create(self, client: Any) -> Any:
        responses = getattr(client, "responses", None)
        return responses.with_streaming_response.create if responses is not None else None

    def _features(self) -> frozenset[Feature]:
        official = self._quirks(self._config).provider in OFFICIAL
        return super()._features() - ({"stop_sequences"} if official else set())

    def _check_config(self, config: OpenAIResponsesConfig) -> None:
        if config.stop_sequences and self._quirks(config).provider in OFFICIAL:
            raise AgentError(
                "ConfigInvalid",
                "stop_sequences: the Responses API of OpenAI and Azure has none; leave them out, "
                f"or use openai-chat:{config.model_id}",
            )

    @batched
    async def _stream(
        self, request: ModelRequest[OpenAIResponsesConfig]
    ) -> AsyncGenerator[list[Chunk], None]:
        config = request.config
        base, quirks = self._url(config), self._quirks(config)
        form = _form(base, config, quirks)
        body, digest = self._builder.build(request, form, quirks.provider)
        reader = ResponsesReader(
            config.model_id,
            names=ToolNames(request.tool_specs),
            provider=quirks.provider,
            origin=_origin(form, digest),
            stored=config.store,
            limit=config.max_tokens,
        )
        address, headers = _address(base, config, quirks), self._auth(config, quirks)
        async with self._send(request, address, body, headers, quirks.provider) as exchange:
            yield [StreamStart(model_id=config.model_id, request_id=exchange.request_id)]
            async for events in exchange.sse():
                for chunks in reader.batches(events, request.raw):
                    if reader.ended:
                        exchange.finished()
                    yield chunks
                if reader.failure is not None:
                    raise reader.failure
                if reader.ended:
                    return
            raise exchange.unfinished()


def _form(base: str, config: OpenAIResponsesConfig, quirks: Quirks) -> Form:
    official = quirks.provider in OFFICIAL
    return Form(
        host=urlsplit(base).hostname or "",
        model=config.model_id,
        images=sees(config, quirks),
        files=reads_files(config, quirks),
        image_results=official if config.image_results is None else config.image_results,
        # Azure refuses the ids of items that it did not keep.
        item_ids=config.store or not quirks.azure if config.item_ids is None else config.item_ids,
        runs_custom_tools=quirks.provider == "xai",
    )


def _origin(form: Form, digest: str) -> JsonObject:
    """What marks data as this server's and model's own, over the wire that preceded it."""
    return {"origin": FAMILY, "host": form.host, "model_id": form.model, "wire": digest}


def _address(base: str, config: OpenAIResponsesConfig, quirks: Quirks) -> str:
    """Where to post. Azure has its path below ``/openai``, in an older form with a version in the query."""
    query = f"?api-version={config.api_version}" if config.api_version else ""
    if quirks.azure and not urlsplit(base).path.strip("/"):
        return f"{base}/openai/responses{query}" if query else f"{base}/openai/v1/responses"
    return f"{base}{query}" if base.endswith("/responses") else f"{base}/responses{query}"
