"""``anthropic:`` models: Anthropic, its models on other clouds, and servers that speak its protocol."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, Literal

import msgspec

from turnlog.contract import (
    AgentError,
    Feature,
    JsonObject,
    ModelFacts,
    SpecificTool,
    ToolSpec,
    bare_name,
    encode,
    model_facts,
)

from .._base import Chunk, batched
from .._config import CAPABLE, ModelConfig, ModelRequest
from .._openai import is_public
from .._turns import LOST_THOUGHTS, FoldCache, cache_mark
from ..http import HttpModel, HttpModelConfig
from ..http._window import Server
from ..wire import ToolNames, closed_schema, is_strict, object_schema, safe_name, split_system
from ._stream import MessagesReader
from ._turns import Turns

_SMALLEST_BUDGET = 1024
_THINKING = ("adaptive", "between_tools", "disabled")


class AnthropicConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``thinking`` is a budget in tokens, one of ``adaptive``, ``between_tools`` and ``disabled``, or the
    API's own object; ``effort`` how hard the model tries.

    ``platform`` is ``vertex`` for Google's address (``base_url`` up to the location), whose key is a bearer
    token; ``auth`` says how the key is sent elsewhere. ``server_tools`` are tools that run at Anthropic, in
    the API's own form. ``eager_tool_streaming`` lets arguments come as they are written, checked by nobody.
    ``unsigned_thinking`` sends thinking back that carries no signature: local servers want it, Anthropic
    refuses it.
    """

    thinking: int | str | JsonObject | None = None
    effort: str | None = None
    top_k: int | None = None
    parallel_tool_calls: bool | None = None
    server_tools: list[JsonObject] | None = None
    eager_tool_streaming: bool | None = None
    unsigned_thinking: bool = False
    betas: list[str] | None = None
    anthropic_version: str = "2023-06-01"
    platform: Literal["anthropic", "vertex"] = "anthropic"
    auth: Literal["api-key", "bearer"] | None = None
    container: str | None = None
    service_tier: str | None = None
    user_id: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.thinking, str) and self.thinking not in _THINKING:
            raise AgentError(
                "ConfigInvalid",
                f"thinking is {self.thinking!r}; expected a budget in tokens, {', '.join(_THINKING)}, "
                "or the API's own object",
            )
        if isinstance(self.thinking, bool):
            raise AgentError(
                "ConfigInvalid", "thinking is a yes or no; write 'adaptive', 'disabled' or a budget"
            )
        if isinstance(self.thinking, int):
            self._check_budget(self.thinking)

    def _check_budget(self, budget: int) -> None:
        if budget < _SMALLEST_BUDGET:
            raise AgentError(
                "ConfigInvalid", f"thinking is a budget of {budget} tokens; the least is {_SMALLEST_BUDGET}"
            )
        if self.max_tokens is not None and self.max_tokens <= budget:
            raise AgentError(
                "ConfigInvalid",
                f"max_tokens is {self.max_tokens} and the thinking budget {budget}; "
                "thinking counts as output, so max_tokens must be larger",
            )
        if self.temperature not in (None, 1):
            raise AgentError(
                "ConfigInvalid", f"temperature is {self.temperature}; with a thinking budget it can only be 1"
            )


MAX_MARKS = 4
VERTEX_VERSION = "vertex-2023-10-16"
_READS_FILES = re.compile(r"claude-(?!\d$|v?[12]|instant|3-(?:haiku|opus|sonnet))")
_NO_TOOL: JsonObject = {
    "name": "no_tool",
    "description": "No tool can be called.",
    "input_schema": {"type": "object", "properties": {}},
}


def reads_files(model_id: str) -> bool:
    """Whether the model takes PDFs: Claude since 3.5, and no model of the other servers of this protocol."""
    return _READS_FILES.match(bare_name(model_id)) is not None


DEFAULT_MAX_TOKENS = 32_000
"""``max_tokens`` when nothing is configured and the model allows as much: only what is written is paid."""

_UNKNOWN_MAX_TOKENS = 8_192
"""The same of a model that nothing is known of. Servers refuse a prompt that leaves less of the window than
this, so in a small window it is the quarter that a fold leaves free."""


