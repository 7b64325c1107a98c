"""What a widget is: a pure reducer over entries, a view, and tools that answer with events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, overload

from turnlog.contract import Entry, JsonObject, ToolSpec, WidgetEvent

S = TypeVar("S")


class EntryView(Sequence[Entry]):
    """The entries so far, read-only; stays as it is while the log grows."""

    __slots__ = ("_count", "_entries")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries, self._count = entries, len(entries)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        places = range(self._count)[index]
        if isinstance(places, range):
            return tuple(self._entries[place] for place in places)
        return self._entries[places]


@dataclass(frozen=True, slots=True)
class RenderContext(Generic[S]):
    """Read-only: this widget's state, the states of the others by name, the visible history so far, and
    whether a run is open. A state is cheaper than a walk through a long history. A widget whose state can be
    saved has no history here: its view follows from the states."""

    state: S
    others: Mapping[str, Any]
    entries: Sequence[Entry] = ()
    running: bool = False


@dataclass(frozen=True, slots=True)
class WidgetToolContext(Generic[S]):
    """What a widget's tool works with. It changes nothing: it answers with events."""

    state: S
    arguments: JsonObject
    tool_call_id: str
    others: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WidgetAnswer:
    """What the model is told, and the events that change the state once they are in the log."""

    text: str
    events: Sequence[WidgetEvent] = field(default_factory=tuple[WidgetEvent, ...])
    is_error: bool = False


class Widget(ABC, Generic[S]):
    """State that is a fold over entries: replay rebuilds it, forks fork it, folds do not touch it.

    ``reduce`` must not change the state it is given: it returns the next one. Nothing here may look at a
    clock, the environment or anything but its arguments.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    @property
    def version(self) -> str:
        """Another one whenever the same entries lead to another state: what was saved is not loaded then."""
        return "1"

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Offered to the model like any other tool."""
        return ()

    @abstractmethod
    def initial(self) -> S: ...

    @abstractmethod
    def reduce(self, state: S, entry: Entry) -> S: ...

    @abstractmethod
    def render_live_screen(self, ctx: RenderContext[S]) -> dict[str, str] | None:
        """Markdown by section, or None when there is nothing to show."""

    def execute_tool(self, name: str, ctx: WidgetToolContext[S]) -> WidgetAnswer:
        return WidgetAnswer(f"{self.name} has no tool {name!r}", is_error=True)

    def save_state(self, state: S) -> Any:
        """The state in plain values (as JSON has them), so that a long session opens without its whole log.
        Together with ``load_state``, or not at all: then every session with this widget is read whole."""
        raise NotImplementedError

    def load_state(self, data: Any) -> S:
        """The state that ``save_state`` made this of. May raise anything: the log is read then."""
        raise NotImplementedError

    def event(self, event: str, data: JsonObject, tool_call_id: str | None = None) -> WidgetEvent:
        """An event of this widget, for a tool's answer or for the host to append."""
        return WidgetEvent(widget=self.name, event=event, data=data, tool_call_id=tool_call_id)


def spec(name: str, description: str, properties: JsonObject, required: Sequence[str]) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameter_schema={
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    )
