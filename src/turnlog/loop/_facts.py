"""What comes from outside between two steps of a run and needs no answer: it is appended, and that is all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from turnlog.contract import CompactionSummary, Custom, Entry, WidgetEvent
from turnlog.history import Session

if TYPE_CHECKING:
    from ._doors import Doors
    from ._recorder import Recorder

Fact: TypeAlias = WidgetEvent | CompactionSummary | Custom
"""A host's change of a widget, a recap that a model wrote in the background, a note that it could not."""


def take_facts(record: Recorder, doors: Doors) -> None:
    """Stage what has come in. A replay finds these entries in the log, where whoever wrote them left them."""
    for fact in doors.world.take_facts():
        record.stage(append_fact(record.session, fact))


def append_fact(session: Session, fact: Fact) -> Entry:
    match fact:
        case WidgetEvent():
            return session.append_widget_event(fact)
        case CompactionSummary():
            return session.append_compaction(fact)
        case Custom():
            return session.append_custom(fact.name, fact.data)
