"""One walk over a conversation for providers whose turns alternate; each protocol only names its shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Literal, Self, TypeAlias

from turnlog.contract import (
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
)

from ._config import CacheConfig
from .wire import CallIds, file_note, misplaced

Side: TypeAlias = Literal["user", "assistant"]


class AlternatingTurns(ABC):
    """The conversation so far. Turns alternate: messages of the same side are joined.

    A protocol says what a text, an image, a thought, a call and a result read like (None is left out), and
    puts the blocks of a message on its wire.
    """

    takes_blanks: ClassVar[bool] = False
    """Whether a user's text may be white space alone."""

    def __init__(self) -> None:
        self._ids = CallIds()
        self.last_side: Side | None = None
        self.has_calls = False
        self.answers_calls = False
        """The last turn holds results: the model is in the middle of its work."""
        self.ends_verbatim = False
        """The last block is the provider's own, after which it goes on by itself."""

    def copy(self) -> Self:
        other = copy(self)
        other._ids = self._ids.copy()
        return other

    # ── what a protocol names ──

    @abstractmethod
    def _text(self, text: str) -> JsonObject: ...

    @abstractmethod
    def _image(self, image: Image) -> JsonObject: ...

    @abstractmethod
    def _said(self, part: TextPart) -> JsonObject | None: ...

    @abstractmethod
    def _thought(self, part: ThinkingPart) -> JsonObject | None: ...

    @abstractmethod
    def _call(self, call: ToolCall) -> JsonObject: ...

    @abstractmethod
    def _results(self, results: list[ToolResultPayload]) -> list[JsonObject]: ...

    @abstractmethod
    def _put(self, side: Side, blocks: list[JsonObject], joins: bool, results: bool) -> None:
        """Write ``blocks``, which are not empty; ``joins``: into the turn that is there."""

    def _is_thought(self, block: JsonObject) -> bool:
        """Whether ``block`` may not be the last one of an answer."""
        return False

    def _begin_answer(self, message: Message) -> None:
        self._ids.begin_answer()

    def _mark_stable(self) -> None:
        """Up to here the context stays the same over folds."""

    # ── the walk ──

    def add(self, message: Message) -> None:
        match message.role:
            case "user":
                self._append("user", [self._given(part) for part in message.parts])
                if message.meta and message.meta.get("stable"):
                    self._mark_stable()
            case "system":
                if message.text.strip():
                    self.say(f"<system>\n{message.text}\n</system>")
            case "tool":
                results = self._results([part.payload for part in message.tool_results])
                self._append("user", results, results=True)
            case "assistant":
                self._begin_answer(message)
                self._append("assistant", self._answer(message))

    def say(self, text: str) -> None:
        """A user's text."""
        self._append("user", [self._text(text)])

    def close(self) -> None:
        """Make sure that it is the model's turn. After a pause its own words are the last ones."""
        if self.last_side is None:
            self.say("Begin.")
        elif self.last_side == "assistant" and not self.ends_verbatim:
            self.say("Continue.")

    def _append(self, side: Side, found: Sequence[JsonObject | None], *, results: bool = False) -> None:
        blocks = [block for block in found if block is not None]
        if not blocks:
            return
        if side == "assistant" and self.last_side is None:
            self.say("Begin.")  # the first word must be the user's
        joins = side == self.last_side
        self._put(side, blocks, joins, results)
        self.answers_calls = results or (joins and self.answers_calls)
        self.last_side = side

    def _answer(self, message: Message) -> list[JsonObject | None]:
        blocks: list[JsonObject | None] = []
        for part in message.parts:
            match part:
                case TextPart():
                    blocks.append(self._said(part))
                case ThinkingPart():
                    blocks.append(self._thought(part))
                case ToolCallPart():
                    self.has_calls = True
                    blocks.append(self._call(part.payload))
                case ToolResultPart() | ImagePart() | FileRefPart():
                    raise misplaced("assistant", part)
        while blocks and (blocks[-1] is None or self._is_thought(blocks[-1])):
            blocks.pop()  # thinking that nothing followed
        return blocks

    def _given(self, part: MessagePart) -> JsonObject | None:
        match part:
            case TextPart() | ImagePart() | FileRefPart():
                return self._shown(part)
            case ThinkingPart() | ToolCallPart() | ToolResultPart():
                raise misplaced("user", part)

    def _shown(self, part: TextPart | ImagePart | FileRefPart) -> JsonObject | None:
        match part:
            case TextPart():
                text = part.payload.text
                return self._text(text) if text.strip() or (text and self.takes_blanks) else None
            case ImagePart():
                return self._image(part.payload)
            case FileRefPart():
                return self._text(file_note(part.payload))


def cache_mark(cache: CacheConfig | None, kind: str) -> JsonObject | None:
    """What marks the end of a prefix that the provider may cache; None where that is switched off."""
    if cache is not None and cache.strategy == "off":
        return None
    return {"type": kind, "ttl": cache.ttl} if cache and cache.ttl else {"type": kind}
