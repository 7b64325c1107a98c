"""Histories made fit for a provider: what every adapter needs to turn messages into its provider's words.

Nothing here changes a message. Where a history is well-formed the same objects come back, so that what
was encoded once can be used again.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self, cast

import msgspec

from turnlog.contract import (
    PDF,
    PICTURES,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    TextPart,
    ToolCall,
    ToolResultPart,
    ToolResultPayload,
    ToolSpec,
    decode_text,
    encode,
    text_part,
)

__all__ = [
    "NO_RESULT",
    "CallIds",
    "ToolNames",
    "call_input",
    "closed_schema",
    "complete_calls",
    "data_url",
    "file_note",
    "image_note",
    "is_strict",
    "missing_note",
    "object_schema",
    "own_data",
    "pdf_data",
    "picture_url",
    "result_parts",
    "result_text",
    "safe_name",
    "schema_name",
    "short_id",
    "split_system",
    "unseen_note",
]

NO_RESULT = "No result was recorded for this call: it was not run, or its outcome was lost."

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


# ── pairing of calls and results ──


def complete_calls(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with every call answered right after the message that made it.

    A group is an assistant's message with calls and one tool message with all their results, in call
    order. Results that came apart are joined, late ones are moved up, missing ones are filled with
    :data:`NO_RESULT`, and results of calls that are not in the history are left out.
    """
    messages = tuple(messages)  # looked up by place again and again, which a view is slow at
    whole: list[Message] = []
    count = len(messages)
    at = 0
    while at < count:
        message = messages[at]
        role = message.role
        at += 1
        if role == "tool":
            continue  # answers nothing that precedes it
        whole.append(message)
        if role != "assistant":
            continue
        calls = [part.payload.tool_call_id for part in message.tool_calls]
        if not calls:
            continue
        if at < count and _answers(messages[at], calls) and not _more_results(messages, at + 1):
            whole.append(messages[at])
            at += 1
            continue
        found: dict[str, ToolResultPart] = {}
        others: list[Message] = []
        first: Message | None = None
        while at < count and messages[at].role != "assistant":
            later = messages[at]
            at += 1
            if later.role == "tool":
                first = first or later
                for part in later.tool_results:
                    found.setdefault(part.payload.tool_call_id, part)
            else:
                others.append(later)
        whole.append(_joined(first or message, calls, found))
        whole.extend(others)
    return whole


def settled(messages: Sequence[Message]) -> int:
    """How many of ``messages`` keep their form whatever is appended: all, or those before an assistant's
    message with calls that no other assistant's message follows (its results may still come)."""
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message.role == "assistant":
            return at if message.tool_calls else len(messages)
    return len(messages)


def _answers(message: Message, calls: list[str]) -> bool:
    return message.role == "tool" and [part.payload.tool_call_id for part in message.tool_results] == calls


def _more_results(messages: Sequence[Message], at: int) -> bool:
    while at < len(messages):
        role = messages[at].role
        if role == "assistant":
            return False
        if role == "tool":
            return True
        at += 1
    return False


def _joined(place: Message, calls: list[str], found: dict[str, ToolResultPart]) -> Message:
    parts = [
        found.get(call)
        or ToolResultPart(payload=ToolResultPayload(tool_call_id=call, is_error=True, content=NO_RESULT))
        for call in calls
    ]
    return Message(run_id=place.run_id, role="tool", parts=list(parts), timestamp=place.timestamp)


# ── names ──


@lru_cache(maxsize=1024)
def safe_name(name: str) -> str:
    """``name`` where providers take it (letters, digits, ``_``, ``-``; 64 at most), else one made from it.

    Depends on the name alone, so the same call reads the same in every request.
    """
    if _NAME.fullmatch(name):
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_NOT_IN_NAMES.sub('_', name)[:55]}_{mark}"


class ToolNames:
    """The way back from the names a provider sees to ours. ``rename`` is the way there."""

    def __init__(self, specs: Iterable[ToolSpec], rename: Callable[[str], str] = safe_name) -> None:
        self._wires = {rename(spec.name): spec.name for spec in specs}
        self._ours = {wire: name for wire, name in self._wires.items() if wire != name}

    def ours(self, wire: str) -> str:
        return self._ours.get(wire, wire) if self._ours else wire

    def is_begun(self, wire: str) -> bool:
        """Whether ``wire`` is no tool's name, but the beginning of one."""
        return wire not in self._wires and any(name.startswith(wire) for name in self._wires)


