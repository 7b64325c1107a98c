"""What a running tool may write to the log itself, and the undoing of what file tools wrote to disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.contract import (
    FILE_CHANGED,
    AgentError,
    Custom,
    CustomEntry,
    Entry,
    JsonObject,
    Runtime,
    Secrets,
    Store,
    WidgetEvent,
    WidgetEventEntry,
    digest,
)
from turnlog.history import visible_entries
from turnlog.widgets import WorkspaceWidget

from ._folds import SessionShare
from ._ports import Fact

_BLOB = "blob:"
_RESTORED = "files_restored"


class SessionJournal:
    """The ``Journal`` of one call: facts are custom entries, so a replay takes them as they were written."""

    def __init__(self, share: SessionShare, secrets: Secrets) -> None:
        self._share = share
        self._secrets = secrets

    async def keep(self, data: bytes) -> str | None:
        if self._secrets.may_be_in(data):
            return None
        return _BLOB + await self._share.store.put_blob(data)

    async def record(self, name: str, data: JsonObject) -> None:
        session = self._share.folds.session
        session.append_custom(name, data)
        await session.commit()

    async def facts(self) -> list[tuple[str, JsonObject]]:
        session = self._share.folds.session
        found: list[tuple[str, JsonObject]] = []
        for entry in visible_entries([*await session.all_entries(), *session.staged]):
            if entry.purged_digest is not None:
                continue
            if isinstance(entry, CustomEntry):
                found.append((entry.payload.name, entry.payload.data))
            elif isinstance(entry, WidgetEventEntry):
                event = entry.payload
                found.append((f"{event.widget}.{event.event}", event.data))
        return found


# ── undoing ──


@dataclass(frozen=True, kw_only=True)
class Undone:
    """What was undone: files that hold again what they held before the turn, and files that the turn had made
    and that are gone."""

    run_id: str
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def facts(self) -> list[Fact]:
        """For the log; a model with a ``WorkspaceWidget`` sees them on its screen."""
        events = [(path, "restored by the user") for path in self.restored]
        events += [(path, "removed by the user") for path in self.removed]
        data: JsonObject = {
            "run": self.run_id,
            "restored": list(self.restored),
            "removed": list(self.removed),
        }
        return [
            Custom(name=_RESTORED, data=data),
            *(
                WidgetEvent(
                    widget=WorkspaceWidget.name, event="touched", data={"path": path, "action": action}
                )
                for path, action in events
            ),
        ]


async def undo_turn(entries: Sequence[Entry], store: Store, runtime: Runtime) -> Undone | None:
    """Put the files of the newest turn that changed some, and was not undone, back to what they were before
    it. None when there is no such turn. All of them, or none: raises ``RuntimeExecutionError`` when one was
    changed by something else since, or its old content was not kept."""
    found = _newest_changes(entries)
    if found is None:
        return None
    run_id, changes = found
    problems: list[str] = []
    before: dict[str, bytes | None] = {}
    for path, steps in changes.items():
        known = {each for step in steps for each in (step["before"], step["after"])}
        now = await runtime.read(path) if await runtime.stat(path) is not None else None
        kept: str | None = steps[0].get("kept")
        if (None if now is None else digest(now)) not in known:
            problems.append(f"{path!r} was changed since by something else")
        elif steps[0]["before"] is not None and kept is None:
            problems.append(f"what {path!r} held before was not kept, because it holds a secret")
        else:
            before[path] = None if kept is None else await store.get_blob(kept.removeprefix(_BLOB))
    if problems:
        raise AgentError("RuntimeExecutionError", f"nothing was undone: {'; '.join(problems)}")
    for path, data in before.items():
        if data is not None:
            await runtime.write(path, data)
        elif await runtime.stat(path) is not None:
            await runtime.remove(path)
    return Undone(
        run_id=run_id,
        restored=tuple(path for path, data in before.items() if data is not None),
        removed=tuple(path for path, data in before.items() if data is None),
    )


def _newest_changes(entries: Sequence[Entry]) -> tuple[str, dict[str, list[dict[str, Any]]]] | None:
    """The run that is to be undone next, and its changes by path."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for entry in visible_entries(entries):
        if not isinstance(entry, CustomEntry) or entry.purged_digest is not None:
            continue
        data = entry.payload.data
        if entry.payload.name == FILE_CHANGED and entry.run_id is not None:
            runs.setdefault(entry.run_id, {}).setdefault(str(data["path"]), []).append(data)
        elif entry.payload.name == _RESTORED:
            runs.pop(str(data.get("run")), None)
    return runs.popitem() if runs else None
