"""Our messages as input items of the Responses API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from turnlog.contract import (
    PDF,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
)

from .._answer import as_object, as_text
from .._openai import told_result
from .._turns import Digest
from ..wire import (
    NO_RESULT,
    file_note,
    image_note,
    own_data,
    pdf_data,
    picture_url,
    result_parts,
    safe_name,
    unseen_note,
)
from ._items import FAMILY, filled

_WITHOUT_REPLY = frozenset({"computer_call", "local_shell_call"})
"""Calls whose reply cannot be made up, such as a picture of a screen."""


def replies_to(item: JsonObject, kept: Sequence[JsonObject], custom_are_run: bool) -> list[JsonObject] | None:
    """What has to follow ``item``: nothing where it was answered; None where it cannot go back at all.

    ``kept`` is the ``providerData`` of all items that go back with it. ``custom_are_run`` says that the
    server itself runs what it reports as custom tools.
    """
    kind, call = as_text(item.get("type")), item.get("call_id")
    if kind in _WITHOUT_REPLY:
        return None
    others = [as_object(own.get("item")) for own in kept]
    if call is not None and any(
        other.get("call_id") == call and as_text(other.get("type")).endswith("_output") for other in others
    ):
        return []
    match kind:
        case "custom_tool_call" if not custom_are_run:
            return [{"type": "custom_tool_call_output", "call_id": call, "output": NO_RESULT}]
        case "apply_patch_call":
            return [
                {"type": "apply_patch_call_output", "call_id": call, "status": "failed", "output": NO_RESULT}
            ]
        case "shell_call":
            outcome = {"type": "exit", "exit_code": 1}
            output = [{"stdout": "", "stderr": NO_RESULT, "outcome": outcome}]
            return [{"type": "shell_call_output", "call_id": call, "output": output}]
        case "mcp_approval_request":
            return [
                {"type": "mcp_approval_response", "approval_request_id": item.get("id"), "approve": False}
            ]
        case _:
            return []


_json = msgspec.json.Encoder().encode
_NONE: JsonObject = {}

_UNIQUE = re.compile(r"[A-Za-z0-9_-]{20,64}")
"""A call id long enough to be no mere counter: some servers name the calls of every answer ``call_0``."""

_OWN_IDS = frozenset({"reasoning", "message", "function_call"})


class Form(NamedTuple):
    """What of a server's ways changes how a message reads. Two calls with one form share encoded bytes."""

    host: str
    model: str
    images: bool
    files: bool
    image_results: bool
    item_ids: bool
    runs_custom_tools: bool