def build_body(request: ModelRequest[AnthropicConfig], cache: FoldCache[Turns]) -> tuple[bytes, str | None]:
    """(the body, why it does not ask for the thinking that is configured, where it does not)."""
    config = request.config
    system, messages = split_system(request.messages, None)
    unsigned, files = config.unsigned_thinking, reads_files(config.model_id)
    turns = cache.fold(
        (request.metadata.session_id, unsigned, files),
        tuple(messages),
        lambda: Turns(unsigned_thinking=unsigned, files=files),
    )
    turns.close()
    head, why = _settings(request, config, turns)
    overrides = {**request.params, **(config.extra_body or {})}
    mark = None if "cache_control" in overrides else cache_mark(config.cache_config, "ephemeral")
    tools = _tools(request.tool_specs, config, turns)
    free = MAX_MARKS - turns.mark_count if mark else 0
    if instructions := _instructions(request, system, mark):
        head["system"] = instructions
        free -= sum("cache_control" in block for block in instructions)
    if tools:
        head["tools"] = _marked(tools, mark if free > 0 else None)
    head.update(overrides)
    parts = turns.write(b',"cache_control":' + encode(mark) if mark else None)
    return b"".join((encode(head)[:-1], b',"messages":[', *parts, b"]}")), why


def _instructions(
    request: ModelRequest[AnthropicConfig], system: list[str], mark: JsonObject | None
) -> list[JsonObject]:
    """The system prompt. A part that its author marked carries a cache mark, else the last one does."""
    parts = [part for part in request.prompt_parts if part.text.strip()]
    blocks: list[JsonObject] = [{"type": "text", "text": part.text} for part in parts]
    blocks += [{"type": "text", "text": text} for text in system if text.strip()]
    chosen = [at for at, part in enumerate(parts) if part.cache][-1:] or [len(blocks) - 1]
    return [
        {**block, "cache_control": mark} if mark and at in chosen else block
        for at, block in enumerate(blocks)
    ]


def _settings(
    request: ModelRequest[AnthropicConfig], config: AnthropicConfig, turns: Turns
) -> tuple[JsonObject, str | None]:
    facts = model_facts(config.model_id)
    choice = _tool_choice(request, config, turns)
    thinking, why = _thinking(config, facts, turns, forced=choice.get("type") in ("any", "tool"))
    output: JsonObject = {"effort": config.effort} if config.effort else {}
    if request.output_schema is not None:
        output["format"] = {"type": "json_schema", "schema": closed_schema(request.output_schema)}
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
    head["max_tokens"] = _max_tokens(config, facts, thinking)
    head["stream"] = True
    head.update({name: value for name, value in optional.items() if value not in (None, {}, [])})
    return head, why


