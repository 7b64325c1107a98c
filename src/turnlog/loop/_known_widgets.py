"""Which widgets a run had: written down where a replay could not know, and found again by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnlog.contract import AgentError
from turnlog.widgets import MemoryNotebookWidget, TodoWidget, Widget, WorkspaceWidget

BUILT_IN: tuple[Widget[Any], ...] = (MemoryNotebookWidget(), TodoWidget(), WorkspaceWidget())

_ASSUMED = ("notebook", "todo")
"""What a run is taken to have had when it does not say. They show nothing but their own events, so it makes
no difference when they were not there."""


def names_to_record(widgets: Sequence[Widget[Any]]) -> list[str] | None:
    """The widgets' names, or None where leaving them out says the same."""
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
