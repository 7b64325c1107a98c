"""Messages as turns of the Messages API, written as bytes, with the places where a cache mark may stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

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

from .._loose import as_object, as_text
from ..wire import (
    PICTURES,
    CallIds,
    call_input,
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

ANCHOR_EVERY = 15
"""A mark every so many blocks is found again: the API looks back over 20."""

_NO_RESULT_TEXT = "The tool failed and said nothing."
_EMPTY: JsonObject = {}

WireRole: TypeAlias = Literal["user", "assistant"]


class _Wired(NamedTuple):
    """A block as bytes. Thinking cannot carry a cache mark."""

    data: bytes
    markable: bool = True
    verbatim: bool = False


class Turns:
    """The conversation so far. Turns alternate: messages of the same side are joined."""

    def __init__(self, *, unsigned_thinking: bool = False) -> None:
        self._wire = bytearray()
        self._role: WireRole | None = None
        self._marks: list[int] = []
        self._anchors: list[int] = []
        self._blocks = 0
        self._previous = 0
        self._stable = 0
        self._ids = CallIds()
        self._unsigned = unsigned_thinking
        self.has_calls = False
        self.answers_calls = False
        """The last turn holds results: the model is in the middle of its work."""
        self.loop_thinks: bool | None = None
        """Whether the first answer of that work began with thinking."""
        self.ends_verbatim = False
        self.container: str | None = None

    def copy(self) -> Turns:
        other = Turns.__new__(Turns)
        other.__dict__.update(self.__dict__)
        other._wire = self._wire[:]
        other._marks = self._marks[:]
        other._anchors = self._anchors[:]
        other._ids = self._ids.copy()
        return other

    @property
    def size(self) -> int:
        return len(self._wire) + 64 * self._blocks

    @property
    def last_role(self) -> WireRole | None:
        return self._role

    # ── adding ──

    def add(self, message: Message) -> None:
        match message.role:
            case "user":
                self._append("user", [_given(part) for part in message.parts])
                if message.meta and message.meta.get("stable"):
                    self._stable = len(self._marks)
            case "system":
                text = message.text
                if text.strip():
                    self.say(f"<system>\n{text}\n</system>")
            case "tool":
                self._append(
                    "user", [self._result(part.payload) for part in message.tool_results], results=True
                )
            case "assistant":
                self._previous = len(self._marks)
                self._append("assistant", self._answer(message))

    def say(self, text: str) -> None:
        """A user's text."""
        self._append("user", [_text_block(text)])

    def _append(self, role: WireRole, found: Sequence[_Wired | None], *, results: bool = False) -> None:
        blocks = [block for block in found if block is not None]
        if not blocks:
            return
        wire = self._wire
        if role == self._role:
            del wire[-2:]
            wire += b","
            self.answers_calls = self.answers_calls or results
        else:
            if role == "assistant" and not wire:
                self.say("Begin.")  # the first word must be the user's
            wire += b',{"role":"' if wire else b'{"role":"'
            wire += role.encode()
            wire += b'","content":['
            self._role = role
            self.answers_calls = results
            if role == "user" and not results:
                self.loop_thinks = None
        if role == "assistant" and self.loop_thinks is None:
            self.loop_thinks = not blocks[0].markable
        for block in blocks:
            wire += block.data
            self._blocks += 1
            if block.markable:
                self._marks.append(len(wire) - 1)
            if self._blocks % ANCHOR_EVERY == 0 and self._marks:
                self._anchors.append(len(self._marks) - 1)
            wire += b","
        wire[-1:] = b"]}"
        self.ends_verbatim = blocks[-1].verbatim

    # ── the assistant's side ──

    def _answer(self, message: Message) -> list[_Wired | None]:
        # White space alone is refused, beside other text it is not.
        says_something = any(
            isinstance(part, TextPart) and part.payload.text.strip() for part in message.parts
        )
        self._ids.begin_answer()
        blocks: list[_Wired | None] = []
        for part in message.parts:
            match part:
                case TextPart():
                    blocks.append(_said(part, says_something))
                case ThinkingPart():
                    blocks.append(self._thought(part))
                case ToolCallPart():
                    blocks.append(self._call(part.payload))
                case ToolResultPart() | ImagePart() | FileRefPart():
                    raise misplaced("assistant", part)
        while blocks and (blocks[-1] is None or not blocks[-1].markable):
            blocks.pop()  # thinking that nothing followed
        return blocks

    def _thought(self, part: ThinkingPart) -> _Wired | None:
        own = own_data(part.payload.provider_data, ORIGIN) or _EMPTY
        if block := own.get("block"):
            return _Wired(encode(block), markable=False)
        signature = as_text(own.get("signature"))
        if signature or (self._unsigned and own and part.payload.text):
            block = {"type": "thinking", "thinking": part.payload.text, "signature": signature}
            return _Wired(encode(block), markable=False)
        return None

    def _call(self, call: ToolCall) -> _Wired:
        self.has_calls = True
        own = own_data(call.provider_data, ORIGIN) or _EMPTY
        theirs = as_text(own.get("id"))
        # Of other servers, which count their calls anew in every answer, no id comes back.
        wire_id, unique = self._ids.take(call.tool_call_id, theirs if theirs.startswith("toolu_") else "")
        block: JsonObject = {
            "type": "tool_use",
            "id": wire_id,
            "name": safe_name(call.tool_name),
            "input": call_input(call),
        }
        if own.get("caller") and unique:
            block["caller"] = own["caller"]
            self.container = as_text(own.get("container")) or self.container
        block.update(as_object(own.get("block")))
        return _Wired(encode(block))

    # ── the user's side ──

    def _result(self, result: ToolResultPayload) -> _Wired:
        block: JsonObject = {
            "type": "tool_result",
            "tool_use_id": self._ids.of(result.tool_call_id),
        }
        content = _result_content(result)
        if content:
            block["content"] = content
        elif result.is_error:
            block["content"] = _NO_RESULT_TEXT
        if result.is_error:
            block["is_error"] = True
        return _Wired(encode(block))

    # ── writing ──

    def write(self, mark: bytes | None) -> list[bytes | memoryview]:
        """The turns, comma-separated, in pieces to be joined at once; with ``mark`` where a later call
        finds it."""
        wire = memoryview(self._wire)
        pieces: list[bytes | memoryview] = []
        start = 0
        for place in self._places() if mark else ():
            pieces += (wire[start:place], mark or b"")
            start = place
        return [*pieces, wire[start:]]

    @property
    def mark_count(self) -> int:
        """How many marks ``write`` sets, at most 3."""
        return len(self._places())

    def _places(self) -> list[int]:
        """The newest block, the last one of the request before this one, and one before that: where the
        context stays the same over folds, else an anchor."""
        if not self._marks:
            return []
        chosen = {len(self._marks) - 1}
        if self._stable:
            chosen.add(self._stable - 1)
        if self._previous:
            chosen.add(self._previous - 1)
            anchor = next((at for at in reversed(self._anchors) if at < self._previous - 1), None)
            if anchor is not None and not self._stable:
                chosen.add(anchor)
        return [self._marks[at] for at in sorted(chosen)]


