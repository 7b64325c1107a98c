"""Messages as turns of Converse: plain dictionaries, which botocore writes."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple, Self

from turnlog.contract import (
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResultPayload,
    encode,
)

from .._answer import as_object
from .._turns import AlternatingTurns, Side
from ..wire import data_url, image_note, missing_note, own_data, safe_name, split_data_url
from ._stream import ORIGIN

_FORMATS = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_EMPTY: JsonObject = {}
_NOTHING = "(no output)"

_REGIONS = frozenset({"us", "eu", "apac", "jp", "au", "ca", "sa", "me", "af", "global", "us-gov"})
_TEXT_ONLY = re.compile(
    r"titan-text|nova-micro|deepseek|gpt-oss|command|jamba|mixtral|mistral-(7b|large-2402|small-2402)"
    r"|llama3(-1)?-\d|llama3-2-[13]b|claude-(v2|instant)|claude-3-5-haiku"
)
_FILES = re.compile(r"claude-(?!v2|instant|3-(?:haiku|opus|sonnet))|nova-(?!micro)")
_NOT_IN_DOCUMENT_NAMES = re.compile(r"[^A-Za-z0-9\-()\[\]]+")
_SCHEMAS = re.compile(r"claude-(?:[a-z]+-(?:4-[1-9]\b|[5-9])|fable|mythos)")
_CACHES = re.compile(r"nova-|claude-3-5-haiku|claude-3-5-sonnet-20241022|claude-3-7|claude-[a-z]+-\d")


class Vendor(NamedTuple):
    name: str
    """``anthropic``, ``amazon``, …; empty when the name does not say (an inference profile's ARN)."""
    images: bool
    files: bool
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
        files=_FILES.search(model_id) is not None,
        result_images=capable,
        cache=caches,
        cache_tools=caches and name == "anthropic",
        forced_tool=capable or name == "mistral",
        mixed_turns=capable,
        schemas=name == "anthropic" and _SCHEMAS.search(model_id) is not None,
    )


class Turns(AlternatingTurns):
    def __init__(self, vendor: Vendor) -> None:
        super().__init__()
        self.turns: list[JsonObject] = []
        self._vendor = vendor
        self._previous: tuple[int, int] | None = None
        """(turn, blocks of it) where the request before this one ended."""
        self._stable: tuple[int, int] | None = None
        """Up to where the context stays the same over folds."""
        self.size = 0
        self._documents = 0

    def copy(self) -> Self:
        other = super().copy()
        other.turns = self.turns[:]
        if other.turns:  # only the last turn can still grow
            last = other.turns[-1]
            other.turns[-1] = {"role": last["role"], "content": last["content"][:]}
        return other

    def _end(self) -> tuple[int, int] | None:
        return (len(self.turns) - 1, len(self.turns[-1]["content"])) if self.turns else None

    # ── the assistant's side ──

    def _begin_answer(self, message: Message) -> None:
        super()._begin_answer(message)
        self._previous = self._end() or self._previous

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

    def _is_thought(self, block: JsonObject) -> bool:
        return "reasoningContent" in block

    def _call(self, call: ToolCall) -> JsonObject:
        theirs = str((own_data(call.provider_data, ORIGIN) or _EMPTY).get("id") or "")
        known = theirs.startswith(("tooluse_", "toolu_"))
        wire_id, _ = self._ids.take(call.tool_call_id, theirs if known else "")
        given = call.arguments if call.arguments is not None else {"INVALID_JSON": call.raw_args_text}
        return {"toolUse": {"toolUseId": wire_id, "name": safe_name(call.tool_name), "input": given}}

    # ── the user's side ──

    def _text(self, text: str) -> JsonObject:
        return {"text": text}

    def _image(self, image: Image) -> JsonObject:
        inline = split_data_url(data_url(image) or "") if self._vendor.images else None
        if not self._vendor.images or (inline is None and image.url and image.url.startswith("http")):
            return {"text": image_note(image)}
        if inline is None:
            return {"text": missing_note(image)}
        form = _FORMATS.get(inline[0] or image.mime_type)
        if form is None:
            return {"text": image_note(image)}
        try:
            data = base64.b64decode(inline[1], validate=False)
        except (binascii.Error, ValueError):
            data = b""
        return (
            {"image": {"format": form, "source": {"bytes": data}}} if data else {"text": missing_note(image)}
        )

    def _document(self, file: FileRef, data: str) -> JsonObject | None:
        if not self._vendor.files:
            return None
        # Names may hold few characters, and none may stand twice in a request.
        self._documents += 1
        name = f"{_NOT_IN_DOCUMENT_NAMES.sub(' ', file.path)[:150].strip()} {self._documents}".strip()
        source = {"bytes": base64.b64decode(data, validate=False)}
        return {"document": {"format": "pdf", "name": name, "source": source}}

    def _results(self, results: list[ToolResultPayload]) -> list[JsonObject]:
        return [{"toolResult": self._result(result)} for result in results]

    def _result(self, result: ToolResultPayload) -> JsonObject:
        content = result.content
        if isinstance(content, str):
            blocks: list[JsonObject] = [{"text": content}] if content.strip() else []
        elif isinstance(content, dict):
            blocks = [{"text": encode(content).decode()}]
        else:
            blocks = [block for block in map(self._within_result, content) if block]
        blocks = blocks or [{"text": _NOTHING}]
        wired: JsonObject = {"toolUseId": self._ids.of(result.tool_call_id), "content": blocks}
        if result.is_error and self._vendor.result_images:
            wired["status"] = "error"
        elif result.is_error:
            wired["content"] = [{"text": "The tool failed:"}, *blocks]
        return wired

    def _within_result(self, part: TextPart | ImagePart | FileRefPart) -> JsonObject | None:
        if isinstance(part, ImagePart) and not self._vendor.result_images:
            return {"text": image_note(part.payload)}
        return self._shown(part)

    # ── writing ──

    def _put(self, side: Side, blocks: list[JsonObject], joins: bool, results: bool) -> None:
        if side == "user" and self.answers_calls and not results and not self._vendor.mixed_turns:
            self.turns.append({"role": "assistant", "content": [{"text": "Understood."}]})
            self.answers_calls = joins = False
        if any("document" in block for block in blocks) and not any("text" in block for block in blocks):
            blocks = [*blocks, {"text": "(see the document)"}]  # one without words is refused
        if joins:
            self.turns[-1]["content"] += blocks
        else:
            self.turns.append({"role": side, "content": blocks})
        self.ends_verbatim = as_object(blocks[-1].get("toolUse")).get("type") == "server_tool_use"
        self.size += sum(map(_weight, blocks))

    def _mark_stable(self) -> None:
        self._stable = self._end() or self._stable

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
    for kind in ("image", "document"):
        if kind in block:
            return len(block[kind]["source"]["bytes"])
    return len(str(block))
