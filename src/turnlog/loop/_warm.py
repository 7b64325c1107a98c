"""A session with its folds kept, so that a turn costs what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from turnlog.context import Projection
from turnlog.contract import Entry
from turnlog.history import Session
from turnlog.system import bulk
from turnlog.widgets import Widget, WidgetHost

from ._state import RunState, newest_run


@dataclass(slots=True)
class WarmSession:
    session: Session
    state: RunState
    projection: Projection
    host: WidgetHost
    broken: bool = False
    recap_asked_at: int = 0
    """Tokens of the context that a recap was last asked for."""

    def step(self, entry: Entry) -> None:
        self.state.step(entry)
        self.projection.step(entry)
        self.host.step(entry)

    def show(self, widgets: Sequence[Widget[Any]]) -> None:
        """Put these widgets on the screen, as the log so far makes them."""
        self.host = WidgetHost(widgets)
        for entry in (*self.session.entries, *self.session.staged):
            self.host.step(entry)

    def catch_up(self, known: int = 0) -> None:
        """Take in what is in the log after the first ``known`` entries, and what is staged."""
        entries = self.session.entries[known:]
        newest = newest_run(entries)
        projection, widgets = self.projection.step, self.host.step if self.host.widgets else None
        with bulk():  # one walk for all of them: a long log does not fit a processor's cache
            for state, part in (
                (self.state.pass_over, islice(entries, newest)),
                (self.state.step, islice(entries, newest, None)),
            ):
                for entry in part:
                    state(entry)
                    projection(entry)
                    if widgets is not None:
                        widgets(entry)
        for entry in self.session.staged:
            self.step(entry)
