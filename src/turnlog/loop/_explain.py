"""What a model saw, from the entries of a store."""

from __future__ import annotations

from collections.abc import Sequence

from turnlog import context
from turnlog.context import ContextOptions, ContextView
from turnlog.contract import Entry
from turnlog.history import visible_entries


def explain(
    entries: Sequence[Entry], call_index: int = -1, *, options: ContextOptions | None = None
) -> ContextView:
    """What the model saw at the ``call_index``-th call of the log, from 1; -1 is the last.

    What was redacted since is not shown again. Raises ``ContextInvalidInput`` when there is no such call.
    """
    return context.explain(visible_entries(entries), call_index, options=options)
