"""Messages: a role and its ordered parts. The six kinds of part are a closed, versioned set.

With a message go its grains: what it shrinks to at a fold.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, TypeAlias, cast, get_args, overload

import msgspec
from msgspec.structs import force_setattr

from ._base import FILLED_IN, JsonObject, P, Value, check_meta, find_unjson, freeze
from .errors import AgentError


class Text(Value, frozen=True, kw_only=True):
    text: str
    provider_data: JsonObject | None = None


class Thinking(Value, frozen=True, kw_only=True):
    text: str
    provider_data: JsonObject | None = None


class ToolCall(Value, frozen=True, kw_only=True):
    """``raw_args_text`` is what the model wrote, or the JSON of ``arguments`` where that is not known;
    ``arguments`` is None when it does not parse."""

    tool_call_id: str
    tool_name: str
    arguments: JsonObject | None
    raw_args_text: str = FILLED_IN
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if found := find_unjson(self.arguments):
            raise AgentError("InvalidMessage", f"arguments of {self.tool_name!r}: {found}")
        if self.raw_args_text is FILLED_IN:
            if self.arguments is None:
                raise AgentError(
                    "InvalidMessage",
                    f"a call of {self.tool_name!r} has neither arguments nor their raw text",
                )
            force_setattr(self, "raw_args_text", msgspec.json.encode(self.arguments).decode())


class Image(Value, frozen=True, kw_only=True):
    """Exactly one of ``data`` (base64) and ``url``; in the log ``url`` is ``blob:sha256-…``. ``name`` is for
    people: what the file was called that it came from."""

    mime_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise AgentError("InvalidMessage", "an image needs exactly one of data and url")


class FileRef(Value, frozen=True, kw_only=True):
    """A file by its name; with at most one of ``data`` (base64) and ``url``, its content. In the log ``url``
    is ``blob:sha256-…``. Without either the model is told of the file, and reads it with its tools."""

    path: str
    mime_type: str | None = None
    size: int | None = None
    data: str | None = None
    url: str | None = None
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if self.data is not None and self.url is not None:
            raise AgentError("InvalidMessage", f"the file {self.path!r} has both data and url; give one")


def about_file(file: Image | FileRef) -> str:
    """A picture or a file in a few words, for people: its name, kind and size."""
    if isinstance(file, Image):
        return f"{file.name}, {file.mime_type}" if file.name else file.mime_type
    size = f"{file.size:,} bytes" if file.size is not None else ""
    return ", ".join(filter(None, (file.path, file.mime_type, size)))


class _Part(Value, Generic[P], frozen=True, kw_only=True, tag_field="kind"):
    payload: P


class TextPart(_Part[Text], frozen=True, tag="text"):
    kind: ClassVar[Literal["text"]] = "text"


class ThinkingPart(_Part[Thinking], frozen=True, tag="thinking"):
    kind: ClassVar[Literal["thinking"]] = "thinking"


class ToolCallPart(_Part[ToolCall], frozen=True, tag="tool_call"):
    kind: ClassVar[Literal["tool_call"]] = "tool_call"


class ImagePart(_Part[Image], frozen=True, tag="image"):
    kind: ClassVar[Literal["image"]] = "image"


class FileRefPart(_Part[FileRef], frozen=True, tag="file_ref"):
    kind: ClassVar[Literal["file_ref"]] = "file_ref"


class ToolResultPayload(Value, frozen=True, kw_only=True):
    """``content`` is text, a JSON object, or parts (text, image, file_ref)."""

    tool_call_id: str
    is_error: bool
    content: str | JsonObject | list[TextPart | ImagePart | FileRefPart]
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, dict) and (found := find_unjson(self.content)):
            raise AgentError("InvalidMessage", f"result of call {self.tool_call_id!r}: {found}")

    @property
    def text(self) -> str:
        """The content as text: its own, that of its text parts joined, or its JSON."""
        match self.content:
            case str():
                return self.content
            case dict():
                return msgspec.json.encode(self.content).decode()
            case _:
                return "".join(part.payload.text for part in self.content if isinstance(part, TextPart))


class ToolResultPart(_Part[ToolResultPayload], frozen=True, tag="tool_result"):
    kind: ClassVar[Literal["tool_result"]] = "tool_result"


MessagePart: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FileRefPart

PART_KINDS: tuple[str, ...] = tuple(part.kind for part in get_args(MessagePart))


def text_part(text: str, provider_data: JsonObject | None = None) -> TextPart:
    return TextPart(payload=Text(text=text, provider_data=provider_data))


def thinking_part(text: str, provider_data: JsonObject | None = None) -> ThinkingPart:
    return ThinkingPart(payload=Thinking(text=text, provider_data=provider_data))


def tool_result_part(
    tool_call_id: str,
    content: str | JsonObject | list[TextPart | ImagePart | FileRefPart],
    *,
    is_error: bool = False,
) -> ToolResultPart:
    return ToolResultPart(
        payload=ToolResultPayload(tool_call_id=tool_call_id, is_error=is_error, content=content)
    )


Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

ROLE_PARTS: dict[str, frozenset[str]] = {
    "system": frozenset({"text", "thinking"}),
    "user": frozenset({"text", "image", "file_ref"}),
    "assistant": frozenset({"text", "thinking", "tool_call"}),
    "tool": frozenset({"tool_result"}),
}
"""Which parts a role may hold. The one place for it."""

_PARTS: tuple[type[MessagePart], ...] = get_args(MessagePart)


class Message(Value, frozen=True, kw_only=True):
    run_id: str
    role: Role
    parts: list[MessagePart]
    timestamp: str
    meta: JsonObject | None = None

    def __post_init__(self) -> None:
        allowed = ROLE_PARTS.get(self.role)
        if allowed is None:
            raise AgentError(
                "InvalidMessage", f"role {self.role!r} does not exist; roles are {', '.join(ROLE_PARTS)}"
            )
        for index, part in enumerate(self.parts):
            if type(part) not in _PARTS and not isinstance(part, _PARTS):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise AgentError(
                    "InvalidMessage",
                    f"part {index} of a {self.role} message is a {type(part).__name__}, not a message part; "
                    "text_part(...) makes one of text",
                )
            if part.kind not in allowed:
                raise AgentError(
                    "InvalidMessage",
                    f"a {self.role} message cannot hold a {part.kind} part (part {index}); "
                    f"it may hold {', '.join(sorted(allowed))}",
                    meta={"role": self.role, "part": part.kind, "index": index},
                )
        if self.meta:
            check_meta(self.meta, f"{self.role} message")

    @property
    def text(self) -> str:
        """All text parts joined: what a person would read."""
        return "".join(part.payload.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        return [part for part in self.parts if part.kind == "tool_call"]  # pyright: ignore[reportReturnType]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        return [part for part in self.parts if part.kind == "tool_result"]  # pyright: ignore[reportReturnType]


class GrowingMessages(list[Message]):
    """Messages that are only added to."""

    frozen = 0
    """How many of them cannot be changed any more, down to the values in them."""


class MessageView(Sequence[Message]):
    """The first messages of a list that only grows, read-only. It costs the same at any length, and stays as
    it is while the list grows. Messages are frozen when they are first read."""

    __slots__ = ("_count", "_grown")

    def __init__(self, grown: list[Message], count: int | None = None) -> None:
        self._grown = grown if isinstance(grown, GrowingMessages) else GrowingMessages(grown)
        self._count = len(grown) if count is None else min(count, len(grown))

    def _read(self) -> list[Message]:
        grown, count = self._grown, self._count
        if grown.frozen < count:
            for message in islice(grown, grown.frozen, count):
                freeze(message)
            grown.frozen = count
        return grown

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return islice(self._read(), self._count)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            places = range(self._count)[index]
            if places.start == 0 and places.step == 1:
                return MessageView(self._grown, len(places))
            return tuple([self._read()[place] for place in places])
        return self._read()[range(self._count)[index]]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MessageView) and other._grown is self._grown:
            return self._count == other._count
        if not isinstance(other, MessageView | list | tuple):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"MessageView({list(self)!r})"


def user_message(text: str | Sequence[MessagePart], *, run_id: str = "", timestamp: str = "") -> Message:
    """A user's message; run id and timestamp are filled in when it is appended."""
    if not isinstance(text, str | list | tuple):
        raise AgentError(
            "InvalidMessage", f"a user's message is text or a list of parts, not a {type(text).__name__}"
        )
    parts: list[MessagePart] = [text_part(text)] if isinstance(text, str) else list(text)
    return Message(run_id=run_id, role="user", parts=parts, timestamp=timestamp)


