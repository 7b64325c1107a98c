"""Messages as turns of Converse: plain dictionaries, which botocore writes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

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

from .._call_ids import CallIds
from .._history import (
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
from ._vendor import Vendor

_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_EMPTY: JsonObject = {}
_NOTHING = "(no output)"

WireRole: TypeAlias = Literal["user", "assistant"]


class Turns:
    """The conversation so far. Turns alternate: messages of the same side are joined."""

    __slots__ = (
        "_bytes",
        "_ids",
        "_previous",
        "_vendor",
        "answers_calls",
        "ends_verbatim",
        "has_calls",
        "turns",
    )

    def __init__(self, vendor: Vendor) -> None:
        self.turns: list[JsonObject] = []
        self._vendor = vendor
        self._bytes = 0
        self._ids = CallIds()
        self._previous: tuple[int, int] | None = None
        """(turn, blocks of it) where the request before this one ended."""
        self.has_calls = False
        self.answers_calls = False
        self.ends_verbatim = False

    def copy(self) -> Turns:
        other = Turns.__new__(Turns)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
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
        if self._previous is not None:
            places.add(self._previous)
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
