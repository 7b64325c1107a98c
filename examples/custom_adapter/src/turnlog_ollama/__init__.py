"""Ollama's own chat protocol (``/api/chat``) as a turnlog model: ``load_model("ollama:qwen3")``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec

from turnlog.contract import (
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    Feature,
    ImagePart,
    Message,
    StreamDone,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
)
from turnlog.models import ModelConfig, ModelRequest
from turnlog.models.http import HttpModel, HttpModelConfig, map_stream_fault
from turnlog.models.wire import ToolNames, complete_calls, object_schema, result_text, safe_name


class OllamaConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``num_ctx`` is the window; without it Ollama takes its own default, which is small."""

    num_ctx: int | None = None


class OllamaModel(HttpModel[OllamaConfig]):
    provider_id: ClassVar[str] = "ollama"
    specification: ClassVar[str] = "ollama-chat"
    config_type: ClassVar[type[ModelConfig]] = OllamaConfig
    default_base_url: ClassVar[str] = "http://127.0.0.1:11434"
    url_variables: ClassVar[tuple[str, ...]] = ("OLLAMA_HOST",)
    features: ClassVar[frozenset[Feature]] = frozenset(
        {"text", "tools", "thinking", "images", "stop_sequences", "output_schema"}
    )

    async def _stream(self, request: ModelRequest[OllamaConfig]) -> AsyncIterator[Chunk]:
        names = ToolNames(request.tool_specs)
        url = f"{self._url(request.config)}/api/chat"
        async with self._send(request, url, msgspec.json.encode(build_body(request)), {}) as exchange:
            yield StreamStart(model_id=request.config.model_id)
            calls = 0
            async for line in exchange.lines():
                event = parse(line)
                if event is None:  # cut short: then there was no end either
                    break
                if "error" in event:
                    raise map_stream_fault(event, self.provider_id)
                if event.get("done"):
                    exchange.finished()  # nothing more will come: the connection can serve the next call
                for chunk in read_event(event, names, calls):
                    calls += isinstance(chunk, CallEnd)
                    yield chunk
                if event.get("done"):
                    return
            raise exchange.unfinished()


# ── the request ──


def build_body(request: ModelRequest[OllamaConfig]) -> dict[str, Any]:
    config = request.config
    options = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "num_predict": config.max_tokens,
        "num_ctx": config.num_ctx,
        "stop": config.stop_sequences,
    }
    body: dict[str, Any] = {
        "model": config.model_id,
        "messages": build_messages(request),
        "options": {name: value for name, value in options.items() if value is not None},
        "stream": True,
    }
    if request.output_schema is not None:
        body["format"] = request.output_schema
    if request.tool_specs and request.tool_choice != "none":
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": safe_name(spec.name),
                    "description": spec.description,
                    "parameters": object_schema(spec.parameter_schema),
                },
            }
            for spec in request.tool_specs
        ]
    return {**body, **request.params, **(config.extra_body or {})}


def build_messages(request: ModelRequest[OllamaConfig]) -> list[dict[str, Any]]:
    """Ollama knows calls by their place and results by the tool's name; thinking is not sent back."""
    built: list[dict[str, Any]] = []
    if request.system_prompt:
        built.append({"role": "system", "content": request.system_prompt})
    names: dict[str, str] = {}
    for message in complete_calls(request.messages):
        if message.role == "tool":
            for part in message.tool_results:
                text, _ = result_text(part.payload)
                built.append({"role": "tool", "tool_name": names[part.payload.tool_call_id], "content": text})
        else:
            names |= {
                one.payload.tool_call_id: safe_name(one.payload.tool_name) for one in message.tool_calls
            }
            built.append(plain_message(message))
    return built


def plain_message(message: Message) -> dict[str, Any]:
    one: dict[str, Any] = {"role": message.role, "content": message.text}
    images = [part.payload.data for part in message.parts if isinstance(part, ImagePart)]
    if any(images):
        one["images"] = [image for image in images if image]
    if message.tool_calls:
        one["tool_calls"] = [
            {
                "function": {
                    "name": safe_name(part.payload.tool_name),
                    "arguments": part.payload.arguments or {"INVALID_JSON": part.payload.raw_args_text},
                }
            }
            for part in message.tool_calls
        ]
    return one


# ── the answer ──


def read_event(event: dict[str, Any], names: ToolNames, calls_before: int) -> list[Chunk]:
    """The chunks in one line. Calls come whole, so each is a start, its arguments and an end."""
    message = event.get("message") or {}
    chunks: list[Chunk] = []
    if thinking := message.get("thinking"):
        chunks.append(ThinkingChunk(text_delta=thinking))
    if text := message.get("content"):
        chunks.append(TextChunk(text_delta=text))
    called = message.get("tool_calls") or []
    for number, call in enumerate(called, calls_before):
        key, function = (
            str(number),
            call["function"],
        )  # the key is ours to choose; the base makes the log's id
        data = {"origin": "ollama", **({"id": call["id"]} if "id" in call else {})}
        chunks += [
            CallStart(tool_call_id=key, tool_name=names.ours(function["name"]), provider_data=data),
            CallArgs(tool_call_id=key, args_text_delta=json.dumps(function.get("arguments") or {})),
            CallEnd(tool_call_id=key),
        ]
    if event.get("done"):
        chunks += end_of(event, calls_before + len(called))
    return chunks


def end_of(event: dict[str, Any], calls: int) -> list[Chunk]:
    read, written = event.get("prompt_eval_count", 0), event.get("eval_count", 0)
    reasons = {"stop": "tool_calls" if calls else "stop", "length": "length"}
    return [
        TokenUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
        StreamDone(finish_reason=reasons.get(event.get("done_reason", "stop"), "other")),
    ]


def parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
