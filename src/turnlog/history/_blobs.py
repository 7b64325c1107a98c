"""Bytes of images live beside the log, once each; entries name them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from ..contract import (
    AgentError,
    CustomEntry,
    Entry,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    MessagePart,
    ModelInputEntry,
    ModelOutputEntry,
    Store,
    TextPart,
    ToolResultPart,
    ToolResultsEntry,
    digest,
    encode,
)

PREFIX = "blob:"
_NAME = re.compile(r"blob:(sha256-[0-9a-f]{64})")
_replace = msgspec.structs.replace


def detach_images(message: Message, found: dict[str, bytes]) -> Message:
    """``message`` with image data replaced by names; the bytes go into ``found`` by name."""
    if not any(_holds_data(part) for part in message.parts):
        return message
    return _replace(message, parts=[_detach(part, found) for part in message.parts])


def named_blobs(entry: Entry) -> set[str]:
    """Names of the stored bytes that belong to an entry: its images, outputs that were kept apart, and what
    a host's own entry names as ``blob:sha256-…``."""
    if isinstance(entry, CustomEntry):
        return set(_NAME.findall(encode(entry.payload.data).decode()))
    if not isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
        return set()
    found: set[str] = set()
    for part in entry.payload.message.parts:
        content = part.payload.content if isinstance(part, ToolResultPart) else [part]
        for inner in content if isinstance(content, list) else ():
            if isinstance(inner, ImagePart) and (inner.payload.url or "").startswith(PREFIX):
                found.add((inner.payload.url or "").removeprefix(PREFIX))
    if isinstance(entry, ToolResultsEntry):
        found |= {outcome.artifact for outcome in entry.payload.outcomes if outcome.artifact is not None}
    return found


async def attach_images(store: Store, message: Message) -> Message:
    """``message`` with the bytes of its images in place again, as a provider wants them."""
    parts = [await _attach(store, part) for part in message.parts]
    return message if parts == message.parts else _replace(message, parts=parts)


def _holds_data(part: MessagePart) -> bool:
    if isinstance(part, ImagePart):
        return part.payload.data is not None
    if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
        return any(isinstance(inner, ImagePart) and inner.payload.data for inner in part.payload.content)
    return False


def _detach(part: MessagePart, found: dict[str, bytes]) -> MessagePart:
    if isinstance(part, ImagePart):
        return _detach_one(part, found)
    if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
        content = _each_image(part.payload.content, found)
        return _replace(part, payload=_replace(part.payload, content=content))
    return part


def _each_image(
    parts: Sequence[TextPart | ImagePart | FileRefPart], found: dict[str, bytes]
) -> list[TextPart | ImagePart | FileRefPart]:
    return [_detach_one(part, found) if isinstance(part, ImagePart) else part for part in parts]


def _detach_one(part: ImagePart, found: dict[str, bytes]) -> ImagePart:
    if part.payload.data is None:
        return part
    try:
        data = base64.b64decode(part.payload.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AgentError(
            "InvalidMessage", f"an image's data is not base64: {error}; encode the bytes", cause=error
        ) from error
    name = f"sha256-{digest(data)}"
    found[name] = data
    image = part.payload
    named = Image(mime_type=image.mime_type, url=PREFIX + name, provider_data=image.provider_data)
    return ImagePart(payload=named)


async def _attach(store: Store, part: MessagePart) -> MessagePart:
    if isinstance(part, ImagePart):
        return await _attach_one(store, part)
    if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
        content = [
            await _attach_one(store, inner) if isinstance(inner, ImagePart) else inner
            for inner in part.payload.content
        ]
        return _replace(part, payload=_replace(part.payload, content=content))
    return part


async def _attach_one(store: Store, part: ImagePart) -> ImagePart:
    url = part.payload.url
    if url is None or not url.startswith(PREFIX):
        return part
    data = base64.b64encode(await store.get_blob(url.removeprefix(PREFIX))).decode()
    image = part.payload
    return ImagePart(payload=Image(mime_type=image.mime_type, data=data, provider_data=image.provider_data))
