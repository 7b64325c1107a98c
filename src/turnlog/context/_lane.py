"""What one target was sent so far: a list that only grows until a break, and the hash of its bytes;
and messages with their pictures in place, each made once."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from turnlog.contract import (
    FileRefPart,
    GrowingMessages,
    ImagePart,
    Message,
    MessageView,
    ModelInvocationDescriptor,
    ToolResultPart,
    ToolSpec,
    Value,
    encode,
    freeze,
)

from ._options import ContextOptions, weigh
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
    """One request's content. Messages are the same objects at every call until a break, and read-only."""

    messages: Sequence[Message]
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
    return Head(system_prompt, freeze(tool_specs), encode((system_prompt, tool_specs)))


_json = msgspec.json.Encoder().encode


def wire_of(message: Message) -> bytes:
    """The canonical bytes of a message: who speaks and what, not when or in which run.

    What comes out of a log was JSON before, so nothing is looked for that JSON lacks.
    """
    return _json((message.role, message.parts))


class Lane:
    """One target's wire. ``size`` is bytes, ``weight`` bytes with pictures counted by their tokens."""

    __slots__ = ("_hash", "_options", "_unhashed", "messages", "position", "sent", "size", "target", "weight")

    def __init__(self, target: ModelInvocationDescriptor | None, head: Head, options: ContextOptions) -> None:
        self.target = target
        self.messages = GrowingMessages()
        self.position = 0
        self.size = self.weight = len(head.wire)
        self.sent = (0, 0)
        self._hash = hashlib.sha256(head.wire)
        self._unhashed: list[bytes] = []
        self._options = options

    def advance(self, units: Sequence[Unit]) -> None:
        """Take in units up to the first whose results are still owed."""
        position = self.position
        count = len(units)
        while position < count:
            unit = units[position]
            if type(unit) is ResultsUnit and not unit.complete:
                break
            message = rendered = unit.render()
            if type(unit) is OutputUnit and unit.has_thinking:
                message = self.choose(unit)
            weight = self._push(message)
            if message is rendered:
                unit.weight = weight
            position += 1
        self.position = position

    def choose(self, unit: Unit) -> Message:
        """Thinking goes back only to who made it, and only while the wire before it is the same."""
        if (
            type(unit) is OutputUnit
            and unit.has_thinking
            and unit.made_by(self.target)
            and unit.entry.payload.wire_hash == self.hash
        ):
            return unit.full
        return unit.render()

    def _push(self, message: Message) -> int:
        if not message.parts:
            return 0
        wire = wire_of(message)
        self._unhashed.append(wire)
        self.messages.append(message)  # frozen when it is read: what was hashed is what is sent
        size = len(wire)
        weight = weigh(message, size, self._options)
        self.size += size
        self.weight += weight
        return weight

    @property
    def hash(self) -> str:
        return self._hashed().hexdigest()

    def _hashed(self) -> Any:
        if self._unhashed:
            self._hash.update(b"".join(self._unhashed))
            self._unhashed.clear()
        return self._hash

    def pairs(self, units: Sequence[Unit], after: tuple[int, int] = (0, 0)) -> Iterator[tuple[Unit, Message]]:
        """Each unit that was sent, with the message it became; ``after`` are the units and the messages to
        leave out."""
        shown = islice(self.messages, after[1], None)
        message = next(shown, None)
        for unit in units[after[0] : self.position]:
            if message is not None and (
                message is unit.render() or (type(unit) is OutputUnit and message is unit.full)
            ):
                yield unit, message
                message = next(shown, None)

    def preview(self, units: Sequence[Unit]) -> Lane:
        """A copy that also holds what is not complete yet; the lane itself stays as it was."""
        copy = Lane.__new__(Lane)
        copy.target, copy.messages, copy.position = self.target, list(self.messages), self.position
        copy.size, copy.weight, copy.sent = self.size, self.weight, self.sent
        copy._hash, copy._unhashed, copy._options = self._hashed().copy(), [], self._options
        for unit in units[self.position :]:
            if type(unit) is ResultsUnit and not unit.complete:
                copy._push(unit.build(fill=False))
            else:
                copy._push(copy.choose(unit))
        return copy

    def emit(self, head: Head, *, tokens: int, segments: int, breaks: int) -> ModelContext:
        count, size = len(self.messages), self.size
        seen, seen_size = self.sent
        self.sent = (count, size)
        stats = ContextStats(
            message_count=count,
            new_messages=count - seen,
            total_bytes=size,
            new_bytes=size - seen_size,
            estimated_tokens=tokens,
            segments=segments,
            breaks=breaks,
        )
        return ModelContext(MessageView(self.messages), head.tool_specs, head.system_prompt, self.hash, stats)


def unit_weight(unit: Unit, options: ContextOptions) -> int:
    """What a unit takes on the wire, without thinking."""
    if unit.weight and (type(unit) is not ResultsUnit or unit.complete):
        return unit.weight
    message = unit.render()
    weight = weigh(message, len(wire_of(message)), options) if message.parts else 0
    if type(unit) is not ResultsUnit or unit.complete:
        unit.weight = weight
    return weight


class PictureCache:
    """What a target is sent, with the bytes of pictures that the log only names.

    ``attach`` brings them back for one message. A message that was attached before is the same object again,
    so that a call costs the pictures that are new, and who compares messages by identity finds them equal.
    Only what is in view is kept. One cache serves one session.
    """

    def __init__(self, attach: Callable[[Message], Awaitable[Message]]) -> None:
        self._attach = attach
        self._sources: list[Message] = []
        self._shown = GrowingMessages()

    async def attached(self, messages: Sequence[Message]) -> Sequence[Message]:
        """``messages`` with their pictures. Raises what ``attach`` raises, and is as it was before then."""
        sources, shown = self._sources, self._shown
        known: dict[int, Message] = {}
        if len(messages) < len(sources) or not all(map(operator.is_, sources, messages)):
            known = {id(source): made for source, made in zip(sources, shown, strict=True)}
            sources, shown = [], GrowingMessages()
        begin = len(sources)
        fresh = list(islice(messages, begin, None))
        made = [known.get(id(message)) or await self._with_pictures(message) for message in fresh]
        if len(sources) > begin:  # another call went on from the same place in the meantime
            sources, shown = sources[:begin], GrowingMessages(shown[:begin])
        sources += fresh
        shown += made
        self._sources, self._shown = sources, shown
        return MessageView(shown)

    async def _with_pictures(self, message: Message) -> Message:
        return await self._attach(message) if holds_pictures(message) else message


def holds_pictures(message: Message) -> bool:
    for part in message.parts:
        inner = part.payload.content if type(part) is ToolResultPart else [part]
        if isinstance(inner, list) and any(type(one) in (ImagePart, FileRefPart) for one in inner):
            return True
    return False