def _said(part: TextPart, says_something: bool) -> _Wired | None:
    text = part.payload.text
    own = own_data(part.payload.provider_data, ORIGIN) or _EMPTY
    if block := own.get("block"):
        return _Wired(encode(block), verbatim=True)
    if not text or not says_something:
        return None
    if citations := own.get("citations"):
        return _Wired(encode({"type": "text", "text": text, "citations": citations}))
    return _text_block(text)


def _text_block(text: str) -> _Wired:
    return _Wired(encode({"type": "text", "text": text}))


def _given(part: MessagePart) -> _Wired | None:
    match part:
        case TextPart() | ImagePart() | FileRefPart():
            block = _part(part)
            return _Wired(encode(block)) if block else None
        case ThinkingPart() | ToolCallPart() | ToolResultPart():
            raise misplaced("user", part)


def _part(part: TextPart | ImagePart | FileRefPart) -> JsonObject | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.payload.text} if part.payload.text.strip() else None
        case ImagePart():
            return _image(part.payload)
        case FileRefPart():
            return {"type": "text", "text": file_note(part.payload)}


def _image(image: Image) -> JsonObject:
    url = data_url(image)
    if url is None:
        return {"type": "text", "text": missing_note(image)}
    inline = split_data_url(url)
    if inline is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    mime_type, data = inline[0] or image.mime_type, inline[1]
    if mime_type not in PICTURES:
        return {"type": "text", "text": image_note(image)}
    return {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}


def _result_content(result: ToolResultPayload) -> str | list[JsonObject]:
    content = result.content
    if isinstance(content, str):
        return content if content.strip() else ""
    if isinstance(content, dict):
        return encode(content).decode()
    return [block for block in map(_part, content) if block]
