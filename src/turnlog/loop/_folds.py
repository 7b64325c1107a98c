"""What is folded from a session beside its state: the context and the widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnlog.context import ContextManager, PictureCache
from turnlog.contract import Entry
from turnlog.history import Session, attach_images, visible_entries
from turnlog.system import bulk
from turnlog.widgets import Widget, WidgetHost


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
                with bulk():
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
