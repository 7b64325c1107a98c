"""Messages with their pictures in place, each made once."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from turnlog.contract import ImagePart, Message, MessageView, ToolResultPart


class PictureCache:
    """What a target is sent, with the bytes of pictures that the log only names.

    ``attach`` brings them back for one message. A message that was attached before is the same object again,
    so that a call costs the pictures that are new, and who compares messages by identity finds them equal.
    Only what is in view is kept. One cache serves one session.
    """

    def __init__(self, attach: Callable[[Message], Awaitable[Message]]) -> None:
        self._attach = attach
        self._sources: list[Message] = []
        self._shown: list[Message] = []

    async def attached(self, messages: Sequence[Message]) -> Sequence[Message]:
        """``messages`` with their pictures. Raises what ``attach`` raises, and is as it was before then."""
        sources, shown = self._sources, self._shown
        known: dict[int, Message] = {}
        if len(messages) < len(sources) or not all(map(operator.is_, sources, messages)):
            known = {id(source): made for source, made in zip(sources, shown, strict=True)}
            sources, shown = [], []
        begin = len(sources)
        fresh = list(islice(messages, begin, None))
        made = [known.get(id(message)) or await self._with_pictures(message) for message in fresh]
        if len(sources) > begin:  # another call went on from the same place in the meantime
            sources, shown = sources[:begin], shown[:begin]
        sources += fresh
        shown += made
        self._sources, self._shown = sources, shown
        return MessageView(shown)

    async def _with_pictures(self, message: Message) -> Message:
        return await self._attach(message) if holds_pictures(message) else message


def holds_pictures(message: Message) -> bool:
    for part in message.parts:
        inner = part.payload.content if type(part) is ToolResultPart else [part]
        if isinstance(inner, list) and any(type(one) is ImagePart for one in inner):
            return True
    return False
