"""Whatever a tool returned, as content a message can carry."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from turnlog.contract import FileRefPart, Image, ImagePart, JsonObject, TextPart, picture_kind, text_part

from ._answer import (
    Content,
    Deferral,
    ResultPart,
    ToolAnswer,
    ToolResult,
    Unserialisable,
    clean,
    clean_bytes,
    clean_json,
)

NO_OUTPUT = "(no output)"
IMAGE_LIMIT = 20_000_000
STREAM_LIMIT = 64_000_000
"""Bytes of output a generator may yield before it is stopped."""
_GRAIN_LIMIT = 20_000
_SNAP = 200
_LEAST = 200


@dataclass(frozen=True)
class ImageContent:
    """Image bytes as a result, alone or in a list with text. The type is read from the bytes when absent."""

    data: bytes
    mime_type: str | None = None


def render(value: object, limit: int) -> ToolAnswer:
    """The answer that shows ``value``; text beyond ``limit`` bytes is cut in the middle and kept whole in
    ``artifact``. Raises :class:`Unserialisable`."""
    if isinstance(value, ToolResult):
        return _authored(value, limit)
    content, artifact = _content(value, limit)
    return ToolAnswer(status="success", content=content, artifact=artifact)


def _authored(result: ToolResult, limit: int) -> ToolAnswer:
    if result.deferral is not None:
        return ToolAnswer(
            status="deferred",
            content=clean(result.deferral.reason),
            deferral=_clean_deferral(result.deferral),
            usage=result.usage,
        )
    content, artifact = _content(result.content, limit)
    return ToolAnswer(
        status="failed" if result.is_error else "success",
        error_code="ToolExecutionError" if result.is_error else None,
        content=content,
        summary=_grain(result.summary),
        gist=_grain(result.gist),
        artifact=artifact if result.artifact is None else clean_bytes(result.artifact),
        usage=result.usage,
    )


def _clean_deferral(deferral: Deferral) -> Deferral:
    schema = deferral.answer_schema
    if schema is not None and not isinstance(cast("object", schema), dict):
        raise Unserialisable(f"answer_schema is a {type(schema).__name__}; it is a JSON schema, as a dict")
    return Deferral(
        reason=clean(deferral.reason),
        question=_grain(deferral.question),
        answer_schema=None if schema is None else clean_json(schema),
        by=_grain(deferral.by),
        state=None if deferral.state is None else clean_json(deferral.state),
    )


def _grain(text: str | None) -> str | None:
    return None if text is None else clean(text)[:_GRAIN_LIMIT]


def _content(value: object, limit: int) -> tuple[Content, bytes | None]:
    match value:
        case None:
            return NO_OUTPUT, None
        case str():
            return _text(value, limit)
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(cast("bytes", value)), limit)
        case ImageContent() | TextPart() | ImagePart() | FileRefPart():
            return _parts([value], limit)
        case list() | tuple() if _has_parts(cast("list[object]", value)):
            return _parts(list(cast("list[object]", value)), limit)
        case _:
            pass
    picture = _picture(value)
    if picture is not None:
        return _parts([picture], limit)
    plain = clean_json(value)
    if isinstance(plain, str):
        return _text(plain, limit)
    encoded = msgspec.json.encode(plain)
    if isinstance(plain, dict) and len(encoded) <= limit:
        return cast("JsonObject", plain), None
    return cut(encoded.decode(), limit)


def _text(value: str, limit: int) -> tuple[str, bytes | None]:
    text = clean(value)
    return cut(text, limit) if text else (NO_OUTPUT, None)


def cut(text: str, limit: int) -> tuple[str, bytes | None]:
    """Head and tail of a text that is too long, and then the whole of it as bytes."""
    if len(text) * 4 <= limit:
        return text, None
    whole = text.encode()
    if len(whole) <= limit:
        return text, None
    head = whole[: limit * 2 // 3]
    tail = whole[len(whole) - (limit - len(head)) :]
    # End and begin at a line where one is near: half a line misleads more than a missing one.
    at = head.rfind(b"\n", max(len(head) - _SNAP, 0))
    head = head if at < 0 else head[: at + 1]
    at = tail.find(b"\n", 0, _SNAP)
    tail = tail if at < 0 else tail[at + 1 :]
    left_out = len(whole) - len(head) - len(tail)
    note = f"\n\n[… {left_out:,} of {len(whole):,} bytes left out here …]\n\n"
    return head.decode(errors="ignore") + note + tail.decode(errors="ignore"), whole


def _bytes(data: bytes, limit: int) -> tuple[Content, bytes | None]:
    if picture_kind(data) is not None:
        return _parts([ImageContent(data)], limit)
    try:
        return _text(data.decode(), limit)
    except UnicodeDecodeError:
        return f"({len(data):,} bytes of binary data)", clean_bytes(data)


def _has_parts(items: list[object]) -> bool:
    kinds = ImageContent | TextPart | ImagePart | FileRefPart
    return any(isinstance(item, kinds) or _picture(item) is not None for item in items)


def _parts(items: list[object], limit: int) -> tuple[Content, bytes | None]:
    parts: list[ResultPart] = []
    whole: list[str] = []
    left, is_cut = limit, False
    for item in items:
        part = _part(item)
        if isinstance(part, TextPart):
            text = part.payload.text
            whole.append(text)
            shown, rest = cut(text, max(left, _LEAST))
            left -= len(shown)
            if rest is not None:
                part, is_cut = text_part(shown), True
        parts.append(part)
    return parts, "\n".join(whole).encode() if is_cut else None


def _part(item: object) -> ResultPart:
    match item:
        case TextPart():
            return text_part(clean(item.payload.text))
        case FileRefPart():
            file = msgspec.structs.replace(item.payload, path=clean(item.payload.path))
            return FileRefPart(payload=file)
        case ImagePart():
            url = item.payload.url
            image = msgspec.structs.replace(item.payload, url=None if url is None else clean(url))
            return ImagePart(payload=image)
        case ImageContent():
            return _image(item)
        case _:
            picture = _picture(item)
            if picture is not None:
                return _image(picture)
            plain = clean_json(item)
            return text_part(plain if isinstance(plain, str) else msgspec.json.encode(plain).decode())


def _image(image: ImageContent) -> ResultPart:
    mime = image.mime_type or picture_kind(image.data)
    if mime is None:
        raise Unserialisable(
            "result is an image of no known kind (png, jpeg, gif, webp); give ImageContent a mime_type"
        )
    if len(image.data) > IMAGE_LIMIT:
        raise Unserialisable(
            f"result is an image of {len(image.data):,} bytes, the limit is {IMAGE_LIMIT:,}; make it smaller"
        )
    return ImagePart(payload=Image(mime_type=mime, data=base64.b64encode(image.data).decode()))


def _picture(value: Any) -> ImageContent | None:
    """What draws itself as PNG for notebooks (images, figures) does so here."""
    draw = getattr(cast("Any", type(value)), "_repr_png_", None)
    if draw is None:
        return None
    data = draw(value)
    return ImageContent(data, "image/png") if isinstance(data, bytes) else None


class Collector:
    """Puts together what a generator yields: text is output and shown at once, a dict is progress, and a
    ``ToolResult`` is the result itself."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._pieces: list[str] = []
        self._size = 0
        self._final: ToolResult | None = None
        self.full = False

    def take(self, item: object) -> None:
        match item:
            case ToolResult():
                self._final = item
            case dict():
                self._report(None, **{str(key): value for key, value in cast("JsonObject", item).items()})
            case _:
                text = item if isinstance(item, str) else _plain_text(item)
                self._pieces.append(text)
                self._size += len(text)
                self._report(text)
                self.full = self._size > STREAM_LIMIT

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def value(self) -> object:
        if self._final is not None:
            return self._final
        stopped = f"\n[stopped: more than {STREAM_LIMIT:,} characters of output]" if self.full else ""
        return self.text + stopped

    async def drain(self, source: AsyncIterator[object]) -> object:
        try:
            async for item in source:
                self.take(item)
                if self.full:
                    break
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
        return self.value()

    def drain_now(self, source: Iterator[object]) -> object:
        try:
            for item in source:
                self.take(item)
                if self.full:
                    break
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        return self.value()


def _plain_text(item: object) -> str:
    plain = clean_json(item)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
