"""The output items of an answer, as they grow, made into chunks."""

from __future__ import annotations

from typing import Any

from turnlog.contract import AgentError, JsonObject, encode, parse_arguments

from .._answer import AnswerWriter, PartKind, as_list, as_object, as_text
from ..wire import ToolNames
from ._items import (
    FAMILY,
    Event,
    Item,
    ItemKind,
    Section,
    call_data,
    hollow,
    joined,
    kind_of,
    renumber,
    texts_of,
)


class Output:
    """Finds the item that an event is about, and says what is new of it through ``writer``.

    ``origin`` marks what goes back as this very server's and model's, over this very wire. With ``stored``
    the provider knows its items by their ids alone.
    """

    def __init__(self, writer: AnswerWriter, names: ToolNames, origin: JsonObject, stored: bool) -> None:
        self.writer = writer
        self.intact = True
        """Every event so far had its number, and none was missing."""
        self._names = names
        self._origin = origin
        self._stored = stored
        self._all: list[Item] = []
        self._at: dict[int, Item] = {}
        self._ids: dict[str, Item] = {}
        self._keeps = False  # something of this answer may go back verbatim, so ids and places matter
        self._lossy = False  # a thought cannot go back, so nothing that followed it may
        self.speaking: Section | None = None
        self.refused = False

    # ── which item ──

    def section_of(self, event: Event) -> Section | None:
        """Where more of a message's text belongs, when that is known already."""
        at = event.output_index
        item = self._at.get(at) if type(at) is int else self._ids.get(as_text(event.item_id))
        return None if item is None else item.sections.get(("content", _index(event)))

    def _find(self, event: Event, kind: ItemKind) -> Item:
        """The item an event is about; servers leave out indexes, or change ids from event to event."""
        at, given = event.output_index, as_text(event.item_id)
        item = self._ids.get(given)
        if item is None and type(at) is int:
            item = self._at.get(at)
        if item is not None and item.kind == kind:
            return item
        if item is not None or type(at) is not int:
            for other in reversed(self._all):
                if other.kind == kind and not other.done:
                    return other
        return self._add(kind, at, {"id": given} if given else {})

    def _add(self, kind: ItemKind, at: Any, raw: JsonObject) -> Item:
        item = Item(kind, at if type(at) is int else len(self._all), raw)
        self._all.append(item)
        self._at[item.at] = item
        if item.id:
            self._ids[item.id] = item
        self._keeps = self._keeps or kind in ("reasoning", "opaque")
        return item

    def _match(self, at: Any, raw: JsonObject, kind: ItemKind) -> Item | None:
        """The item that ``raw`` is a later state of."""
        for item in (self._ids.get(as_text(raw.get("id"))), self._at.get(at) if type(at) is int else None):
            if item is not None and item.kind == kind and item.same_call(raw):
                return item
        return None

    # ── events of items ──

    def begin(self, event: Event) -> None:
        raw = as_object(event.item)
        kind = kind_of(raw)
        item = self._match(event.output_index, raw, kind)
        if item is None or (item.done and item.id != raw.get("id")):
            item = self._add(kind, event.output_index, raw)
        elif "type" not in item.raw:  # its deltas came first
            item.raw = raw
        if kind == "call":
            self._begin_call(item)

    def end(self, at: Any, raw: JsonObject) -> None:
        kind = kind_of(raw)
        item = self._match(at, raw, kind)
        if item is None or (item.done and item.id != raw.get("id")):
            item = self._add(kind, at, raw)
        self._settle(item, raw)

    def _settle(self, item: Item, raw: JsonObject) -> None:
        """``raw`` is the item's last state."""
        if item.done:
            return
        item.done = True
        item.raw = {**item.raw, **raw} if item.kind == "call" else raw
        match item.kind:
            case "message":
                renumber(item, raw)
                for name, index, text, part in texts_of(raw):
                    section = self._section(item, name, index, "text")
                    section.refusal = section.refusal or part.get("type") == "refusal"
                    self.complete(section, text)
                    self._end_text(section, part)
            case "reasoning":
                renumber(item, raw)
                for name, index, text, _ in texts_of(raw):
                    self.complete(self._section(item, name, index, "thinking"), text)
                self._end_thought(item)
            case "call":
                self._end_call(item)
            case "opaque":
                self._turn_away(None)
                self.writer.begin("text")
                self.writer.say("text", "", {**self._mark(), "at": item.at, "item": raw})

    def _mark(self) -> JsonObject:
        return {"origin": FAMILY} if self._lossy else self._origin

    # ── text and thoughts ──

    def hear(self, event: Event, kind: ItemKind, part: PartKind, name: str) -> Section | None:
        """The section that an event with text is about; None when it is over."""
        item = self._find(event, kind)
        if item.done:
            return None
        key = (name, _index(event))
        if key not in item.sections:
            # Only a part that was announced, or that follows one which is over, is another one: some servers
            # count up with every delta.
            last = next((one for at, one in reversed(item.sections.items()) if at[0] == name), None)
            if last is not None and not last.over and key not in item.announced:
                item.sections[key] = last
        return self._section(item, *key, part)

    def announce(self, event: Event, name: str) -> None:
        """A part of an item begins under a number of its own."""
        at = event.output_index
        item = self._ids.get(as_text(event.item_id)) or (self._at.get(at) if type(at) is int else None)
        if item is not None:
            item.announced.add((name, _index(event)))

    def speak(self, section: Section, text: str) -> None:
        if not text or section.over:  # what comes after a whole text is late
            return
        if self.speaking is not section:
            self._turn_away(section.item)
            self.writer.begin(section.kind)
            self.speaking = section
        if section.refusal:
            self.refused = True
        section.pieces.append(text)
        self.writer.say(section.kind, text)

    def end_part(self, event: Event) -> None:
        part = as_object(event.part)
        section = self.section_of(event)
        if section is not None and section.kind == "text" and not section.item.done:
            self.complete(section, part.get("text") or part.get("refusal"))
            self._end_text(section, part)

    def _section(self, item: Item, name: str, index: int, kind: PartKind) -> Section:
        section = item.sections.get((name, index))
        if section is None:
            section = item.sections[name, index] = Section(item, kind)
        return section

    def _turn_away(self, to: Item | None) -> None:
        """Something else is said from here on."""
        if self.speaking is not None and self.speaking.item is not to:
            self.speaking.item.parted = True
        self.speaking = None

    def complete(self, section: Section, whole: Any) -> None:
        """Say what is missing of a text that is known whole now."""
        if not isinstance(whole, str):
            return
        said = section.text
        if whole.startswith(said):
            self.speak(section, whole[len(said) :])
            section.over = True
        elif not self.intact and not said.startswith(whole) and said.strip() != whole.strip():
            raise protocol("text that is not what its pieces make together: some were lost or came twice")

    def _end_text(self, section: Section, part: JsonObject) -> None:
        if self.speaking is not section:
            return
        item = section.item
        data: JsonObject = {"origin": FAMILY}
        if phase := item.raw.get("phase"):
            data["phase"] = phase
        if section.refusal:
            data["refusal"] = True
        if annotations := as_list(part.get("annotations")):
            data["annotations"] = annotations
        if self._keeps and not self._lossy and item.id:
            data.update({"id": item.id, "at": item.at})
        if len(data) > 1:
            self.writer.say("text", "", data)
            self.speaking = None

    def _end_thought(self, item: Item) -> None:
        """Keep what has to go back: encrypted, in the open, or known to the provider by its id."""
        raw = item.raw
        in_the_open = any(name == "content" and text for name, _, text, _ in texts_of(raw))
        if not (raw.get("encrypted_content") or in_the_open or self._stored):
            self._lossy = True
            return
        shown = [section.text for section in dict.fromkeys(item.sections.values()) if section.pieces]
        in_place = self.speaking is not None and self.speaking.item is item and not item.parted
        if not in_place:
            self._turn_away(item)
            self.writer.begin("thinking")
        kept = hollow(raw, shown) if in_place else raw
        self.writer.say("thinking", "", {**self._mark(), "at": item.at, "item": kept})
        self.speaking = None

    # ── calls ──

    def _begin_call(self, item: Item) -> bool:
        """Start the call as soon as its name and id are known."""
        raw = item.raw
        name = as_text(raw.get("name"))
        if item.call is not None or not name or not (raw.get("call_id") or item.done):
            return item.call is not None
        self._turn_away(None)
        self.writer.begin()
        item.told = call_data(item)
        item.call = self.writer.begin_call(self._names.ours(name), item.told)
        self.writer.add_args(item.call, "".join(item.open))
        return True

    def add_args(self, event: Event) -> None:
        item = self._find(event, "call")
        if item.done or item.args_done:
            return
        if item.call is None:
            item.open.append(as_text(event.delta))
        else:
            self.writer.add_args(item.call, as_text(event.delta))

    def end_args(self, event: Event) -> None:
        item = self._find(event, "call")
        if not item.done and isinstance(event.arguments, str):
            item.args_done = True
            item.raw = {**item.raw, "arguments": event.arguments}
            if item.call is not None:
                self._complete_args(item)

    def _complete_args(self, item: Item) -> None:
        call, whole = item.call, item.raw.get("arguments")
        assert call is not None
        if isinstance(whole, dict):
            whole = encode(as_object(whole)).decode()
        said = joined(call.args)
        if not isinstance(whole, str) or not whole or whole == said:
            return
        if whole.startswith(said):
            self.writer.add_args(call, whole[len(said) :])
            return
        meant = parse_arguments(whole).arguments
        if meant is None or meant != parse_arguments(said).arguments:
            raise protocol(f"arguments of {call.name!r} that are not what their pieces make together")

    def _end_call(self, item: Item) -> None:
        if not self._begin_call(item):
            raise protocol(f"a call ({item.raw.get('call_id') or 'without id'}) of no tool")
        call = item.call
        assert call is not None
        self._complete_args(item)
        data = call_data(item)
        call.end_data = None if data == item.told else data
        if item.raw.get("status") != "incomplete":
            self.writer.end_call(call)

    # ── the end ──

    def reconcile(self, output: list[Any]) -> None:
        """Take from the finished answer what the stream left out."""
        left = dict.fromkeys(self._all)
        missing: list[tuple[int, JsonObject]] = []
        for at, found in enumerate(output):
            raw = as_object(found)
            kind = kind_of(raw)
            item = self._match(at, raw, kind)
            if item is None or item not in left:
                item = next((one for one in left if one.kind == kind and one.same_call(raw)), None)
            if item is None:
                missing.append((at, raw))
                continue
            del left[item]
            self._settle(item, raw)
        for at, raw in missing:
            self._settle(self._add(kind_of(raw), at, raw), raw)
        for item in left:
            if item.kind == "call" and item.args_done:
                self._settle(item, item.raw)

    def refuse_cut_calls(self, reason: str, said: str) -> None:
        """Raise for a call that is not complete in an answer that claims to be.

        In one that was cut it has no end either, so that the base refuses it.
        """
        for item in self._all:
            if item.kind != "call" or (item.done and item.raw.get("status") != "incomplete"):
                continue
            if item.call is None or reason in ("stop", "other"):
                name = item.call.name if item.call else as_text(item.raw.get("name"))
                raise protocol(f"the end of an answer ({said}) whose call of {name!r} is not complete")


def protocol(found: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the Responses stream holds {found}")


def _index(event: Event) -> int:
    for found in (event.content_index, event.summary_index):
        if type(found) is int:
            return found
    return 0
