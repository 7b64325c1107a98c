"""Messages as contents of generateContent, written as bytes."""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple, Self

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

from .._turns import AlternatingTurns, Side
from ..wire import (
    call_input,
    data_url,
    image_note,
    missing_note,
    own_data,
    result_text,
    safe_name,
    split_data_url,
)
from ._stream import ORIGIN

NO_SIGNATURE = "skip_thought_signature_validator"
"""What the API takes on a call that none of its models signed."""

_SHOWN = (PICTURES - {"image/gif"}) | {"application/pdf", "image/heic", "image/heif", "text/plain"}
_EMPTY: JsonObject = {}
_OLDER = re.compile(r"gemini-[12]\b|gemini-(pro|1)$|gemma|learnlm")


class Form(NamedTuple):
    """What of the configuration changes how a message reads."""

    platform: str
    third_generation: bool
    files: bool

    @property
    def origin(self) -> JsonObject:
        """The mark of what this platform made: signatures hold only where they were given."""
        return (
            {"origin": ORIGIN} if self.platform == ORIGIN else {"origin": ORIGIN, "platform": self.platform}
        )


def is_third_generation(model: str) -> bool:
    """Whether ``model`` insists on signatures of calls and takes images inside results. Newer ones do."""
    return _OLDER.search(model.rpartition("/")[2]) is None


def wire_name(name: str) -> str:
    """``name`` as the API takes it: like everywhere, but with a letter or ``_`` at its start."""
    safe = safe_name(name)
    if safe[0].isalpha() or safe[0] == "_":
        return safe
    return safe_name(f"_ {name}")  # the space makes it another name, so that it cannot meet a given one


def reads_files(model: str) -> bool:
    return "gemma" not in model


class Contents(AlternatingTurns):
    takes_blanks: ClassVar[bool] = True

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form
        self.wire = bytearray()
        """The contents, comma-separated."""
        self._calls: dict[str, tuple[str, str]] = {}
        """Our id of each call of the last answer → its name and the API's own id."""
        self._signed = ("", "")
        """Which kind of part the last signature belongs to, and the signature."""

    def copy(self) -> Self:
        other = super().copy()
        other.wire = self.wire[:]
        return other

    @property
    def size(self) -> int:
        return len(self.wire)

    def _put(self, side: Side, blocks: list[JsonObject], joins: bool, results: bool) -> None:
        wire = self.wire
        if joins:
            wire[-2:] = b","
        else:
            wire += b',{"role":"' if wire else b'{"role":"'
            wire += b'user","parts":[' if side == "user" else b'model","parts":['
        wire += b",".join(map(encode, blocks))
        wire += b"]}"

    # ── the model's side ──

    def _begin_answer(self, message: Message) -> None:
        self._calls = {}
        self._signed = ("", "")

    def _own(self, data: JsonObject | None) -> JsonObject | None:
        own = own_data(data, ORIGIN)
        return own if own is not None and own.get("platform", ORIGIN) == self._form.platform else None

    def _said(self, part: TextPart | ThinkingPart) -> JsonObject | None:
        text, own = part.payload.text, self._own(part.payload.provider_data) or _EMPTY
        signature = own.get("signature") or self._take_signature("text")
        block: JsonObject | None = own.get("block")
        if block is None and (text or signature):  # a signed text may be empty
            block = {"text": text}
        return {**block, "thoughtSignature": signature} if block and signature else block

    def _thought(self, part: ThinkingPart) -> JsonObject | None:
        own = self._own(part.payload.provider_data)
        if own is None:
            return None
        if signed := own.get("signs"):
            self._signed = (signed, own["signature"])
            return {"text": "", "thoughtSignature": own["signature"]} if signed == "nothing" else None
        said = self._said(part)
        return said if said is None else {**said, "thought": True}

    def _call(self, call: ToolCall) -> JsonObject:
        own = self._own(call.provider_data) or _EMPTY
        name, their_id = wire_name(call.tool_name), str(own.get("id") or "")
        first = not self._calls
        self._calls[call.tool_call_id] = (name, their_id)
        function: JsonObject = {"name": name, "args": call_input(call)}
        if their_id:
            function["id"] = their_id
        signature = own.get("signature") or self._take_signature("call")
        if not signature and first and self._form.third_generation:
            signature = NO_SIGNATURE
        wired: JsonObject = {"functionCall": function}
        return {**wired, "thoughtSignature": signature} if signature else wired

    def _take_signature(self, kind: str) -> str:
        """The signature of this part, where the thought before it carries one."""
        (signed, signature), self._signed = self._signed, ("", "")
        return signature if signed == kind else ""

    # ── the user's side ──

    def _text(self, text: str) -> JsonObject:
        return {"text": text}

    def _image(self, image: Image) -> JsonObject:
        """Pictures, sounds and films: inside the request, or where Google can fetch them."""
        if image.url is not None and image.url.startswith("gs://"):
            return {"fileData": {"mimeType": image.mime_type, "fileUri": image.url}}
        url = data_url(image)
        if url is None:
            return {"text": missing_note(image)}
        inline = split_data_url(url)
        mime_type = (inline[0] if inline else "") or image.mime_type
        if mime_type not in _SHOWN and not mime_type.startswith(("audio/", "video/")):
            return {"text": image_note(image)}
        if inline is None:
            return {"fileData": {"mimeType": mime_type, "fileUri": url}}
        return {"inlineData": {"mimeType": mime_type, "data": inline[1]}}

    def _document(self, file: FileRef, data: str) -> JsonObject | None:
        return {"inlineData": {"mimeType": PDF, "data": data}} if self._form.files else None

    def _results(self, results: list[ToolResultPayload]) -> list[JsonObject]:
        """One response for each call; older models see a result's images after all of them."""
        responses: list[JsonObject] = []
        shown: list[JsonObject] = []
        for result in results:
            name, their_id = self._calls.get(result.tool_call_id) or (wire_name(result.tool_call_id), "")
            response: JsonObject = {"name": name}
            if their_id:
                response["id"] = their_id
            text, images = result_text(result)
            blocks = [self._image(image) for image in images]
            notes = [block["text"] for block in blocks if "text" in block]
            blocks = [block for block in blocks if "text" not in block]
            said: object = "\n".join(filter(None, [text, *notes]))
            if isinstance(result.content, dict):
                said = result.content
            response["response"] = {"error" if result.is_error else "output": said}
            # Inside a response only what lies in the request itself is taken.
            within = [block for block in blocks if self._form.third_generation and "inlineData" in block]
            if within:
                response["parts"] = within
            if after := [block for block in blocks if block not in within]:
                shown += [{"text": f"[image of the result of {name}]"}, *after]
            responses.append({"functionResponse": response})
        return [*responses, *shown]
