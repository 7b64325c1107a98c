"""What is folded from a session beside its state: the context, and the widgets that a run has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnlog.context import ContextManager, PictureCache
from turnlog.contract import AgentError, Entry
from turnlog.history import Session, attach_images, visible_entries
from turnlog.widgets import MemoryNotebookWidget, TodoWidget, Widget, WidgetHost, WorkspaceWidget


class Folds:
    """A subscriber of its session that keeps the context and the screen, so that a turn costs what is new."""

    def __init__(
        self, session: Session, context: Callable[[], ContextManager], widgets: Sequence[Widget[Any]] = ()
    ) -> None:
        self.session = session
        self.context = context()
        self.host = WidgetHost(widgets)
        self.pictures = PictureCache(lambda message: attach_images(session.store, message))
        self.recap_asked_at = 0
        """Tokens of the context that a recap was last asked for."""
        self._take(visible_entries(session.entries))
        session.subscribe(self)

    def _take(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.context.refold(entries)
            if self.host.widgets:
                self.host.refold(entries)

    def step(self, entry: Entry) -> None:
        self.host.step(entry)
        self.context.step(entry)

    def refold(self, entries: Sequence[Entry]) -> None:
        self.context.refold(entries)
        self.host.refold(entries)

    def show(self, widgets: Sequence[Widget[Any]]) -> None:
        """Put these widgets on the screen, as the log so far makes them."""
        self.host = WidgetHost(widgets)
        self.host.refold(visible_entries([*self.session.entries, *self.session.staged]))


BUILT_IN: tuple[Widget[Any], ...] = (MemoryNotebookWidget(), TodoWidget(), WorkspaceWidget())

_ASSUMED = ("notebook", "todo")
"""The widgets that a run is taken to have had when its record names none. They show nothing but their own
events, so it makes no difference when they were not there."""


def names_to_record(widgets: Sequence[Widget[Any]]) -> list[str] | None:
    """The widgets' names, or None where leaving them out means the same."""
    names = [widget.name for widget in widgets]
    assumed = [name for name in _ASSUMED if name in names]
    ours = all(type(widget).__module__.startswith("turnlog.widgets.") for widget in widgets)
    return None if names == assumed and ours else names


def find_widgets(
    names: Sequence[str] | None, more: Sequence[Widget[Any]] = (), *, all_of_them: bool = True
) -> tuple[Widget[Any], ...]:
    """The widgets of these names, from ``more`` or our own.

    Raises ``ConfigInvalid`` for one that is in neither, unless ``all_of_them`` is False.
    """
    known = {widget.name: widget for widget in (*BUILT_IN, *more)}
    wanted = _ASSUMED if names is None else names
    missing = [name for name in wanted if name not in known]
    if missing and all_of_them:
        raise AgentError(
            "ConfigInvalid",
            f"the session was recorded with the widget {', '.join(map(repr, missing))}, which is not known "
            "here; replay it from Python and pass widgets=[…]",
        )
    return tuple(known[name] for name in wanted if name in known)
