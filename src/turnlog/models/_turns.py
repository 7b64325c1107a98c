"""A conversation as a provider reads it: what was made of its messages is kept from call to call, so that
only new ones are folded in; and one walk over them for providers whose turns alternate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from hashlib import sha256
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from turnlog.contract import (
    FileRef,
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
from .wire import CallIds, complete_calls, file_note, misplaced, pdf_data, settled

MAX_ENTRIES = 1024
MAX_BYTES = 64 * 1024 * 1024
MAX_PIECES = 256


class Folded(Protocol):
    """A state that messages are added to, one by one, each call of it followed by its results."""

    def add(self, message: Message) -> None: ...

    def copy(self) -> Self:
        """A state of its own, at most at the price of copying memory."""
        ...

    @property
    def size(self) -> int:
        """Bytes it holds, roughly."""
        ...


S = TypeVar("S", bound=Folded)


class _Kept(NamedTuple, Generic[S]):
    seed: Hashable
    messages: Sequence[Message]
    state: S
    size: int


class FoldCache(Generic[S]):
    """``fold`` gives the state of a call's messages; the caller may change it, it is a copy.

    A key stands for one conversation in one form: the session's id, and whatever of the configuration
    changes how a message is written. Another ``seed`` (what precedes the messages) folds all anew. What
    ``empty`` makes may depend on nothing else.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: OrderedDict[Hashable, _Kept[S]] = OrderedDict()
        self._max_bytes = max_bytes
        self.size = 0
        """Bytes kept, roughly."""

    def fold(
        self, key: Hashable, messages: Sequence[Message], empty: Callable[[], S], seed: Hashable = None
    ) -> S:
        kept = self._kept.get(key)
        start = 0
        # Comparing tuples looks at identity first: for a history that grew this is a walk over pointers.
        if kept is not None and kept.seed == seed and kept.messages == messages[: len(kept.messages)]:
            start, state = len(kept.messages), kept.state
            self._kept.move_to_end(key)
        else:
            state = empty()
        border = start + settled(messages[start:])
        if border > start:
            self._forget(key)  # it is changed from here on
            for message in complete_calls(messages[start:border]):
                state.add(message)
            self._keep(key, _Kept(seed, messages[:border], state, state.size))
        copied = state.copy()
        for message in complete_calls(messages[border:]):
            copied.add(message)
        return copied

    def _keep(self, key: Hashable, entry: _Kept[S]) -> None:
        self._kept[key] = entry
        self.size += entry.size
        while self.size > self._max_bytes or len(self._kept) > MAX_ENTRIES:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Hashable) -> None:
        gone = self._kept.pop(key, None)
        self.size -= gone.size if gone is not None else 0


Digest: TypeAlias = Callable[[], str]
EncodeMessage: TypeAlias = Callable[[Message, Digest], bytes]
"""(a message, the digest of the wire before it) → its JSON objects joined by commas, or ``b""``.

It must depend on these two alone, and on what the cache's key and seed name.
"""


class Wire:
    """Encoded messages in pieces that belong together with commas between; ``digest`` is of them all.

    For providers whose wire is one object after another. Copying it copies no bytes.
    """

    def __init__(self, encode: EncodeMessage, seed: bytes = b"") -> None:
        self._encode = encode
        self._pieces: tuple[bytes, ...] = ()
        self._fresh: list[bytes] = []
        self._hashed = 0
        self._hasher: Any = sha256(seed)
        self.size = 0

    def add(self, message: Message) -> None:
        piece = self._encode(message, self.digest)
        if piece:
            self._fresh.append(piece)
            self.size += len(piece) + 1

    def copy(self) -> Wire:
        self.digest()
        other = Wire.__new__(Wire)
        other.__dict__.update(self.__dict__, _pieces=self.pieces, _fresh=[], _hashed=0)
        other._hasher = self._hasher.copy()
        return other

    @property
    def pieces(self) -> tuple[bytes, ...]:
        if self._fresh:
            self.digest()
            whole = (*self._pieces, b",".join(self._fresh))
            self._pieces = whole if len(whole) <= MAX_PIECES else (b",".join(whole),)
            self._fresh, self._hashed = [], 0
        return self._pieces

    @property
    def data(self) -> bytes:
        return b",".join(self.pieces)

    def digest(self) -> str:
        """The digest of all that was added so far."""
        if self._hashed < len(self._fresh):
            self._hasher.update(b",".join(self._fresh[self._hashed :]))
            self._hasher.update(b",")
            self._hashed = len(self._fresh)
        return self._hasher.copy().hexdigest()[:24]


LOST_THOUGHTS = (
    "thinking is off until the next user message: the work in progress has lost its first thoughts "
    "(a fold, or another model), and the API takes no budget there"
)
"""Why a thinking budget is not asked for where Claude would refuse it."""

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
        self.loop_thinks: bool | None = None
        """Whether the first answer of the work in progress began with thinking."""
        self.ends_verbatim = False
        """The last block is the provider's own, after which the provider continues by itself."""

    def copy(self) -> Self:
        other = copy(self)
        other._ids = self._ids.copy()
        return other

    @property
    def lost_thoughts(self) -> bool:
        """The model is in the middle of work whose first answer is sent without its thinking."""
        return self.answers_calls and self.loop_thinks is False

    # ── what a protocol names ──

    @abstractmethod
    def _text(self, text: str) -> JsonObject: ...

    @abstractmethod
    def _image(self, image: Image) -> JsonObject: ...

    def _document(self, file: FileRef, data: str) -> JsonObject | None:
        """A PDF, as base64; None where the model takes none."""
        return None

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
        if side == "user" and not joins and not results:
            self.loop_thinks = None
        if side == "assistant" and self.loop_thinks is None:
            self.loop_thinks = self._is_thought(blocks[0])
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
                data = pdf_data(part.payload)
                shown = self._document(part.payload, data) if data is not None else None
                return shown if shown is not None else self._text(file_note(part.payload))


def cache_mark(cache: CacheConfig | None, kind: str) -> JsonObject | None:
    """What marks the end of a prefix that the provider may cache; None where that is switched off."""
    if cache is not None and cache.strategy == "off":
        return None
    return {"type": kind, "ttl": cache.ttl} if cache and cache.ttl else {"type": kind}
