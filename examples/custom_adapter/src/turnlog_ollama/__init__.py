"""Ollama's own chat protocol (``/api/chat``) as a turnlog model: ``load_model("ollama:qwen3")``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import httpx2

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    ImagePart,
    Message,
    StreamDone,
    StreamStart,
    TextChunk,
    TextPart,
    ThinkingChunk,
    TokenUsage,
    ToolResultPayload,
)
from turnlog.models import Model, ModelConfig, ModelRequest

_CODES = {
    400: "ModelBadRequest",
    401: "ModelAuthError",
    403: "ModelAuthError",
    404: "ModelNotFound",
    429: "ModelRateLimited",
    503: "ModelOverloaded",
}


class OllamaConfig(ModelConfig, frozen=True, kw_only=True):
    """``num_ctx`` is the window; without it Ollama takes its own default, which is small."""

    base_url: str = "http://127.0.0.1:11434"
    num_ctx: int | None = None


class OllamaModel(Model):
    provider_id: ClassVar[str] = "ollama"
    specification: ClassVar[str] = "ollama-chat"
    config_type: ClassVar[type[ModelConfig]] = OllamaConfig
    features: ClassVar[frozenset[str]] = frozenset({"text", "tools", "thinking", "images", "stop"})

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        config: OllamaConfig = request.config
        timeout = httpx2.Timeout(600, connect=10)
        async with (
            httpx2.AsyncClient(base_url=config.base_url, timeout=timeout) as client,
            client.stream("POST", "/api/chat", json=build_body(request)) as answer,
        ):
            if answer.status_code != 200:
                raise refusal(answer.status_code, answer.headers, await answer.aread())
            yield StreamStart(model_id=config.model_id)
            calls = 0
            async for line in answer.aiter_lines():
                # A line that was cut short is not JSON: then there was no end either, and the base says so.
                if not line.strip() or (event := _parse(line)) is None:
                    continue
                for chunk in read_event(event, calls):
                    calls += isinstance(chunk, CallEnd)
                    yield chunk

    def _map_error(self, error: BaseException) -> AgentError:
        base_url = self.get_config().base_url
        match error:
            case httpx2.ConnectError():
                found = f"no Ollama answers at {base_url}; start it with `ollama serve`, or set base_url"
                return AgentError("ModelServerError", found, cause=error)
            case httpx2.TimeoutException():
                return AgentError("ModelTimeout", f"Ollama at {base_url} took too long", cause=error)
            case httpx2.TransportError():
                return AgentError("ModelServerError", f"Ollama at {base_url}: {error}", cause=error)
            case _:
                return super()._map_error(error)


# ── the request ──


def build_body(request: ModelRequest) -> dict[str, Any]:
    config: OllamaConfig = request.config
    options = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "num_predict": config.max_tokens,
        "num_ctx": config.num_ctx,
        "stop": config.stop_sequences,
    }
    body: dict[str, Any] = {
        "model": config.model_id,
        "messages": build_messages(request.messages, request.system_prompt),
        "options": {name: value for name, value in options.items() if value is not None},
        "stream": True,
    }
    if request.tool_specs and request.tool_choice != "none":
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": spec.name,
                    "description": spec.description,
                    "parameters": spec.parameter_schema,
                },
            }
            for spec in request.tool_specs
        ]
    return body


def build_messages(messages: tuple[Message, ...], system_prompt: str | None) -> list[dict[str, Any]]:
    """Ollama knows calls by their place and results by the tool's name; thinking is not sent back."""
    built: list[dict[str, Any]] = []
    if system_prompt:
        built.append({"role": "system", "content": system_prompt})
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            for part in message.tool_results:
                name = names.get(part.payload.tool_call_id, "unknown")
                built.append({"role": "tool", "tool_name": name, "content": result_text(part.payload)})
            continue
        one: dict[str, Any] = {"role": message.role, "content": message.text}
        images = [p.payload.data for p in message.parts if isinstance(p, ImagePart) and p.payload.data]
        if images:
            one["images"] = images
        if message.tool_calls:
            one["tool_calls"] = [
                {"function": {"name": part.payload.tool_name, "arguments": part.payload.arguments or {}}}
                for part in message.tool_calls
            ]
            names |= {part.payload.tool_call_id: part.payload.tool_name for part in message.tool_calls}
        built.append(one)
    return built


def result_text(result: ToolResultPayload) -> str:
    if isinstance(result.content, str):
        return result.content
    if isinstance(result.content, dict):
        return json.dumps(result.content, ensure_ascii=False)
    return "\n".join(
        part.payload.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in result.content
    )


# ── the answer ──


def read_event(event: dict[str, Any], calls_before: int) -> list[Chunk]:
    """The chunks in one line. Calls come whole, so each is a start, its arguments and an end."""
    if "error" in event:
        raise AgentError("ModelServerError", f"Ollama: {event['error']}")
    message = event.get("message") or {}
    chunks: list[Chunk] = []
    if thinking := message.get("thinking"):
        chunks.append(ThinkingChunk(text_delta=thinking))
    if text := message.get("content"):
        chunks.append(TextChunk(text_delta=text))
    called = message.get("tool_calls") or []
    for number, call in enumerate(called, calls_before):
        key = str(number)  # ours to choose; the base makes the id that the log knows
        function = call["function"]
        chunks += [
            CallStart(tool_call_id=key, tool_name=function["name"], provider_data=_origin(call)),
            CallArgs(tool_call_id=key, args_text_delta=json.dumps(function.get("arguments") or {})),
            CallEnd(tool_call_id=key),
        ]
    if event.get("done"):
        chunks += _end(event, calls_before + len(called))
    return chunks


def _origin(call: dict[str, Any]) -> dict[str, Any]:
    """What is this provider's own, kept with the call and sent back to nobody else."""
    return {"origin": "ollama", **({"id": call["id"]} if "id" in call else {})}


def _end(event: dict[str, Any], calls: int) -> list[Chunk]:
    read, written = event.get("prompt_eval_count", 0), event.get("eval_count", 0)
    reason = {"stop": "tool_calls" if calls else "stop", "length": "length"}.get(
        event.get("done_reason", "stop"), "other"
    )
    return [
        TokenUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
        StreamDone(finish_reason=reason),
    ]


def refusal(status: int, headers: Any, body: bytes) -> AgentError:
    found = _parse(body.decode("utf-8", "replace")) or {}
    after = headers.get("retry-after", "")
    return AgentError(
        _CODES.get(status, "ModelServerError"),
        f"Ollama refused ({status}): {found.get('error', 'no reason given')}",
        meta={"retry_after": float(after)} if after.isdigit() else None,
    )


def _parse(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
