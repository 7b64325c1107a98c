"""One entry at one grain as the message a model gets, and how the grains of a text are made."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import (
    LIVE_SCREEN,
    OWN_SECTIONS,
    Entry,
    Grain,
    ImagePart,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessagePart,
    ModelInput,
    PurgeEntry,
    RedactionEntry,
    Section,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    encode,
    text_part,
    to_plain_text,
    try_get_section,
)
from turnlog.contract import FileRefPart as FileRefPart

# ── messages: these formats are part of the wire, change none ──

REDACTED = "[redacted]"
"""What stands for content that a redaction or a purge took away."""

NO_RESULT = "[no result was recorded]"

ResultContent = str | JsonObject | list[TextPart | ImagePart | FileRefPart]


def has_screen(sections: LevelOfDetailSections | None) -> bool:
    return sections is not None and try_get_section(sections.live, LIVE_SCREEN) is not None


def live_sections(sections: LevelOfDetailSections | None, *, screen: bool) -> list[Section]:
    """What was added to the live grain; without ``screen``, all but what widgets showed."""
    if sections is None or screen:
        return sections.live if sections else []
    return [section for section in sections.live if section[0] != LIVE_SCREEN]


def input_text(message: Message, sections: Sequence[Section]) -> str:
    """All that was given with an input: its text, and the sections that are not the runtime's own."""
    given = [section for section in sections if section[0] not in OWN_SECTIONS]
    text = parts_text(message.parts)
    return "\n\n".join(filter(None, (text, to_plain_text(given)))) if given else text


def render_input(payload: ModelInput, *, screen: bool = True) -> Message:
    """The message itself, what was added to its live grain behind it."""
    message = payload.message
    added = live_sections(payload.sections, screen=screen)
    if not added:
        return message
    return with_parts(message, [*message.parts, text_part(to_plain_text(added))])


def render_content(content: ResultContent, added: Sequence[Section] | None) -> ResultContent:
    """A result's live content with the sections that were added to it."""
    if not added:
        return content
    tail = to_plain_text(added)
    match content:
        case str():
            return f"{content}\n\n{tail}" if content else tail
        case dict():
            return [text_part(encode(content).decode()), text_part(tail)]
        case list():
            return [*content, text_part(tail)]


def content_text(content: ResultContent | list[MessagePart]) -> str:
    """What a result or a message says, as text; images and files by name."""
    match content:
        case str():
            return content
        case dict():
            return encode(content).decode()
        case list():
            return parts_text(content)


def parts_text(parts: Iterable[MessagePart]) -> str:
    return "\n".join(line for part in parts if (line := _part_text(part)))


def _part_text(part: MessagePart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ToolCallPart():
            return f"{part.payload.tool_name}({part.payload.raw_args_text})"
        case ToolResultPart():
            return content_text(part.payload.content)
        case ImagePart():
            return f"[image {part.payload.mime_type}]"
        case FileRefPart():
            return f"[file {part.payload.path}]"
        case ThinkingPart():
            return ""


def grain_text(sections: LevelOfDetailSections | None, grain: Grain) -> str | None:
    """The stored text of a lower grain, or None when the entry carries none."""
    if sections is None or grain == "live":
        return None
    return to_plain_text(sections.get_sections(grain)) or None


def folded_text(seq: int, grain: Grain, text: str) -> str:
    """A lower grain as the model reads it: with the number that ``recall`` takes."""
    return f"[#{seq} {grain}; recall #{seq} brings the whole text]\n{text}"


def replace_result(part: ToolResultPart, content: ResultContent) -> ToolResultPart:
    old = part.payload
    if content is old.content:
        return part
    return ToolResultPart(
        payload=ToolResultPayload(
            tool_call_id=old.tool_call_id,
            is_error=old.is_error,
            content=content,
            provider_data=old.provider_data,
        )
    )


def without_thinking(message: Message) -> Message:
    parts: list[MessagePart] = [part for part in message.parts if not isinstance(part, ThinkingPart)]
    return message if len(parts) == len(message.parts) else with_parts(message, parts)


_HIDING = (RedactionEntry, PurgeEntry)  # a union would be made anew for every entry of a long log


def hidden_ids(entries: Iterable[Entry]) -> set[str]:
    """The entries whose content a redaction or a purge in ``entries`` took away."""
    hidden: set[str] = set()
    for entry in entries:
        if isinstance(entry, _HIDING):
            hidden.update(entry.payload.entry_ids)
    return hidden


def redact_message(message: Message) -> Message:
    """The same shape without the words: calls and results stay paired, nothing they said remains."""
    parts: list[MessagePart] = []
    for part in message.parts:
        match part:
            case ToolCallPart():
                parts.append(_redact_call(part.payload))
            case ToolResultPart():
                parts.append(_redact_result(part.payload))
            case TextPart() | ImagePart() | FileRefPart() | ThinkingPart():
                pass
    if not any(isinstance(part, ToolCallPart | ToolResultPart) for part in parts):
        parts.append(text_part(REDACTED))
    return with_parts(message, parts)


def _redact_call(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=call.tool_call_id, tool_name=call.tool_name, arguments={}, raw_args_text="{}"
        )
    )


