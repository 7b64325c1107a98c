"""What comes from outside between two steps of a run and needs no answer: it is appended, and that is all."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from turnlog.contract import CompactionSummary, Custom, WidgetEvent

if TYPE_CHECKING:
    from ._doors import Doors
    from ._recorder import Recorder

Fact: TypeAlias = WidgetEvent | CompactionSummary | Custom
"""A host's change of a widget, a recap that a model wrote in the background, a note that it could not."""


def take_facts(record: Recorder, doors: Doors) -> None:
    """Stage what has come in. A replay finds these entries in the log, where whoever wrote them left them."""
    session = record.session
    for fact in doors.world.take_facts():
        match fact:
            case WidgetEvent():
                record.stage(session.append_widget_event(fact))
            case CompactionSummary():
                record.stage(session.append_compaction(fact))
            case Custom():
                record.stage(session.append_custom(fact.name, fact.data))
