"""Messages as turns of Converse: plain dictionaries, which botocore writes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from turnlog.contract import (
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    encode,
)

from ..wire import (
    CallIds,
    data_url,
    file_note,
    image_note,
    misplaced,
    missing_note,
    own_data,
    safe_name,
    split_data_url,
)
from ._stream import ORIGIN

_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_EMPTY: JsonObject = {}
_NOTHING = "(no output)"

WireRole: TypeAlias = Literal["user", "assistant"]

_REGIONS = frozenset({"us", "eu", "apac", "jp", "au", "ca", "sa", "me", "af", "global", "us-gov"})
_TEXT_ONLY = re.compile(
    r"titan-text|nova-micro|deepseek|gpt-oss|command|jamba|mixtral|mistral-(7b|large-2402|small-2402)"
    r"|llama3(-1)?-\d|llama3-2-[13]b|claude-(v2|instant)|claude-3-5-haiku"
)
_SCHEMAS = re.compile(r"claude-(?:[a-z]+-(?:4-[1-9]\b|[5-9])|fable|mythos)")
_CACHES = re.compile(r"nova-|claude-3-5-haiku|claude-3-5-sonnet-20241022|claude-3-7|claude-[a-z]+-\d")


class Vendor(NamedTuple):
    name: str
    """``anthropic``, ``amazon``, …; empty when the name does not say (an inference profile's ARN)."""
    images: bool
    result_images: bool
    """Whether a tool's result may hold images, and say that it is an error."""
    cache: bool
    cache_tools: bool
    forced_tool: bool
    mixed_turns: bool
    """Whether a turn may hold a tool's result and text."""
    schemas: bool
    """Whether an answer can be held to a schema."""


def vendor_of(model_id: str) -> Vendor:
    words = model_id.rsplit("/", 1)[-1].split(".")
    if len(words) > 1 and words[0] in _REGIONS:
        words = words[1:]
    name = words[0] if len(words) > 1 else ""
    capable = name in ("anthropic", "amazon", "")
    caches = name in ("anthropic", "amazon") and _CACHES.search(model_id) is not None
    return Vendor(
        name=name,
        images=_TEXT_ONLY.search(model_id) is None,
        result_images=capable,
        cache=caches,
        cache_tools=caches and name == "anthropic",
        forced_tool=capable or name == "mistral",
        mixed_turns=capable,
        schemas=name == "anthropic" and _SCHEMAS.search(model_id) is not None,
    )


class Turns:
    """The conversation so far. Turns alternate: messages of the same side are joined."""

    def __init__(self, vendor: Vendor) -> None:
        self.turns: list[JsonObject] = []
        self._vendor = vendor
        self._bytes = 0
        self._ids = CallIds()
        self._previous: tuple[int, int] | None = None
        """(turn, blocks of it) where the request before this one ended."""
        self._stable: tuple[int, int] | None = None
        """Up to where the context stays the same over folds."""
        self.has_calls = False
        self.answers_calls = False
        self.ends_verbatim = False

    def copy(self) -> Turns:
        other = Turns.__new__(Turns)
        other.__dict__.update(self.__dict__)
        other._ids = self._ids.copy()
        other.turns = self.turns[:]
        if other.turns:  # only the last turn can still grow
            last = other.turns[-1]
            other.turns[-1] = {"role": last["role"], "content": last["content"][:]}
        return other

    @property
    def size(self) -> int:
        return self._bytes

    @property
    def last_role(self) -> WireRole | None:
        return self.turns[-1]["role"] if self.turns else None

    # ── adding ──

    def add(self, message: Message) -> None:
        match message.role:
            case "user":
                self._append("user", [self._given(part) for part in message.parts])
                if message.meta and message.meta.get("stable") and self.turns:
                    self._stable = (len(self.turns) - 1, len(self.turns[-1]["content"]))
            case "system":
                if message.text.strip():
                    self.say(f"<system>\n{message.text}\n</system>")
            case "tool":
                results = [self._result(part.payload) for part in message.tool_results]
                self._append("user", results, results=True)
            case "assistant":
                if self.turns:
                    self._previous = (len(self.turns) - 1, len(self.turns[-1]["content"]))
                self._append("assistant", self._answer(message))

    def say(self, text: str) -> None:
        """A user's text."""
        self._append("user", [{"text": text}])

    def _append(self, role: WireRole, found: Sequence[JsonObject | None], *, results: bool = False) -> None:
        blocks = [block for block in found if block is not None]
        if not blocks:
            return
        if not self.turns and role == "assistant":
            self.say("Begin.")  # the first word must be the user's
        if role == "user" and self.answers_calls and not results and not self._vendor.mixed_turns:
            self.turns.append({"role": "assistant", "content": [{"text": "Understood."}]})
            self.answers_calls = False
        if self.last_role == role:
            self.turns[-1]["content"] += blocks
            self.answers_calls = self.answers_calls or results
        else:
            self.turns.append({"role": role, "content": blocks})
            self.answers_calls = results
        self.ends_verbatim = (
            "toolUse" in blocks[-1] and blocks[-1]["toolUse"].get("type") == "server_tool_use"
        )
        self._bytes += sum(map(_weight, blocks))

    # ── the assistant's side ──

    def _answer(self, message: Message) -> list[JsonObject | None]:
        self._ids.begin_answer()
        blocks: list[JsonObject | None] = []
        for part in message.parts:
            match part:
                case TextPart():
                    blocks.append(self._said(part))
                case ThinkingPart():
                    blocks.append(self._thought(part))
                case ToolCallPart():
                    blocks.append(self._call(part.payload))
                case ToolResultPart() | ImagePart() | FileRefPart():
                    raise misplaced("assistant", part)
        while blocks and (blocks[-1] is None or "reasoningContent" in blocks[-1]):
            blocks.pop()  # thinking that nothing followed
        return blocks

    def _own(self, data: JsonObject | None) -> JsonObject:
        """What this vendor's models wrote: the others on Bedrock cannot read it."""
        own = own_data(data, ORIGIN) or _EMPTY
        return own if own.get("vendor") == self._vendor.name else _EMPTY

    def _said(self, part: TextPart) -> JsonObject | None:
        own = self._own(part.payload.provider_data)
        if block := own.get("block"):
            return block
        text = part.payload.text
        if not text.strip():  # blank text is refused wherever it stands
            return None
        if citations := own.get("citations"):
            return {"citationsContent": {"content": [{"text": text}], "citations": citations}}
        return {"text": text}

    def _thought(self, part: ThinkingPart) -> JsonObject | None:
        own = self._own(part.payload.provider_data)
        if signature := own.get("signature"):
            return {
                "reasoningContent": {"reasoningText": {"text": part.payload.text, "signature": signature}}
            }
        if hidden := own.get("redacted"):
            return {"reasoningContent": {"redactedContent": base64.b64decode(hidden)}}
        return None

    def _call(self, call: ToolCall) -> JsonObject:
        self.has_calls = True
        theirs = str((own_data(call.provider_data, ORIGIN) or _EMPTY).get("id") or "")
        known = theirs.startswith(("tooluse_", "toolu_"))
        wire_id, _ = self._ids.take(call.tool_call_id, theirs if known else "")
        given = call.arguments if call.arguments is not None else {"INVALID_JSON": call.raw_args_text}
        return {"toolUse": {"toolUseId": wire_id, "name": safe_name(call.tool_name), "input": given}}

    # ── the user's side ──

    def _given(self, part: MessagePart) -> JsonObject | None:
        match part:
            case TextPart() | ImagePart() | FileRefPart():
                return self._part(part, images=self._vendor.images)
            case ThinkingPart() | ToolCallPart() | ToolResultPart():
                raise misplaced("user", part)

    def _part(self, part: TextPart | ImagePart | FileRefPart, *, images: bool) -> JsonObject | None:
        match part:
            case TextPart():
                return {"text": part.payload.text} if part.payload.text.strip() else None
            case ImagePart():
                return _image(part.payload) if images else {"text": image_note(part.payload)}
            case FileRefPart():
                return {"text": file_note(part.payload)}

    def _result(self, result: ToolResultPayload) -> JsonObject:
        content = result.content
        blocks: list[JsonObject] = []
        if isinstance(content, str):
            blocks = [{"text": content}] if content.strip() else []
        elif isinstance(content, dict):
            blocks = [{"text": encode(content).decode()}]
        else:
            shown = self._vendor.images and self._vendor.result_images
            blocks = [block for part in content if (block := self._part(part, images=shown))]
        blocks = blocks or [{"text": _NOTHING}]
        wired: JsonObject = {
            "toolUseId": self._ids.of(result.tool_call_id),
            "content": blocks,
        }
        if result.is_error and self._vendor.result_images:
            wired["status"] = "error"
        elif result.is_error:
            wired["content"] = [{"text": "The tool failed:"}, *blocks]
        return {"toolResult": wired}

    # ── writing ──

    def write(self, mark: JsonObject | None) -> list[JsonObject]:
        """The turns; with ``mark`` after the newest block and where the request before this one ended."""
        turns = self.turns
        if mark is None or not turns:
            return turns
        marked = turns[:]
        places = {(len(turns) - 1, len(turns[-1]["content"]))}
        places |= {place for place in (self._previous, self._stable) if place is not None}
        for turn, at in sorted(places, reverse=True):
            content: list[Any] = marked[turn]["content"]
            if "reasoningContent" not in content[at - 1]:
                marked[turn] = {
                    "role": marked[turn]["role"],
                    "content": [*content[:at], {"cachePoint": mark}, *content[at:]],
                }
        return marked


def _weight(block: JsonObject) -> int:
    return len(block["image"]["source"]["bytes"]) if "image" in block else len(str(block))


def _image(image: Image) -> JsonObject:
    inline = split_data_url(data_url(image) or "")
    if inline is None:
        return {
            "text": missing_note(image) if image.url is None or image.url[:4] != "http" else image_note(image)
        }
    form = _FORMATS.get(inline[0] or image.mime_type)
    if form is None:
        return {"text": image_note(image)}
    try:
        data = base64.b64decode(inline[1], validate=False)
    except (binascii.Error, ValueError):
        return {"text": missing_note(image)}
    return {"image": {"format": form, "source": {"bytes": data}}} if data else {"text": missing_note(image)}