def _redact_result(result: ToolResultPayload) -> ToolResultPart:
    return ToolResultPart(
        payload=ToolResultPayload(
            tool_call_id=result.tool_call_id, is_error=result.is_error, content=REDACTED
        )
    )


def with_parts(message: Message, parts: list[MessagePart]) -> Message:
    return Message(
        run_id=message.run_id,
        role=message.role,
        parts=parts,
        timestamp=message.timestamp,
        meta=message.meta,
    )


# ── three grains of one text: first and last lines, diagnostics, then the rarest words ──
#
# Rare words beat first words: what a later turn asks for is seldom what a text begins with. What is written
# here is stored with the entry, so a change below changes no old session.

_WORD = re.compile(r"[^\W_](?:[\w./:@$%&+#~-]{0,78}\w%?)?|_\w{1,79}|\$\d[\d.,]*")
"""A run of letters, digits and what holds names, paths and figures together, starting and ending in one."""

TEXT_LIMIT = 24_000
"""Characters of one text that are looked at; of a longer one, the beginning and the end."""

WINDOW = 400
"""Texts that the frequencies are taken over: what is older has been folded and makes no word common."""


def split_words(text: str) -> list[str]:
    if len(text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        text = f"{text[:half]} {text[-half:]}"
    return _WORD.findall(text)


class Vocabulary:
    """Document frequency as a fold over what was said. It becomes text, and the text words, only when a
    frequency is asked for; by then most of a long log has left the window."""

    __slots__ = ("_counts", "_documents", "_waiting", "_words")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._documents: deque[frozenset[str] | list[int]] = deque()
        self._words: list[str] = []
        """The words that a text which is given by numbers is made of."""
        self._waiting: list[ResultContent | list[MessagePart]] = []

    def copy(self) -> Vocabulary:
        copy = Vocabulary()
        copy._counts, copy._documents = self._counts.copy(), self._documents.copy()
        copy._words = self._words
        copy._waiting = self._waiting.copy()
        return copy

    def add(self, content: ResultContent | list[MessagePart]) -> None:
        """Take in a message's parts or a result's content."""
        self._waiting.append(content)

    @property
    def counts(self) -> Counter[str]:
        """How many of the last texts hold a word, in lower case."""
        if self._waiting:
            for text in self._take_texts():
                words = frozenset(split_words(text.lower()))
                self._documents.append(words)
                self._counts.update(words)
                if len(self._documents) > WINDOW:
                    self._forget(self._spell(self._documents.popleft()))
        return self._counts

    @property
    def texts(self) -> list[frozenset[str]]:
        """The words of each of the last texts."""
        _ = self.counts
        return [self._spell(text) for text in self._documents]

    def _spell(self, text: frozenset[str] | list[int]) -> frozenset[str]:
        return frozenset(map(self._words.__getitem__, text)) if isinstance(text, list) else text

    def _take_texts(self) -> list[str]:
        """The last that fits the window of what waits, oldest first; what says nothing takes no place."""
        texts = filter(None, map(content_text, reversed(self._waiting)))
        found = list(islice(texts, WINDOW))
        self._waiting.clear()
        return found[::-1]

    def _forget(self, words: frozenset[str]) -> None:
        counts = self._counts
        for word in words:
            if counts[word] == 1:
                del counts[word]
            else:
                counts[word] -= 1


_COMMON_WORDS = """
a about above after again against all almost already also although always am among an and another any
anyone anything anyway are aren around as at away back basically be became because become been before
began behind being below best better between beyond both but by came can cannot come could couldn d
definitely did didn do does doesn doing don done down during each either else enough especially
essentially even eventually ever every everyone everything exactly far feel few finally find first for
from further gave get getting give given gives go goes going gone good got great had hadn happen has hasn
have haven having he hello help her here hers hey hi him his honestly how however i if in indeed instead
into is isn it its itself just keep kind knew know known largely last lately later least less let like
likely little ll long look looking lot m made mainly make makes making many maybe me mean meanwhile might
mine more moreover most mostly much must my myself nearly need needs neither never next no none nor
normally not nothing now of off often oh ok okay on once one only onto or other others otherwise our out
over overall own part perhaps please plus possible possibly pretty probably put quite rather re really
right s said same saw say says see seem seems seen several shall she should shouldn since so some somehow
someone something sometimes soon still such sure t take taken taking tell than thank thanks that the their
them then there these they thing things think this those though through thus time to today together told
too took toward towards tried try trying turned typically ultimately under unless until up upon us use
used using usually ve very want wanted wants was wasn way ways we well went were weren what whatever when
whenever where whether which while who whole whose why will with within without won would wouldn yes yet
you your yours
"""

_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that tell nothing of a text: those of English, as most of what is written to agents is. Of others
a session's own texts tell how common they are."""

_LAST = 1_000

TextKind: TypeAlias = Literal["input", "output", "tool_result"]


class Grains(NamedTuple):
    summary: str
    gist: str


class _Size(NamedTuple):
    """How much of each ingredient a grain takes."""

    words: int
    line: int
    edge_lines: int
    diagnostics: int


SUMMARY = _Size(words=40, line=160, edge_lines=2, diagnostics=6)
GIST = _Size(words=12, line=100, edge_lines=1, diagnostics=2)

SHORT = 240
"""Characters below which a text is its own gist."""

_DIAGNOSTIC = re.compile(
    r"\b(?:error|failed|failure|fatal|exception|traceback|panic|denied|refused|warning|not found|assert\w*"
    r"|[a-z]+error|[a-z]+exception)\b",
    re.IGNORECASE,
)


def make_grains(text: str, kind: TextKind, vocabulary: Vocabulary) -> Grains:
    """What ``text`` shrinks to at a fold; the text itself where it is short already."""
    if len(text) <= SHORT:
        return Grains(text, text)
    ranked = _rank(split_words(text), vocabulary.counts)
    summary = _compose(text, kind, ranked, SUMMARY)
    gist = _compose(text, kind, ranked, GIST)
    if len(summary) >= len(text):
        summary = text
    return Grains(summary, gist if len(gist) < len(summary) else summary)


def extract_words(text: str, vocabulary: Vocabulary, budget: int) -> str:
    """The rarest words of ``text`` in their own order, at most ``budget`` bytes in all."""
    if len(text.encode()) <= budget:
        return text
    ranked = _rank(split_words(text), vocabulary.counts)
    taken: list[tuple[int, str]] = []
    for position, word in ranked:
        size = len(word.encode()) + 1
        if size <= budget:
            taken.append((position, word))
            budget -= size
    return _in_order(taken)


def _rank(words: list[str], counts: Mapping[str, int]) -> list[tuple[int, str]]:
    """Each word once, with its place, the most telling first: rare figures and names, then rare words, and
    at last those that are in every text."""
    found: dict[str, tuple[int, int, str]] = {}
    for position, word in enumerate(words):
        key = word.lower()
        if key not in found:
            weight = _LAST if key in _COMMON else counts.get(key, 0) + _tell(word)
            found[key] = (weight, position, word)
    return [(position, word) for _, position, word in sorted(found.values())]


def _tell(word: str) -> int:
    """0 for what is surely a name or a figure, 1 for a capitalised word, 2 for the rest."""
    if not word.isalpha():
        return 2 if word.replace("-", "").isalpha() and word.islower() else 0
    if word.islower():
        return 2
    return 0 if any(letter.isupper() for letter in word[1:]) else 1


def _in_order(taken: list[tuple[int, str]]) -> str:
    return " ".join(word for _, word in sorted(taken))


def _compose(text: str, kind: TextKind, ranked: list[tuple[int, str]], size: _Size) -> str:
    pieces: list[str] = []
    lines = [line for line in (raw.strip() for raw in text.splitlines()) if line]
    if kind == "tool_result" and lines:
        edges = lines[: size.edge_lines]
        if len(lines) > 2 * size.edge_lines:
            edges.append("…")
        edges += lines[max(size.edge_lines, len(lines) - size.edge_lines) :]
        pieces += [_cut(line, size.line) for line in edges]
        inner = lines[size.edge_lines : -size.edge_lines]
        told = [line for line in inner if _DIAGNOSTIC.search(line)]
        pieces += [_cut(line, size.line) for line in told[: size.diagnostics]]
    elif lines:
        pieces.append(_cut(lines[0], size.line))
    shown = "\n".join(pieces)
    taken: list[tuple[int, str]] = []
    for position, word in ranked:
        if len(taken) == size.words:
            break
        if word not in shown:
            taken.append((position, word))
    if taken:
        pieces.append(_in_order(taken))
    return "\n".join(pieces)


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def first_bytes(text: str, size: int) -> str:
    """The beginning of ``text``, at most ``size`` bytes and whole characters."""
    return text[:size] if text.isascii() else text.encode()[: max(size, 0)].decode("utf-8", "ignore")


def last_bytes(text: str, size: int) -> str:
    """The end of ``text``, at most ``size`` bytes and whole characters."""
    if size <= 0:
        return ""
    return text[-size:] if text.isascii() else text.encode()[-size:].decode("utf-8", "ignore")


def excerpt(text: str, limit: int, vocabulary: Vocabulary) -> str:
    """About ``limit`` bytes of ``text``: its beginning, its end, and the rarest words between."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit // 2), last_bytes(text, limit // 4)
    middle = text[len(head) : len(text) - len(tail)]
    told = extract_words(middle, vocabulary, limit // 8)
    return f"{head}\n[… {len(middle)} characters left out: {told}]\n{tail}"


def make_preview(text: str, limit: int, handle: str) -> str:
    """A long result as it is sent: its beginning, its end, and where the rest is."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit * 3 // 4), last_bytes(text, limit // 4)
    left = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left} of {len(text)} characters are not shown; the whole text is {handle}]\n{tail}"
