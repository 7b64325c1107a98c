"""The configuration of a Chat Completions model, and one call as the bytes of a request."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from turnlog.contract import (
    PDF,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    SpecificTool,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)

from .._config import ModelRequest
from .._openai import (
    OpenAIConfig,
    OpenAIRequests,
    Quirks,
    ReasoningBack,
    cache_key,
    held_schema,
    told_result,
    write_body,
)
from .._turns import Digest, Wire
from ..wire import (
    file_note,
    image_note,
    is_strict,
    object_schema,
    own_data,
    pdf_data,
    picture_url,
    safe_name,
    short_id,
    unseen_note,
)


class OpenAIChatConfig(OpenAIConfig, frozen=True, kw_only=True):
    """Fields of the protocol, and five that state how a server differs where its host is not known.

    ``max_tokens_field`` names the limit's field; ``reasoning_back`` where earlier thoughts are sent back;
    ``think_tags`` takes ``<think>…</think>`` at the start of an answer apart as thinking; ``images``
    says whether the model sees; ``include_usage`` asks for token counts.
    """

    reasoning_effort: str | None = None
    verbosity: str | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    service_tier: str | None = None
    user: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    reasoning_back: ReasoningBack | None = None
    think_tags: bool = False
    include_usage: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("presence_penalty", "frequency_penalty"):
            value: Any = getattr(self, name)
            if value is not None and not -2 <= value <= 2:
                raise AgentError("ConfigInvalid", f"{name} is {value}; it must be -2 to 2")


FAMILY = "openai-chat"
_ALPHANUMERIC = string.ascii_letters + string.digits
_ID = re.compile(r"[\x21-\x7e]{1,40}")
"""What OpenAI takes as the id of a call."""

_json = msgspec.json.Encoder().encode


class Form(NamedTuple):
    """What of a server's ways changes how a message reads. Two calls with one form share encoded bytes."""

    host: str
    model: str
    nine_character_ids: bool
    images: bool
    files: bool
    reasoning_back: ReasoningBack

    def encode(self, message: Message, before: Digest) -> bytes:
        """The JSON objects of ``message``, joined by commas."""
        match message.role:
            case "system":
                text = _joined(message)
                return _json({"role": "system", "content": text}) if text else b""
            case "user":
                content = self._content(message)
                return _json({"role": "user", "content": content}) if content else b""
            case "assistant":
                said = self._assistant(message, before)
                return _json(said) if said else b""
            case "tool":
                return b",".join([_json(item) for item in self._results(message)])

    # ── users ──

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        if len(message.parts) == 1 and type(part := message.parts[0]) is TextPart:
            return part.payload.text if part.payload.text.strip() else ""
        parts: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case TextPart():
                    if part.payload.text.strip():  # blank text is refused by some
                        parts.append({"type": "text", "text": part.payload.text})
                case ImagePart():
                    parts.append(self._image(part.payload))
                case FileRefPart():
                    parts.append(self._file(part.payload))
                case ThinkingPart() | ToolCallPart() | ToolResultPart():
                    pass  # no user's message holds one
        if all(part["type"] == "text" for part in parts):
            return "\n".join(part["text"] for part in parts)
        return parts

    def _image(self, image: Image) -> dict[str, Any]:
        if not self.images:
            return {"type": "text", "text": image_note(image)}
        url = picture_url(image)
        if url is None:
            return {"type": "text", "text": unseen_note(image)}
        return {"type": "image_url", "image_url": {"url": url}}

    def _file(self, file: FileRef) -> dict[str, Any]:
        data = pdf_data(file) if self.files else None
        if data is None:
            return {"type": "text", "text": file_note(file)}
        return {
            "type": "file",
            "file": {"filename": file.path, "file_data": f"data:{PDF};base64,{data}"},
        }

    # ── the model ──

    def _assistant(self, message: Message, before: Digest) -> dict[str, Any] | None:
        text = _joined(message)
        calls = [part.payload for part in message.tool_calls]
        if not text and not calls:
            return None
        said: dict[str, Any] = {"role": "assistant"}
        if text or not calls:
            said["content"] = text
        elif not self.nine_character_ids:
            said["content"] = None  # Mistral wants the field left out
        if self.reasoning_back != "off":
            self._thoughts(message, said, before)
        if calls:
            said["tool_calls"] = [self._call(call) for call in calls]
        return said

    def _thoughts(self, message: Message, said: dict[str, Any], before: Digest) -> None:
        """What this very server and model thought before, where it wants it back."""
        thoughts: list[str] = []
        details: list[Any] = []
        for part in message.parts:
            if not isinstance(part, ThinkingPart):
                continue
            data = self._own(part.payload.provider_data)
            if data is None or data.get("wire") not in (None, before()):
                continue
            if self.reasoning_back == "reasoning_details":
                details += data.get("details") or []
            elif data.get("field"):
                thoughts.append(part.payload.text)
        if details:
            said["reasoning_details"] = details
        elif thoughts:
            said[self.reasoning_back] = "".join(thoughts)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.raw_args_text
        if call.arguments is None:
            # Servers parse these again and refuse what is not an object; the model sees what it wrote.
            arguments = _json({"INVALID_JSON": arguments}).decode()
        elif not arguments.strip():
            arguments = "{}"
        wire: dict[str, Any] = {
            "id": self._id(call.tool_call_id),
            "type": "function",
            "function": {"name": safe_name(call.tool_name), "arguments": arguments},
        }
        if call.provider_data is not None:
            data = self._own(call.provider_data)
            if data is not None and data.get("extra_content"):
                wire["extra_content"] = data["extra_content"]
        return wire

    def _own(self, data: dict[str, Any] | None) -> dict[str, Any] | None:
        own = own_data(data, FAMILY)
        if own is None or own.get("host") != self.host or own.get("model_id") != self.model:
            return None
        return own

    # ── tools ──

    def _results(self, message: Message) -> list[dict[str, Any]]:
        wire: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        for part in message.tool_results:
            call = self._id(part.payload.tool_call_id)
            text, images = told_result(part.payload, self.images)
            if images:
                # A tool's message holds text alone; what it shows follows in a user's message.
                shown.append({"type": "text", "text": f"[image of the result of call {call}]"})
                shown += [self._image(image) for image in images]
            wire.append({"role": "tool", "tool_call_id": call, "content": text})
        if shown:
            wire.append({"role": "user", "content": shown})
        return wire

    def _id(self, call_id: str) -> str:
        if self.nine_character_ids:
            return short_id(call_id, 9, _ALPHANUMERIC)
        return call_id if _ID.fullmatch(call_id) else short_id(call_id, 24, _ALPHANUMERIC)


