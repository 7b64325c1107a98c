"""Our messages as Chat Completions messages."""

from __future__ import annotations

import re
import string
from typing import Any, NamedTuple

import msgspec

from turnlog.contract import (
    FileRefPart,
    Image,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
)

from .._history import (
    file_note,
    image_note,
    own_data,
    picture_url,
    result_text,
    safe_name,
    short_id,
    unseen_note,
)
from .._wire_cache import Digest
from ._quirks import ReasoningBack

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
                    parts.append({"type": "text", "text": file_note(part.payload)})
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
            result = part.payload
            text, images = result_text(result)
            call = self._id(result.tool_call_id)
            if images and not self.images:
                text = (
                    "\n".join([text, *map(image_note, images)])
                    if text
                    else "\n".join(map(image_note, images))
                )
            elif images:
                # A tool's message holds text alone; what it shows follows in a user's message.
                shown.append({"type": "text", "text": f"[image of the result of call {call}]"})
                shown += [self._image(image) for image in images]
                text = text or "[see the image below]"
            if result.is_error and text[:5].lower() != "error":
                text = f"Error: {text}"
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