@dataclass(frozen=True, slots=True)
class Input:
    """An input with titled sections, and with what stands for it once it is folded.

    ``text`` is the text itself, or a list of texts, files and parts; ``sections`` follow it in their order,
    each title a Markdown heading. ``summary`` and ``gist`` are shown in its place when the context has to
    shrink; what is not given is extracted. Raises ``InvalidMessage`` for a title that is empty or one of the
    runtime's own.
    """

    text: str | Sequence[Any] = ""
    _: KW_ONLY
    summary: str | None = None
    gist: str | None = None
    sections: Mapping[str, str] | Sequence[Section] = ()

    def __post_init__(self) -> None:
        for title, text in self._titled():
            if not (isinstance(title, str) and title.strip() and isinstance(text, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise AgentError(
                    "InvalidMessage", f"a section is a title and a text, not {title!r}: {text!r}"
                )
            if title in OWN_SECTIONS:
                raise AgentError(
                    "InvalidMessage", f"the section {title!r} is the runtime's own; give yours another title"
                )

    def _titled(self) -> list[Section]:
        return list(self.sections.items() if isinstance(self.sections, Mapping) else self.sections)

    def message(self, *, run_id: str = "", timestamp: str = "") -> Message:
        """The message to append. Sections that stand alone are its text."""
        text = self.text or to_plain_text(self._titled())
        return user_message(text, run_id=run_id, timestamp=timestamp)

    @property
    def live_sections(self) -> list[Section]:
        """What follows the message."""
        return self._titled() if self.text else []


_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/=]+)")