def _joined(message: Message) -> str:
    """The texts of ``message``; nothing where all of them are blank."""
    text = "\n".join(
        [part.payload.text for part in message.parts if part.kind == "text" and part.payload.text]
    )
    return text if text.strip() else ""


_NO_INPUT = b'{"role":"user","content":"Begin."}'
_GO_ON = b'{"role":"user","content":"Continue."}'
"""Mistral refuses a conversation whose last word is the model's."""


class RequestBuilder(OpenAIRequests):
    def build(self, request: ModelRequest[OpenAIChatConfig], form: Form, quirks: Quirks) -> tuple[bytes, str]:
        """(the body, the digest of what precedes the answer)."""
        config, specs, strict = request.config, request.tool_specs, quirks.strict_tools
        tools = self._declared((specs, strict), lambda: [_tool(spec, strict) for spec in specs])
        system = b""
        if request.system_prompt:
            system = _json({"role": "system", "content": request.system_prompt})
        seed = system + tools
        wire = self._cache.fold(
            (request.metadata.session_id, form), request.messages, lambda: Wire(form.encode, seed), seed
        )
        digest, pieces = wire.digest(), wire.pieces or (_NO_INPUT,)
        if quirks.nine_character_ids and _ends_with_answer(request.messages):
            pieces = (*pieces, _GO_ON)
        listed = _listed((system, *pieces) if system else pieces)
        extra: JsonObject = {**request.params, **(config.extra_body or {})}
        fields = _fields(config, request, quirks)
        return write_body(fields, extra, messages=[b"[", *listed, b"]"], tools=[tools]), digest


def _ends_with_answer(messages: Sequence[Message]) -> bool:
    for message in reversed(messages):
        if message.text.strip() or message.tool_calls:
            return message.role == "assistant" and not message.tool_calls
        if any(not isinstance(part, TextPart | ThinkingPart) for part in message.parts):
            return False  # pictures, files, results
    return False


def _listed(pieces: Sequence[bytes]) -> list[bytes]:
    """The messages and the commas between them, to be joined once with everything else."""
    listed: list[bytes] = []
    for piece in pieces:
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


def _fields(
    config: OpenAIChatConfig, request: ModelRequest[OpenAIChatConfig], quirks: Quirks
) -> dict[str, Any]:
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
    if request.output_schema is not None:
        schema = held_schema(request.output_schema)
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.tool_specs:
        fields["tool_choice"] = _choice(request.tool_choice, quirks)
        fields["parallel_tool_calls"] = config.parallel_tool_calls
    cache = config.cache_config
    if quirks.cache_key and (cache is None or cache.strategy == "auto"):
        fields["prompt_cache_key"] = cache_key(request.metadata.session_id)
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
