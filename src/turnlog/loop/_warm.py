"""A session with its folds kept, so that a turn costs what is new."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from turnlog.context import ContextOptions, Projection
from turnlog.contract import Entry, PurgeEntry, RedactionEntry
from turnlog.history import Session, visible_entries
from turnlog.system import bulk
from turnlog.widgets import Widget, WidgetHost

from ._state import RunState


class WarmSession:
    """``catch_up`` once, then ``step`` every entry as it is staged."""

    def __init__(
        self, session: Session, options: ContextOptions | None = None, widgets: Sequence[Widget[Any]] = ()
    ) -> None:
        self.session = session
        self.state = RunState()
        self.host = WidgetHost(widgets)
        self.broken = False
        self.recap_asked_at = 0
        """Tokens of the context that a recap was last asked for."""
        self._options = options
        self._projection: Projection | None = None
        self._stepped = 0
        """Up to which entry the folds have come."""

    @property
    def projection(self) -> Projection:
        """Made when it is first asked for: a tool that is run again, or a decision, waits for no context."""
        if self._projection is None:
            entries = islice(chain(self.session.entries, self.session.staged), self._stepped)
            with bulk():
                self._projection = Projection.of(visible_entries(list(entries)), self._options)
        return self._projection

    def step(self, entry: Entry) -> None:
        self._stepped = entry.seq  # a header is staged by itself
        self.state.step(entry)
        if isinstance(entry, RedactionEntry | PurgeEntry):
            self._projection = None
            self.show(self.host.widgets)
            return
        self.host.step(entry)
        if self._projection is not None:
            self._projection.step(entry)

    def show(self, widgets: Sequence[Widget[Any]]) -> None:
        """Put these widgets on the screen, as the log so far makes them."""
        self.host = WidgetHost(widgets)
        self.host.refold(visible_entries([*self.session.entries, *self.session.staged]))

    def catch_up(self) -> None:
        """Take in what is in the log, and what is staged."""
        entries = self.session.entries
        with bulk():
            self.state.take(entries)
            if self.host.widgets:
                self.host.refold(visible_entries(entries))
        self._stepped = len(entries)
        for entry in self.session.staged:
            self.step(entry)