def _max_tokens(config: AnthropicConfig, facts: ModelFacts, thinking: JsonObject) -> int:
    if config.max_tokens is not None:
        return config.max_tokens
    unknown = min(_UNKNOWN_MAX_TOKENS, (config.context_window or _UNKNOWN_MAX_TOKENS * 4) // 4)
    longest = config.max_output_tokens or facts.max_output or unknown
    most = min(longest, DEFAULT_MAX_TOKENS)
    budget = thinking.get("budget_tokens")
    return min(budget + most, longest) if isinstance(budget, int) else most


def _thinking(
    config: AnthropicConfig, facts: ModelFacts, turns: Turns, *, forced: bool
) -> tuple[JsonObject, str | None]:
    """(what to say about thinking, why that is not what was configured); nothing said is the model's default.

    The API refuses thinking beside a forced tool, and a budget in the middle of work that began without
    thinking (another model began it, or a fold took it away): there it is left out.
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
    if forced and (kind != "disabled" or facts.thinks == "by default"):
        why = "thinking is off: the API has none beside a forced tool call" if kind != "disabled" else None
        return {"type": "disabled"} if facts.thinks == "by default" else {}, why
    if kind == "enabled" and turns.lost_thoughts:
        return {}, LOST_THOUGHTS
    return wanted, None


def _tool_choice(request: ModelRequest[AnthropicConfig], config: AnthropicConfig, turns: Turns) -> JsonObject:
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


def _marked(blocks: list[JsonObject], mark: JsonObject | None) -> list[JsonObject]:
    """``blocks`` with ``mark`` on the last one that may carry it: a tool loaded later may not."""
    if mark:
        for at in range(len(blocks) - 1, -1, -1):
            if not blocks[at].get("defer_loading"):
                blocks[at] = {**blocks[at], "cache_control": mark}
                break
    return blocks


_TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"
_NO_SCHEMA = re.compile(r"claude-([v123]|instant|(opus|sonnet|haiku)-(3|4(-0|-20|@|$)))")
"""Models from before answers could be held to a schema."""


class AnthropicModel(HttpModel[AnthropicConfig]):
    """The Messages API, streamed.

    ``base_url`` may name any server that speaks it, with or without ``/v1`` at the end. The key comes from
    ``api_key``, else ``ANTHROPIC_API_KEY``, else ``ANTHROPIC_AUTH_TOKEN``, which is sent as a bearer token.
    """

    provider_id: ClassVar[str] = "anthropic"
    specification: ClassVar[str] = "anthropic-messages"
    config_type: ClassVar[type[ModelConfig]] = AnthropicConfig
    features: ClassVar[frozenset[Feature]] = CAPABLE
    default_base_url: ClassVar[str] = "https://api.anthropic.com"
    url_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", _TOKEN_VARIABLE)

    def __init__(self, config: AnthropicConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._turns: FoldCache[Turns] = FoldCache()

    def _check_config(self, config: AnthropicConfig) -> None:
        if config.platform == "vertex" and not config.base_url:
            raise AgentError(
                "ConfigInvalid",
                "platform 'vertex' needs base_url, up to the location: "
                "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION",
            )

    @batched
    async def _stream(self, request: ModelRequest[AnthropicConfig]) -> AsyncGenerator[list[Chunk], None]:
        config = request.config
        headers = self._headers(config)
        if config.context_window is None and (told := self.told_window(self.descriptor)):
            config = msgspec.structs.replace(config, context_window=told)
            request = msgspec.structs.replace(request, config=config)
        body, why = build_body(request, self._turns)
        async with self._send(request, self._address(config), body, headers) as exchange:
            reader = MessagesReader(
                config.model_id,
                names=ToolNames(request.tool_specs),
                provider=self.provider_id,
                request_id=exchange.request_id,
                reason=why,
            )
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

    def _address(self, config: AnthropicConfig) -> str:
        url = self._url(config)
        if config.platform == "vertex":
            return f"{url}/publishers/anthropic/models/{config.model_id}:streamRawPredict"
        if url.endswith("/messages"):
            return url
        return f"{url}/messages" if url.endswith("/v1") else f"{url}/v1/messages"

    def _headers(self, config: AnthropicConfig) -> dict[str, str]:
        headers = {"accept": "text/event-stream", "anthropic-version": config.anthropic_version}
        if config.betas:
            headers["anthropic-beta"] = ",".join(config.betas)
        key = self._key(config)
        if key:
            if self._sends_bearer(config, key):
                headers["authorization"] = f"Bearer {key}"
            else:
                headers["x-api-key"] = key
        return headers

    def _own_server(self, config: AnthropicConfig) -> Server | None:
        url = self._url(config)
        if is_public(url) or config.platform == "vertex":
            return None
        return Server(url, config.model_id, self._headers(config))

    @staticmethod
    def _sends_bearer(config: AnthropicConfig, key: str) -> bool:
        if config.auth is not None:
            return config.auth == "bearer"
        return config.platform == "vertex" or (
            config.api_key is None and key == os.environ.get(_TOKEN_VARIABLE, "").strip()
        )

    def _features(self) -> frozenset[Feature]:
        model = bare_name(self._config.model_id)
        # A model that always thinks refuses to be forced to call a tool.
        lacks: set[Feature] = {"forced_tool"} if model_facts(model).thinks == "always" else set()
        if not model.startswith("claude-") or _NO_SCHEMA.match(model):
            lacks.add("output_schema")
        if not reads_files(self._config.model_id):
            lacks.add("files")
        return self.features - lacks