def short_id(call_id: str, length: int, alphabet: str) -> str:
    """An id of exactly ``length`` characters made from ``call_id``, for providers that insist."""
    number = int.from_bytes(sha256(call_id.encode()).digest()[:16], "big")
    text = ""
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        text += alphabet[digit]
    return text


class CallIds:
    """The provider's own id where no call before it has it, else ours.

    A server may count its calls anew in every answer, or give one answer twice.
    """

    def __init__(self) -> None:
        self._earlier: Set[str] = frozenset()
        self._taken: set[str] = set()
        self._newest: dict[str, str] = {}

    def copy(self) -> Self:
        """For a while: what the copy takes stays with it, and it costs nothing however many there are."""
        other = type(self)()
        other._earlier = self._earlier | self._taken if self._earlier else self._taken
        other._newest = dict(self._newest)
        return other

    def begin_answer(self) -> None:
        self._newest = {}

    def take(self, call_id: str, theirs: str) -> tuple[str, bool]:
        """The id of a call, and whether it is ``theirs``, which is empty when it cannot be used."""
        wired = safe_name(theirs) if theirs else ""
        is_theirs = bool(wired) and wired not in self._taken and wired not in self._earlier
        if not is_theirs:
            wired = safe_name(call_id)
        self._taken.add(wired)
        self._newest[call_id] = wired
        return wired, is_theirs

    def of(self, call_id: str) -> str:
        """The id that a call of the newest answer was given."""
        return self._newest.get(call_id) or safe_name(call_id)


# ── contents ──


def own_data(provider_data: JsonObject | None, family: str) -> JsonObject | None:
    """``provider_data`` when ``family`` made it; None for what belongs to others."""
    if provider_data is None or provider_data.get("origin") != family:
        return None
    return provider_data


def data_url(image: Image) -> str | None:
    """The address to give a provider: the image itself, or where it lies; None when neither can be sent."""
    if image.data is not None:
        return f"data:{image.mime_type};base64,{image.data}" if _is_base64(image.data) else None
    url = image.url or ""
    if url.startswith("data:"):
        inline = split_data_url(url)
        return url if inline is not None and _is_base64(inline[1]) else None
    return url if url.startswith(("http://", "https://")) else None


def picture_url(image: Image) -> str | None:
    """``data_url`` for servers that take pictures alone; None also for an image of a kind they refuse."""
    url = data_url(image)
    inline = split_data_url(url or "")
    return url if inline is None or (inline[0] or image.mime_type) in PICTURES else None


def split_data_url(url: str) -> tuple[str, str] | None:
    """(mime type, base64) of a ``data:`` address; None for any other."""
    found = re.fullmatch(r"data:([^;,]*);base64,(.*)", url, re.DOTALL)
    return (found.group(1), found.group(2)) if found else None


def _is_base64(text: str) -> bool:
    return len(text) % 4 != 1 and _BASE64.fullmatch(text) is not None


def image_note(image: Image) -> str:
    """What stands in for an image that cannot be shown to this model."""
    where = f" at {image.url}" if image.url and not image.url.startswith(("data:", "blob:")) else ""
    return f"[image ({image.mime_type}){where}: not shown, this model takes no images]"


def missing_note(image: Image) -> str:
    """What stands in for an image whose bytes are not here, or are none."""
    return f"[image ({image.mime_type}): its data is not available]"


def unseen_note(image: Image) -> str:
    """What stands in for an image that cannot be sent, whatever the reason."""
    return image_note(image) if data_url(image) else missing_note(image)


def file_note(file: FileRef) -> str:
    """A file in words: its text where its content is here and is text. Of any other file the model learns
    the name, and reads it with its tools."""
    about = ", ".join(
        text for text in (file.mime_type, f"{file.size} bytes" if file.size is not None else None) if text
    )
    head = f"file: {file.path}{f' ({about})' if about else ''}"
    if file.data is None and file.url is None:
        return f"[{head}]"
    data = _bytes_of(file)
    if data is None:
        return f"[{head}: its data is not available]"
    text = None if file.mime_type == PDF else decode_text(data)
    if text is None:
        return f"[{head}: not shown, this model takes no files of this kind]"
    return f"[{head}]\n{text}\n[end of {file.path}]"


