"""What one target was sent so far: a list that only grows until a break, and the hash of its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnlog.contract import ImagePart, Message, ModelInvocationDescriptor, ToolSpec, Value, encode

from ._units import OutputUnit, ResultsUnit, Unit


class ContextStats(Value, frozen=True, kw_only=True):
    """Sizes of one emitted context. ``new_*`` is what the same target had not been sent before."""

    message_count: int
    new_messages: int
    total_bytes: int
    new_bytes: int
    estimated_tokens: int
    segments: int = 0
    breaks: int = 0


class ModelContext(NamedTuple):
    """One request's content. Messages are the same objects at every call until a break."""

    messages: list[Message]
    tool_specs: list[ToolSpec]
    system_prompt: str | None
    context_hash: str
    stats: ContextStats


class Head(NamedTuple):
    """What stands before the messages."""

    system_prompt: str | None
    tool_specs: list[ToolSpec]
    wire: bytes


def make_head(system_prompt: str | None, tool_specs: list[ToolSpec]) -> Head:
    return Head(system_prompt, tool_specs, encode((system_prompt, tool_specs)))


def wire_of(message: Message) -> bytes:
    """The canonical bytes of a message: who speaks and what, not when or in which run."""
    return encode((message.role, message.parts))


class Lane:
    """One target's wire. ``images`` counts pictures, whose bytes say nothing about their tokens."""

    __slots__ = ("_hash", "images", "messages", "position", "sent", "size", "target")

    def __init__(self, target: ModelInvocationDescriptor | None, head: Head) -> None:
        self.target = target
        self.messages: list[Message] = []
        self.position = 0
        self.size = len(head.wire)
        self.images = 0
        self.sent = (0, 0)
        self._hash = hashlib.sha256(head.wire)

    def advance(self, units: Sequence[Unit]) -> None:
        """Take in units up to the first whose results are still owed."""
        position = self.position
        count = len(units)
        while position < count:
            unit = units[position]
            if type(unit) is ResultsUnit and not unit.complete:
                break
            self._push(self.choose(unit))
            position += 1
        self.position = position

    def choose(self, unit: Unit) -> Message:
        """Thinking goes back only to who made it, and only while the wire before it is the same."""
        if (
            type(unit) is OutputUnit
            and unit.has_thinking
            and unit.readable_by(self.target)
            and unit.entry.payload.wire_hash == self.hash
        ):
            return unit.full
        return unit.render()

    def _push(self, message: Message) -> None:
        if not message.parts:
            return
        wire = wire_of(message)
        self._hash.update(wire)
        self.messages.append(message)
        size, images = weigh(message, len(wire))
        self.size += size
        self.images += images

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def preview(self, units: Sequence[Unit]) -> Lane:
        """A copy that also holds what is not complete yet; the lane itself stays as it was."""
        copy = Lane.__new__(Lane)
        copy.target, copy.messages = self.target, list(self.messages)
        copy.position, copy.size, copy.images = self.position, self.size, self.images
        copy.sent = self.sent
        copy._hash = self._hash.copy()
        for unit in units[self.position :]:
            if type(unit) is ResultsUnit and not unit.complete:
                copy._push(unit.build(fill=False))
            else:
                copy._push(copy.choose(unit))
        return copy

    def emit(self, head: Head, tokens: Callable[[int, int], int], segments: int, breaks: int) -> ModelContext:
        count, size = len(self.messages), self.size
        seen, seen_size = self.sent
        self.sent = (count, size)
        stats = ContextStats(
            message_count=count,
            new_messages=count - seen,
            total_bytes=size,
            new_bytes=size - seen_size,
            estimated_tokens=tokens(size, self.images),
            segments=segments,
            breaks=breaks,
        )
        return ModelContext(self.messages.copy(), head.tool_specs, head.system_prompt, self.hash, stats)


def weigh(message: Message, size: int) -> tuple[int, int]:
    """Bytes that stand for text, and the number of images."""
    images = 0
    for part in message.parts:
        if type(part) is ImagePart:
            images += 1
            size -= len(part.payload.data or "")
    return size, images
