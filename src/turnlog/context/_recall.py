"""The whole text of what was folded, by the number the model was given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turnlog.contract import (
    AgentError,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    Entry,
    ModelCallFailedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)

from ._render import input_text, parts_text

_NUMBER = re.compile(r"#?(\d+)(?:-(\d+))?")


def recall_text(entries: Sequence[Entry], entry_id: str, *, offset: int = 0, limit: int | None = None) -> str:
    """The text of one entry, by id or by number (``#12``, or ``#3-9`` for a stretch); ``entries`` are the
    visible ones.

    ``offset`` and ``limit`` count characters; a text that goes on says so. Raises ``ContextInvalidInput``
    when there is no such entry or it says nothing.
    """
    texts = [
        text if len(found) == 1 else f"#{entry.seq} {text}"
        for found in [_find(entries, entry_id)]
        for entry in found
        if (text := _text(entry)) is not None
    ]
    if not texts:
        raise AgentError(
            "ContextInvalidInput",
            f"{entry_id!r} names no message of this session; give the number after # in the shortened text",
        )
    whole = "\n\n".join(texts)
    shown = whole[offset:] if limit is None else whole[offset : offset + limit]
    left = len(whole) - offset - len(shown)
    if left > 0:
        shown += f"\n[… {left} more characters; recall {entry_id} from {offset + len(shown)}]"
    return shown


def _find(entries: Sequence[Entry], name: str) -> list[Entry]:
    number = _NUMBER.fullmatch(name.strip())
    by_id = [entry for entry in entries if entry.id == name]
    if by_id or number is None:
        return by_id
    first, last = int(number.group(1)), int(number.group(2) or number.group(1))
    return [entry for entry in entries if first <= entry.seq <= last]


def _text(entry: Entry) -> str | None:
    match entry:
        case ModelInputEntry():
            sections = entry.payload.sections
            return input_text(entry.payload.message, sections.live if sections else ())
        case ModelOutputEntry() | ToolResultsEntry():
            return parts_text(entry.payload.message.parts)
        case ModelCallFailedEntry():
            return entry.payload.partial
        case BranchSummaryEntry() | CompactionSummaryEntry():
            return entry.payload.summary
        case _:
            return None
