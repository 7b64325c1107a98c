"""Events of a Responses stream, output items while they stream, and what of them has to go back."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from turnlog.contract import JsonObject

from .._answer import LooseDecoder, OpenCall, PartKind, as_list, as_object, as_text
from .._stream import is_unicode


class Event(msgspec.Struct):
    """All kinds in one. Only ``type`` is sure to be what the protocol says; ``response`` is read when needed:
    it repeats instructions and tools, and comes three times."""

    type: str = ""
    sequence_number: Any = None
    output_index: Any = None
    item_id: Any = None
    content_index: Any = None
    summary_index: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    part: Any = None
    item: Any = None
    response: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    object: Any = None
    output: Any = None
    message: Any = None
    detail: Any = None


read_event = LooseDecoder(Event, "the Responses API")
"""One event, or a whole answer that was not streamed; ``ModelProtocolError`` for what is neither."""


def read_json(data: bytes) -> JsonObject:
    """A JSON object with all its fields; empty for any other value, and for nothing."""
    return as_object(read_event.plain(data)) if data else {}


FAMILY = "openai-responses"
"""The family that reads back what this adapter puts into ``providerData``."""

ItemKind: TypeAlias = Literal["message", "reasoning", "call", "opaque"]

KINDS: dict[str, ItemKind] = {"message": "message", "reasoning": "reasoning", "function_call": "call"}
"""Items that have a part of ours; all others travel verbatim."""

_KNOWN_CALL = frozenset({"type", "id", "call_id", "name", "arguments", "status"})


class Section:
    """A run of text inside an item: one content part, or one part of a summary."""

    def __init__(self, item: Item, kind: PartKind) -> None:
        self.item = item
        self.kind: PartKind = kind
        self.pieces: list[str] = []
        self.refusal = False
        self.over = False

    @property
    def text(self) -> str:
        return joined(self.pieces)


class Item:
    """One output item, from its first event to its last."""

    def __init__(self, kind: ItemKind, at: int, raw: JsonObject) -> None:
        self.kind: ItemKind = kind
        self.at = at
        self.raw = raw
        self.sections: dict[tuple[str, int], Section] = {}
        self.announced: set[tuple[str, int]] = set()
        self.call: OpenCall | None = None
        self.open: list[str] = []
        """Arguments that came before the call's name."""
        self.told: JsonObject | None = None
        """What the call's start said of it."""
        self.args_done = False
        self.parted = False
        """Something else was said before this item was done."""
        self.done = False

    @property
    def id(self) -> str:
        return as_text(self.raw.get("id"))

    def same_call(self, raw: JsonObject) -> bool:
        ours, theirs = self.raw.get("call_id"), raw.get("call_id")
        return self.kind != "call" or not ours or not theirs or ours == theirs


def joined(pieces: list[str]) -> str:
    """Pieces of a text, with the characters whole that were cut in two."""
    text = "".join(pieces)
    if text.isascii() or is_unicode(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def kind_of(raw: JsonObject) -> ItemKind:
    return KINDS.get(as_text(raw.get("type")), "opaque")


def call_data(item: Item) -> JsonObject:
    """What a call carries back, besides its name and arguments."""
    raw = item.raw
    data: JsonObject = {"origin": FAMILY}
    if call_id := as_text(raw.get("call_id")) or item.id:
        data["id"] = call_id
    if item.id:
        data["item_id"] = item.id
    data["at"] = item.at
    further = {key: value for key, value in raw.items() if key not in _KNOWN_CALL and value is not None}
    return {**data, "fields": further} if further else data


# ── thoughts: the text lies in the parts, the rest in their data ──


def texts_of(raw: JsonObject) -> list[tuple[str, int, str, JsonObject]]:
    """(field, index, text, the part itself) of all that an item says."""
    found: list[tuple[str, int, str, JsonObject]] = []
    for name in ("summary", "content"):
        for index, part in enumerate(as_list(raw.get(name))):
            known = as_object(part)
            text = known.get("text") if "text" in known else known.get("refusal")
            if isinstance(text, str):
                found.append((name, index, text, known))
    return found


def renumber(item: Item, raw: JsonObject) -> None:
    """Put what was said of ``item`` where its last state has it: servers number parts as they like.

    The first section goes to the first text and so on; what is left over joins the last one.
    """
    places = [(name, index) for name, index, _, _ in texts_of(raw)]
    if all(place in places for place, section in item.sections.items() if section.pieces):
        return
    for field in ("summary", "content"):
        wanted = [place for place in places if place[0] == field]
        said = list(dict.fromkeys(one for at, one in item.sections.items() if at[0] == field and one.pieces))
        if not wanted or not said:
            continue
        for place in [place for place in item.sections if place[0] == field]:
            del item.sections[place]
        for spare in said[len(wanted) :]:
            said[len(wanted) - 1].pieces += spare.pieces
        item.sections.update(zip(wanted, said, strict=False))


def hollow(raw: JsonObject, shown: list[str]) -> JsonObject:
    """``raw`` without its texts, where they are exactly what was shown; else as it is."""
    texts = [text for _, _, text, _ in texts_of(raw)]
    if not texts or texts != shown or not all(texts):
        return raw
    return {
        name: [_without_text(part) for part in as_list(value)] if name in ("summary", "content") else value
        for name, value in raw.items()
    }


def _without_text(part: Any) -> Any:
    known = as_object(part)
    return {**known, "text": None} if isinstance(known.get("text"), str) else part


def filled(item: JsonObject, texts: list[str]) -> JsonObject | None:
    """A hollow item with the last of ``texts`` put back; None when there are too few."""
    holes = sum(
        1
        for name in ("summary", "content")
        for part in as_list(item.get(name))
        if as_object(part).get("text", "") is None
    )
    if not holes:
        return item
    if holes > len(texts):
        return None
    rest = iter(texts[-holes:])
    return {
        name: [_with_text(part, rest) for part in as_list(value)] if name in ("summary", "content") else value
        for name, value in item.items()
    }


def _with_text(part: Any, rest: Any) -> Any:
    known = as_object(part)
    return {**known, "text": next(rest)} if known.get("text", "") is None else part