def pictures_of(message: Message) -> list[Image]:
    """The pictures that a model made, for people to look at: each travels as the ``block`` or ``item`` of an
    empty text part, in its provider's own form."""
    found: list[Image] = []
    for part in message.parts:
        data = part.payload.provider_data if isinstance(part, TextPart) else None
        block = cast("object", (data.get("block") or data.get("item")) if data is not None else None)
        if isinstance(block, dict) and (picture := _picture_in(cast("JsonObject", block))) is not None:
            found.append(picture)
    return found


def _picture_in(block: JsonObject) -> Image | None:
    inline = block.get("inlineData")
    if isinstance(inline, dict):
        return _picture(inline.get("mimeType"), inline.get("data"))  # pyright: ignore
    if block.get("type") == "image_generation_call":
        return _picture(f"image/{block.get('output_format') or 'png'}", block.get("result"))
    url = block.get("image_url")
    where = cast("JsonObject", url).get("url") if isinstance(url, dict) else url
    inside = _DATA_URL.fullmatch(where) if isinstance(where, str) else None
    return _picture(inside[1], inside[2]) if inside is not None else None


def _picture(mime_type: object, data: object) -> Image | None:
    if not isinstance(mime_type, str) or not mime_type.startswith("image/") or not isinstance(data, str):
        return None
    try:
        a2b_base64(data)
    except ValueError:
        return None
    return Image(mime_type=mime_type, data=data)


def is_empty_answer(message: Message, finish_reason: str) -> bool:
    """Whether an answer holds nothing: no text, no call, and nothing that the provider itself made or ran.

    An image, or a tool that ran at the provider, travels as the ``block`` or ``item`` of a text part's
    ``provider_data``. After a ``pause`` whatever the provider wants back counts.
    """
    if message.tool_calls or message.text.strip():
        return False
    for part in message.parts:
        if part.kind == "tool_result" or part.payload.provider_data is None:
            continue
        data = part.payload.provider_data
        if finish_reason == "pause" or (part.kind == "text" and ("block" in data or "item" in data)):
            return False
    return True


# ── three grains of one text, each an ordered list of (key, text) sections ──

Grain: TypeAlias = Literal["live", "summary", "gist"]
Section: TypeAlias = tuple[str, str]

LIVE_SCREEN = "[LiveScreen]"
"""Key of the section that shows what widgets changed."""

HINTS = "[Hints]"
"""Key of the section that shows runtime hints that changed."""

APPROVAL = "[Approval]"
"""Key of the section that says that a human changed a call before it ran."""

OWN_SECTIONS = frozenset({LIVE_SCREEN, HINTS, APPROVAL})
"""Keys that the runtime adds by itself; all others were given with the input or the result."""


class LevelOfDetailSections(Value, frozen=True, kw_only=True):
    """``live`` as it was written; ``summary`` and ``gist`` are what it shrinks to at a fold."""

    live: list[Section]
    summary: list[Section]
    gist: list[Section]

    @classmethod
    def create_uniform(cls, sections: Sequence[Section]) -> LevelOfDetailSections:
        """The same sections at every grain."""
        return cls(live=list(sections), summary=list(sections), gist=list(sections))

    def get_sections(self, grain: Grain) -> list[Section]:
        match grain:
            case "live":
                return self.live
            case "summary":
                return self.summary
            case "gist":
                return self.gist

    def with_live_section(self, key: str, text: str) -> LevelOfDetailSections:
        """Self with ``key`` set in the live grain: replaced in place, or added at the end."""
        if try_get_section(self.live, key) is None:
            live = [*self.live, (key, text)]
        else:
            live = [(name, text if name == key else body) for name, body in self.live]
        return LevelOfDetailSections(live=live, summary=self.summary, gist=self.gist)


def try_get_section(sections: Sequence[Section], key: str) -> str | None:
    for name, text in sections:
        if name == key:
            return text
    return None


def without_live_screen(sections: Sequence[Section]) -> tuple[list[Section], str | None]:
    """The sections without the LiveScreen, and the LiveScreen."""
    rest = [section for section in sections if section[0] != LIVE_SCREEN]
    return rest, try_get_section(sections, LIVE_SCREEN)


def to_plain_text(sections: Sequence[Section]) -> str:
    """Sections in order, each key as a Markdown heading; an empty key has none."""
    return "\n\n".join(f"# {key}\n\n{text}" if key else text for key, text in sections)
