"""A ranked search over the texts of a log: pure, from the entries alone, in the same order everywhere;
and the whole text of what was folded, by the number the model was given."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from turnlog.contract import (
    RECALL,
    AgentError,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    Entry,
    ModelCallFailedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallPart,
    ToolResultsEntry,
)

from ._digest import cap_words
from ._render import content_text, input_text, parts_text

_NUMBER = re.compile(r"#?(\d+)(?:-(\d+))?")


def recall_text(entries: Sequence[Entry], entry_id: str, *, offset: int = 0, limit: int | None = None) -> str:
    """The text of one entry, by id or by number (``#12``, or ``#3-9`` for a stretch); ``entries`` are the
    visible ones.

    ``offset`` and ``limit`` count characters; a longer text ends with a note. Raises
    ``ContextInvalidInput`` when there is no such entry or it has no text.
    """
    texts = [
        text if len(found) == 1 else f"#{entry.seq} {text}"
        for found in [_find(entries, entry_id)]
        for entry in found
        if (text := _text(entry)) is not None
    ]
    if not texts:
        raise AgentError(
            "ContextInvalidInput",
            f"{entry_id!r} names no message of this session; give the number after # in the shortened text",
        )
    whole = "\n\n".join(texts)
    shown = whole[offset:] if limit is None else whole[offset : offset + limit]
    left = len(whole) - offset - len(shown)
    if left > 0:
        shown += f"\n[… {left} more characters; recall {entry_id} from {offset + len(shown)}]"
    return shown


def _find(entries: Sequence[Entry], name: str) -> list[Entry]:
    number = _NUMBER.fullmatch(name.strip())
    by_id = [entry for entry in entries if entry.id == name]
    if by_id or number is None:
        return by_id
    first, last = int(number.group(1)), int(number.group(2) or number.group(1))
    return [entry for entry in entries if first <= entry.seq <= last]


def _text(entry: Entry) -> str | None:
    match entry:
        case ModelInputEntry():
            sections = entry.payload.sections
            return input_text(entry.payload.message, sections.live if sections else ())
        case ModelOutputEntry() | ToolResultsEntry():
            return parts_text(entry.payload.message.parts)
        case ModelCallFailedEntry():
            return entry.payload.partial
        case BranchSummaryEntry() | CompactionSummaryEntry():
            return entry.payload.summary
        case _:
            return None


_K1, _B = 1.2, 0.75
"""The usual constants of BM25: how soon a repeated word stops to count, and how much length does."""

_DIGITS = 6
"""Scores are compared up to here, so that no machine's last bit decides an order."""

_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_TERM = re.compile(rf"{_WIDE.pattern}+|(?:(?!{_WIDE.pattern})[^\W_])+")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are at be by can did do does for from had has have how i in is it me my of on or our said "
        "say that the there they this to us was we were what when where which who whom whose why will with "
        "you your",
    )
)
"""Words that a question is made of and an answer is not found by."""

_ENDINGS = ("ings", "ing", "ies", "ed", "es", "s")


class Found(NamedTuple):
    """One text of the log."""

    entry: Entry
    kind: str
    text: str