class InputWriter:
    """Writes one conversation, message by message, each answer followed by the results of its calls.

    An answer that holds what only this server and model can read goes back whole, item by item, while the
    wire before it is what it was; else as plain text and calls.
    """

    def __init__(self, form: Form) -> None:
        self._form = form
        self._ids: dict[str, str] = {}

    def encode(self, message: Message, before: Digest) -> bytes:
        """The items of ``message``, joined by commas."""
        return b",".join([_json(item) for item in self._items(message, before)])

    def _items(self, message: Message, before: Digest) -> list[JsonObject]:
        match message.role:
            case "system":
                return [{"role": "system", "content": message.text}] if message.text.strip() else []
            case "user":
                return self._given(message)
            case "assistant":
                self._ids = {}
                return self._whole(message) if self._returns(message, before) else self._plain(message)
            case "tool":
                return self._results(message)

    # ── users ──

    def _given(self, message: Message) -> list[JsonObject]:
        parts: list[JsonObject] = []
        for part in message.parts:
            match part:
                case TextPart() | ImagePart() | FileRefPart():
                    if shown := self._shown(part):
                        parts.append(shown)
                case ThinkingPart() | ToolCallPart() | ToolResultPart():
                    pass  # no user's message holds one
        if not parts:
            return []
        alone = parts[0] if len(parts) == 1 else _NONE
        return [{"role": "user", "content": alone.get("text") or parts}]

    def _shown(self, part: TextPart | ImagePart | FileRefPart) -> JsonObject | None:
        match part:
            case TextPart():
                text = part.payload.text
                return {"type": "input_text", "text": text} if text.strip() else None
            case ImagePart():
                return self._image(part.payload)
            case FileRefPart():
                return self._file(part.payload)

    def _file(self, file: FileRef) -> JsonObject:
        data = pdf_data(file) if self._form.files else None
        if data is None:
            return {"type": "input_text", "text": file_note(file)}
        return {"type": "input_file", "filename": file.path, "file_data": f"data:{PDF};base64,{data}"}

    def _image(self, image: Image) -> JsonObject:
        url = picture_url(image) if self._form.images else None
        if url is None:
            note = unseen_note(image) if self._form.images else image_note(image)
            return {"type": "input_text", "text": note}
        return {"type": "input_image", "image_url": url, "detail": "auto"}

    # ── the model, in plain words ──

    def _plain(self, message: Message) -> list[JsonObject]:
        items: list[JsonObject] = []
        for part in message.parts:
            match part:
                case TextPart():
                    if part.payload.text.strip():
                        own = own_data(part.payload.provider_data, FAMILY) or _NONE
                        items.append(_said(part.payload.text, own))
                case ToolCallPart():
                    items.append(self._call(part.payload, own_data(part.payload.provider_data, FAMILY)))
                case ThinkingPart() | ToolResultPart() | ImagePart() | FileRefPart():
                    pass
        # A call must have nothing but calls between it and its result, or some servers miss the result.
        return sorted(items, key=lambda item: item["type"] == "function_call")

    def _call(self, call: ToolCall, own: JsonObject | None) -> JsonObject:
        arguments = call.raw_args_text
        if call.arguments is None or not arguments.strip():
            # Servers parse these again and refuse what is not an object.
            arguments = _json(call.arguments or {}).decode()
        theirs = as_text((own or _NONE).get("id"))
        usable = _UNIQUE.fullmatch(theirs) and theirs not in self._ids.values()
        self._ids[call.tool_call_id] = theirs if usable else safe_name(call.tool_call_id)
        return {
            "type": "function_call",
            "call_id": self._ids[call.tool_call_id],
            "name": safe_name(call.tool_name),
            "arguments": arguments,
        }

    # ── the model, as it came ──

    def _returns(self, message: Message, before: Digest) -> bool:
        kept = [
            own
            for part in message.parts
            if isinstance(part, TextPart | ThinkingPart)
            and (own := own_data(part.payload.provider_data, FAMILY))
            and "item" in own
        ]
        form = self._form
        return bool(kept) and all(
            own.get("host") == form.host
            and own.get("model_id") == form.model
            and own.get("wire") == before()
            and replies_to(as_object(own["item"]), kept, form.runs_custom_tools) is not None
            for own in kept
        )

    def _whole(self, message: Message) -> list[JsonObject]:
        placed: list[tuple[int, JsonObject]] = []
        known: dict[str, JsonObject] = {}
        thoughts: list[str] = []
        kept: list[JsonObject] = []
        at = -1
        for part in message.parts:
            if not isinstance(part, TextPart | ThinkingPart | ToolCallPart):
                continue
            own = own_data(part.payload.provider_data, FAMILY) or _NONE
            at = own.get("at", at)
            item: JsonObject | None = None
            if "item" in own:
                kept.append(own)
            match part:
                case ThinkingPart():
                    thoughts.append(part.payload.text)
                    item = filled(own["item"], thoughts) if "item" in own else None
                case TextPart():
                    item = own.get("item") or _message(part.payload.text, own, known)
                case ToolCallPart():
                    item = self._call(part.payload, own)
                    if own.get("item_id"):
                        item = {"id": own["item_id"], **item, "status": "completed"}
                    item.update(as_object(own.get("fields")))
            if not isinstance(part, ThinkingPart) or "item" in own:
                thoughts = []
            if item is not None:
                placed.append((at, item))
        placed.sort(key=lambda pair: pair[0])
        return self._fit([item for _, item in placed], kept)

    def _fit(self, items: list[JsonObject], kept: list[JsonObject]) -> list[JsonObject]:
        """What a server takes back: no thought that nothing follows, no ids where it refuses them, and no
        call of its own tools without a reply."""
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        fit: list[JsonObject] = []
        for item in items:
            if not self._form.item_ids and item.get("type") in _OWN_IDS:
                item = {name: value for name, value in item.items() if name != "id"}
            fit.append(item)
            fit += replies_to(item, kept, self._form.runs_custom_tools) or ()
        return fit

    # ── tools ──

    def _results(self, message: Message) -> list[JsonObject]:
        items: list[JsonObject] = []
        shown: list[JsonObject] = []
        for part in message.tool_results:
            result = part.payload
            call = self._ids.get(result.tool_call_id) or safe_name(result.tool_call_id)
            within = self._form.images and self._form.image_results
            text, images = told_result(result, self._form.images, within)
            if images and not within:
                # What the result shows follows in a user's message.
                shown.append({"type": "input_text", "text": f"[image of the result of call {call}]"})
                shown += [self._image(image) for image in images]
            output = self._seen(result) if images and within else text
            items.append({"type": "function_call_output", "call_id": call, "output": output})
        if shown:
            items.append({"role": "user", "content": shown})
        return items

    def _seen(self, result: ToolResultPayload) -> list[JsonObject]:
        parts = [shown for part in result_parts(result) if (shown := self._shown(part))]
        return [{"type": "input_text", "text": "Error:"}, *parts] if result.is_error else parts


def _said(text: str, own: JsonObject) -> JsonObject:
    """An answer's text. Local servers do not know an assistant's message without its type."""
    item: JsonObject = {"type": "message", "role": "assistant", "content": text}
    return {**item, "phase": own["phase"]} if own.get("phase") else item


def _message(text: str, own: JsonObject, known: dict[str, JsonObject]) -> JsonObject | None:
    """A message item as it came; None where there is none, or where an earlier one takes the text."""
    if not text:
        return None
    item_id = as_text(own.get("id"))
    if not item_id:
        return _said(text, own)
    part: JsonObject = {"type": "output_text", "text": text, "annotations": own.get("annotations") or []}
    if own.get("refusal"):
        part = {"type": "refusal", "refusal": text}
    if item_id in known:
        known[item_id]["content"].append(part)
        return None
    item: JsonObject = {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    known[item_id] = {**item, "phase": own["phase"]} if own.get("phase") else item
    return known[item_id]
