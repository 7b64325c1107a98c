"""Messages as turns of the Messages API, written as bytes, with the places where a cache mark may stand."""

from __future__ import annotations

from typing import Self

from turnlog.contract import (
    PDF,
    PICTURES,
    FileRef,
    Image,
    JsonObject,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResultPayload,
    encode,
)

from .._answer import as_object, as_text
from .._turns import AlternatingTurns, Side
from ..wire import (
    call_input,
    data_url,
    image_note,
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
_OURS = frozenset({"text", "image", "document", "tool_use", "tool_result"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


class Turns(AlternatingTurns):
    def __init__(self, *, unsigned_thinking: bool = False, files: bool = True) -> None:
        super().__init__()
        self._wire = bytearray()
        self._marks: list[int] = []
        self._anchors: list[int] = []
        self._blocks = 0
        self._previous = 0
        self._stable = 0
        self._unsigned = unsigned_thinking
        self._reads_files = files
        self._speaks = False
        self.container: str | None = None

    def copy(self) -> Self:
        other = super().copy()
        other._wire = self._wire[:]
        other._marks = self._marks[:]
        other._anchors = self._anchors[:]
        return other

    @property
    def size(self) -> int:
        return len(self._wire) + 64 * self._blocks

    # ── the assistant's side ──

    def _begin_answer(self, message: Message) -> None:
        super()._begin_answer(message)
        self._previous = len(self._marks)
        # White space alone is refused, beside other text it is not.
        self._speaks = any(isinstance(part, TextPart) and part.payload.text.strip() for part in message.parts)

    def _said(self, part: TextPart) -> JsonObject | None:
        text = part.payload.text
        own = own_data(part.payload.provider_data, ORIGIN) or _EMPTY
        if block := own.get("block"):
            return block
        if not text or not self._speaks:
            return None
        citations = own.get("citations")
        return {**self._text(text), "citations": citations} if citations else self._text(text)

    def _thought(self, part: ThinkingPart) -> JsonObject | None:
        own = own_data(part.payload.provider_data, ORIGIN) or _EMPTY
        if block := own.get("block"):
            return block
        signature = as_text(own.get("signature"))
        if signature or (self._unsigned and own and part.payload.text):
            return {"type": "thinking", "thinking": part.payload.text, "signature": signature}
        return None

    def _is_thought(self, block: JsonObject) -> bool:
        return block.get("type") in _THOUGHTS

    def _call(self, call: ToolCall) -> JsonObject:
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
        return block

    # ── the user's side ──

    def _text(self, text: str) -> JsonObject:
        return {"type": "text", "text": text}

    def _image(self, image: Image) -> JsonObject:
        url = data_url(image)
        if url is None:
            return self._text(missing_note(image))
        inline = split_data_url(url)
        if inline is None:
            return {"type": "image", "source": {"type": "url", "url": url}}
        mime_type, data = inline[0] or image.mime_type, inline[1]
        if mime_type not in PICTURES:
            return self._text(image_note(image))
        return {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}

    def _document(self, file: FileRef, data: str) -> JsonObject | None:
        if not self._reads_files:
            return None
        source = {"type": "base64", "media_type": PDF, "data": data}
        return {"type": "document", "source": source, "title": file.path}

    def _results(self, results: list[ToolResultPayload]) -> list[JsonObject]:
        return [self._result(result) for result in results]

    def _result(self, result: ToolResultPayload) -> JsonObject:
        block: JsonObject = {"type": "tool_result", "tool_use_id": self._ids.of(result.tool_call_id)}
        if content := self._content(result):
            block["content"] = content
        elif result.is_error:
            block["content"] = _NO_RESULT_TEXT
        if result.is_error:
            block["is_error"] = True
        return block

    def _content(self, result: ToolResultPayload) -> str | list[JsonObject]:
        content = result.content
        if isinstance(content, str):
            return content if content.strip() else ""
        if isinstance(content, dict):
            return encode(content).decode()
        return [block for block in map(self._shown, content) if block]

    # ── writing ──

    def _put(self, side: Side, blocks: list[JsonObject], joins: bool, results: bool) -> None:
        wire = self._wire
        if joins:
            wire[-2:] = b","
        else:
            wire += b',{"role":"' if wire else b'{"role":"'
            wire += side.encode()
            wire += b'","content":['
        for block in blocks:
            wire += encode(block)
            self._blocks += 1
            if not self._is_thought(block):  # which cannot carry a cache mark
                self._marks.append(len(wire) - 1)
            if self._blocks % ANCHOR_EVERY == 0 and self._marks:
                self._anchors.append(len(self._marks) - 1)
            wire += b","
        wire[-1:] = b"]}"
        self.ends_verbatim = blocks[-1].get("type") not in _OURS

    def _mark_stable(self) -> None:
        self._stable = len(self._marks)

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