def recall_search(
    entries: Sequence[Entry], query: str, *, limit: int = 5, size: int = 8_000, skip: Collection[str] = ()
) -> str:
    """The texts that match ``query`` best, the best first, in at most about ``size`` bytes.

    ``entries`` are the visible ones; those that ``skip`` names are in view anyway and not searched. What was
    itself recalled is not found again. Raises ``ContextInvalidInput`` when nothing matches.
    """
    texts = [found for found in searchable(entries) if found.entry.id not in skip]
    ranked = rank_texts([found.text for found in texts], query)
    if not ranked:
        raise AgentError(
            "ContextInvalidInput",
            f"nothing earlier in this session matches {query!r}; search with other words, or with fewer",
        )
    shown = [texts[position] for position in ranked[:limit]]
    room = max(size // len(shown) - 40, 80)
    terms = set(_asked(query))
    lines = [f"#{found.entry.seq} {found.kind}: {_passage(found, terms, room)}" for found in shown]
    more = len(ranked) - len(shown)
    note = f"[{more} more match; search with other words for those]" if more else ""
    return "\n\n".join([*lines, *([note] if note else [])])


def searchable(entries: Iterable[Entry]) -> Iterable[Found]:
    """Every text of a log that a model may want back, with whose it is."""
    for entry in entries:
        match entry:
            case ModelInputEntry():
                sections = entry.payload.sections
                kind = "host" if entry.payload.source == "host" else "user"
                yield Found(entry, kind, input_text(entry.payload.message, sections.live if sections else ()))
            case ModelOutputEntry():
                parts = [
                    part
                    for part in entry.payload.message.parts
                    if not (isinstance(part, ToolCallPart) and part.payload.tool_name == RECALL)
                ]
                yield Found(entry, "assistant", parts_text(parts))
            case ToolResultsEntry():
                names = {outcome.tool_call_id: outcome.tool_name for outcome in entry.payload.outcomes}
                for part in entry.payload.message.tool_results:
                    name = names.get(part.payload.tool_call_id, "")
                    if name != RECALL:
                        yield Found(entry, f"tool {name}".strip(), content_text(part.payload.content))
            case ModelCallFailedEntry():
                yield Found(entry, "assistant", entry.payload.partial or "")
            case BranchSummaryEntry() | CompactionSummaryEntry():
                yield Found(entry, "summary", entry.payload.summary or "")
            case _:
                pass


def rank_texts(texts: Sequence[str], query: str) -> list[int]:
    """The positions of the texts that hold a word of ``query``, by BM25; of equals, the newest first."""
    terms = _asked(query)
    documents = [Counter(split_terms(text)) for text in texts]
    lengths = [document.total() for document in documents]
    mean = sum(lengths) / max(len(lengths), 1) or 1
    weights = _weights(terms, documents)
    scores: list[tuple[float, int]] = []
    for position, document in enumerate(documents):
        length = _K1 * (1 - _B + _B * lengths[position] / mean)
        score = sum(
            weights[term] * document[term] * (_K1 + 1) / (document[term] + length)
            for term in terms
            if document[term]
        )
        if score > 0:
            scores.append((-round(score, _DIGITS), -position))
    return [-position for _, position in sorted(scores)]


def _asked(query: str) -> list[str]:
    """The words to look for, each once; all of them where a question has no others."""
    telling = [word for word in _TERM.findall(query.lower()) if word not in _COMMON]
    return sorted(set(split_terms(" ".join(telling) or query)))


def _weights(terms: Iterable[str], documents: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """How telling a word is: the rarer, the more."""
    count = len(documents)
    held = {term: sum(term in document for document in documents) for term in terms}
    return {term: math.log(1 + (count - found + 0.5) / (found + 0.5)) for term, found in held.items()}


def split_terms(text: str) -> list[str]:
    """The words of a text as they are compared: lower case, without the commonest endings; of a script
    without spaces, each pair of characters."""
    terms: list[str] = []
    for run in _TERM.findall(text.lower()):
        if _WIDE.match(run):
            terms += [run[at : at + 2] for at in range(max(len(run) - 1, 1))]
        else:
            terms.append(_stem(run))
    return terms


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _passage(found: Found, terms: set[str], room: int) -> str:
    """The whole text where it fits, else the part of it that holds most of the words asked for."""
    text = found.text
    if len(text.encode()) <= room:
        return text
    wide = max(room * len(text) // len(text.encode()), 1)  # as many characters as fit
    places = [
        (match.start(), hits)
        for match in _TERM.finditer(text)
        if (hits := terms & set(split_terms(match[0])))
    ]
    best = max(
        range(len(places)),
        key=lambda at: (
            len(
                set[str]().union(*(hits for start, hits in places if 0 <= start - places[at][0] < wide // 2))
            ),
            -at,
        ),
        default=None,
    )
    if best is None:
        return cap_words(text, room, found.entry.seq)
    begin = max(min(places[best][0] - wide // 4, len(text) - wide), 0)
    piece = text[begin : begin + wide]
    before, after = ("…" if begin else ""), ("…" if begin + wide < len(text) else "")
    return f"{before}{piece}{after} [recall #{found.entry.seq} brings the whole text]"