def pdf_data(file: FileRef) -> str | None:
    """The base64 of a PDF whose content is here; None for every other file."""
    return file.data if file.mime_type == PDF and file.data and _is_base64(file.data) else None


def _bytes_of(file: FileRef) -> bytes | None:
    try:
        return None if file.data is None else base64.b64decode(file.data, validate=True)
    except ValueError:
        return None


def result_parts(result: ToolResultPayload) -> list[TextPart | ImagePart | FileRefPart]:
    """A result's content as parts; text and JSON become one text part."""
    content = result.content
    if isinstance(content, list):
        return content
    return [text_part(content if isinstance(content, str) else encode(content).decode())]


def result_text(result: ToolResultPayload) -> tuple[str, list[Image]]:
    """(text of a result, images in it). Files are named; an error without flag on the wire says so."""
    images: list[Image] = []
    if isinstance(result.content, str):
        text = result.content
    else:
        lines: list[str] = []
        for part in result_parts(result):
            match part:
                case TextPart():
                    lines.append(part.payload.text)
                case ImagePart():
                    images.append(part.payload)
                case FileRefPart():
                    lines.append(file_note(part.payload))
        text = "\n".join(lines)
    return text, images


def misplaced(role: str, part: MessagePart) -> AgentError:
    return AgentError("InvalidMessage", f"a {role} message cannot hold a {part.kind} part")


def call_input(call: ToolCall) -> msgspec.Raw | JsonObject:
    """A call's arguments as the model wrote them; what does not parse is wrapped, for the model to see."""
    if call.arguments is None:
        return {"INVALID_JSON": call.raw_args_text}
    return msgspec.Raw(call.raw_args_text.encode()) if call.raw_args_text.strip() else call.arguments


# ── system prompt ──


def split_system(
    messages: Sequence[Message], system_prompt: str | None
) -> tuple[list[str], Sequence[Message]]:
    """(texts of the system prompt, the other messages), for providers that want it apart.

    Taken are the given prompt and the system messages before the first other one; a later one stays where
    it is, for the adapter to render as a note.
    """
    texts = [system_prompt] if system_prompt else []
    at = 0
    while at < len(messages) and messages[at].role == "system":
        if messages[at].text:
            texts.append(messages[at].text)
        at += 1
    return texts, messages[at:] if at else messages


# ── schemas ──


def object_schema(schema: JsonObject) -> JsonObject:
    """``schema`` with the ``type`` and ``properties`` that every provider asks of a tool's parameters."""
    if schema.get("type") == "object" and "properties" in schema:
        return schema
    return {"type": "object", "properties": {}, **schema}


def is_strict(schema: Any) -> bool:
    """Whether ``schema`` may be sent as strict: every object closed, every property required."""
    if isinstance(schema, list):
        return all(is_strict(item) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return True
    known = cast("JsonObject", schema)
    if known.get("type") == "object" or "properties" in known:
        properties: Any = known.get("properties") or {}
        required: Any = known.get("required") or []
        if known.get("additionalProperties") is not False or set(properties) != set(required):
            return False
    return all(
        is_strict(value)
        for key, value in known.items()
        if key not in ("enum", "const", "default", "examples")
    )


def schema_name(schema: JsonObject) -> str:
    """What to call an answer's schema where the provider wants a name: its title, or ``answer``."""
    title = schema.get("title")
    return safe_name(title) if isinstance(title, str) and title else "answer"


def closed_schema(schema: Any) -> Any:
    """``schema`` with every object of it closed, as providers demand that hold an answer to it exactly."""
    if isinstance(schema, list):
        return [closed_schema(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    known = {
        name: value if name in ("enum", "const", "default", "examples") else closed_schema(value)
        for name, value in cast("JsonObject", schema).items()
    }
    if known.get("type") == "object" and "properties" in known:
        known.setdefault("additionalProperties", False)
    return known
