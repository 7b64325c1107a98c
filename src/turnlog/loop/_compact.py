"""Shrinking a session by hand, and a recap written by a model: asked for, recorded, used by the next fold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec

from turnlog.assembly import MessageAssembler
from turnlog.context import (
    ContextInput,
    ContextOptions,
    ContextUpdateInput,
    ModelContext,
    ProjectionContext,
)
from turnlog.contract import (
    AgentError,
    Clock,
    CompactionSummary,
    CompactionSummaryEntry,
    Custom,
    Entry,
    IdSource,
    JsonObject,
    Message,
    ModelInvocationDescriptor,
    RequestMetadata,
    Store,
    ToolChoice,
    cost_of,
    text_part,
)
from turnlog.history import RECAP_FAILED, Session, attach_images, may_hold_images, visible_entries
from turnlog.models import Model
from turnlog.observe import get_logger
from turnlog.system import SystemClock, SystemIds
from turnlog.widgets import Widget, WorkspaceWidget

from ._folds import Folds, find_widgets
from ._lease import WAIT_ADVICE, SessionLease
from ._phases import append_update
from ._ports import Fact

RECAP_REQUEST = (
    "Pause the work and write a recap of this conversation for yourself, to go on from when its beginning is "
    "no longer in view: the goal, what was decided and why, what is done and what is open, and every name, "
    "number, path and identifier that may be needed again. Plain text, no preamble, no tool calls."
)


_FILES = 60
"""How many files of a kind a recap names, the newest last."""


async def compact_session(
    store: Store,
    session_id: str,
    *,
    model: Model | None = None,
    instructions: str | None = None,
    options: ContextOptions | None = None,
    widgets: Sequence[Widget[Any]] = (),
    clock: Clock | None = None,
    ids: IdSource | None = None,
    on_busy: Literal["refuse", "wait"] = "refuse",
) -> list[Entry]:
    """Fold a session now. With a model, its recap stands for what is folded away; ``instructions`` tell it
    what to keep.

    ``widgets`` are those of your own that the session has: the fold shows their screens too. Returns the
    entries appended: none when there is nothing worth folding. A session with an open run is refused as
    ``SessionBusy``: its own loop folds it. While another process writes to the session it is refused too,
    or waited for with ``on_busy="wait"``.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    session = await Session.open(store, session_id, clock=clock, ids=ids, create=False)
    async with SessionLease(
        store, session_id, clock=SystemClock(), work="compact", on_busy=on_busy, advice=WAIT_ADVICE
    ) as held:
        session.lease = held.lease
        await session.refresh()
        return await _compact(session, model, options, widgets, instructions)


async def _compact(
    session: Session,
    model: Model | None,
    options: ContextOptions | None,
    widgets: Sequence[Widget[Any]],
    instructions: str | None,
) -> list[Entry]:
    state = session.state
    if state.is_open:
        raise AgentError(
            "SessionBusy", f"session {session.session_id} has an open run; resume or abort it first"
        )
    names = state.started.widgets if state.started else None
    folds = Folds(
        session, lambda: ProjectionContext(options), find_widgets(names, widgets, all_of_them=False)
    )
    if model is not None and (recap := await write_recap(model, folds, instructions)) is not None:
        session.append_compaction(recap)
    updates = folds.context.compute_context_updates(
        ContextUpdateInput(target=state.target, manual=True, screen=folds.host.screen)
    )
    for payload in updates.entries_to_append:
        append_update(session, payload)
    return await session.commit()


async def write_recap(
    model: Model, folds: Folds, instructions: str | None = None
) -> CompactionSummary | None:
    """Ask ``model`` for a recap of the session as it is. None when there is nothing to recap."""
    session, target = folds.session, model.descriptor
    context = folds.context.build_context(ContextInput(target=target, plan=False)).context
    log = await session.all_entries()
    answers = [entry.id for entry in log if entry.kind == "model_output"]
    if len(answers) < 2:
        return None
    # Nobody has this wire cached: it costs nothing to forbid calls outright.
    return await ask_recap(
        model,
        session.store,
        context,
        session_id=session.session_id,
        first_kept=answers[-1],
        request=recap_request([*log, *session.staged], folds.host.widgets, instructions),
        tool_choice="none",
    )


def recap_request(
    log: Sequence[Entry], widgets: Sequence[Widget[Any]], instructions: str | None = None
) -> tuple[str, str]:
    """What a model is asked, and the list of files that its answer ends with.

    It carries on from the last recap, so that what that one kept is not lost with the fold that used it."""
    entries = visible_entries(log)
    parts = [RECAP_REQUEST]
    if instructions:
        parts.append(f"What matters most to the user: {instructions}")
    recaps = [entry.payload.summary for entry in entries if isinstance(entry, CompactionSummaryEntry)]
    if recaps and recaps[-1]:
        parts.append(
            "Carry on from your last recap: keep what still holds, correct what does not, and add what came "
            f"since. It was:\n\n{recaps[-1]}"
        )
    files = _files_of(entries, widgets)
    if files:
        parts.append(f"The list of files is added to your recap; do not repeat it:\n\n{files}")
    return "\n\n".join(parts), files


def _files_of(entries: Sequence[Entry], widgets: Sequence[Widget[Any]]) -> str:
    """The files that were read and changed, as the tool calls of the log show."""
    widget = next((each for each in widgets if isinstance(each, WorkspaceWidget)), WorkspaceWidget())
    state, changed, read = widget.initial(), dict[str, None](), dict[str, None]()
    for entry in entries:
        before, state = state.files, widget.reduce(state, entry)
        for path, action in state.files if state.files != before else ():
            if (path, action) in before and state.files[-1] != (path, action):
                continue
            kind = read if action == "read" else changed
            kind.pop(path, None)  # the newest last
            kind[path] = None
    lines = [("Files changed", list(changed)), ("Files read", [path for path in read if path not in changed])]
    return "\n".join(f"{title}: {', '.join(paths[-_FILES:])}" for title, paths in lines if paths)


async def ask_recap(
    model: Model,
    store: Store,
    context: ModelContext,
    *,
    session_id: str,
    first_kept: str,
    request: tuple[str, str],
    tool_choice: ToolChoice | None = None,
) -> CompactionSummary:
    """A recap of ``context``, for what comes before the entry ``first_kept``.

    A tool choice other than that of the calls before costs some providers' cache. Raises the model's error,
    and an answer without a word, as ``ContextCompactionFailed``.
    """
    messages = [
        await attach_images(store, message) if may_hold_images(message) else message
        for message in context.messages
    ]
    words, files = request
    asked = Message(run_id="", role="user", parts=[text_part(words)], timestamp="")
    stream = model.stream(
        [*messages, asked],
        context.tool_specs,
        context.system_prompt,
        tool_choice=tool_choice,
        request_metadata=RequestMetadata(session_id=session_id, run_id=""),
    )
    assembler = MessageAssembler("")
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            assembler.consume(delta)
    by = (assembler.start.target if assembler.start else None) or model.descriptor
    usage = assembler.usage
    if usage is not None and usage.cost is None:
        usage = msgspec.structs.replace(usage, cost=cost_of(by, usage))
    spent: JsonObject | None = {"usage": msgspec.to_builtins(usage)} if usage is not None else None
    if assembler.error is not None:
        raise AgentError(
            "ContextCompactionFailed",
            f"the recap failed and the session is unchanged: "
            f"{assembler.error.message or assembler.error.error_code}",
            meta=spent,
        )
    text = assembler.finish().message.text.strip()
    if not text:
        raise AgentError(
            "ContextCompactionFailed", "the model wrote an empty recap; the session is unchanged", meta=spent
        )
    if files:
        text = f"{text}\n\n{files}"
    return CompactionSummary(first_kept_entry_id=first_kept, summary=text, model=by, usage=usage)


# ── recaps asked for beside runs: on the wire that was just sent, waited for only if a prompt did not fit ──
#
# A recap belongs to its session, not to the run that asked for it: what is ready after the run is appended
# between two runs, and the next fold uses it, in whichever process.

Deliver = Callable[[str, Fact], Awaitable[None]]

_log = get_logger("context")


class Recaps:
    """At most one question at a time for each session. What comes of it is handed to ``deliver``, a failure
    as a note."""

    def __init__(
        self, model: Model, store: Store, deliver: Deliver, *, instructions: str | None, patience: float
    ) -> None:
        self._model = model
        self._store = store
        self._deliver = deliver
        self._instructions = instructions
        self._patience = patience
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, folds: Folds, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        """Ask, if ``context`` has grown far enough. The provider has just read it, so that reading it again
        costs little."""
        session_id = folds.session.session_id
        if session_id in self._tasks:
            return
        first_kept = folds.context.recap_due(context.stats, target, asked_at=folds.recap_asked_at)
        if first_kept is None:
            return
        folds.recap_asked_at = context.stats.estimated_tokens
        asked = self._ask(folds, context, first_kept, folds.session.staged, folds.session.next_seq)
        task = asyncio.create_task(asked, name=f"turnlog recap {session_id}")
        self._tasks[session_id] = task
        task.add_done_callback(lambda done: self._forget(session_id, done))

    def _forget(self, session_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id) is task:
            del self._tasks[session_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s: a recap was lost: %s: %s", session_id, type(error).__name__, error)

    async def _ask(
        self, folds: Folds, context: ModelContext, first_kept: str, staged: Sequence[Entry], upto: int
    ) -> None:
        """``staged`` is what was not committed yet when the question came up, before entry ``upto``."""
        fact: Fact
        session_id = folds.session.session_id
        try:
            log = {entry.seq: entry for entry in (*await folds.session.all_entries(), *staged)}
            then = [entry for seq, entry in log.items() if seq < upto]
            request = recap_request(then, folds.host.widgets, self._instructions)
            fact = await ask_recap(
                self._model,
                self._store,
                context,
                session_id=session_id,
                first_kept=first_kept,
                request=request,
            )
        except AgentError as error:
            _log.debug("%s: no recap: %s", session_id, error.message)
            fact = Custom(
                name=RECAP_FAILED, data={"code": error.code, "message": error.message, **(error.meta or {})}
            )
        await self._deliver(session_id, fact)

    async def wait(self, session_id: str) -> None:
        """Wait for what was asked for a session, within the bound."""
        task = self._tasks.get(session_id)
        if task is not None:
            await asyncio.wait([task], timeout=self._patience)

    async def stop(self, session_id: str) -> None:
        """What is not there yet is not wanted any more."""
        task = self._tasks.pop(session_id, None)
        if task is not None:
            await _cancel(task)

    async def settle(self) -> None:
        """Give what was asked for time to arrive, within the bound, and drop the rest."""
        here = asyncio.get_running_loop()
        tasks = [task for task in self._tasks.values() if task.get_loop() is here]
        if tasks:
            await asyncio.wait(tasks, timeout=self._patience)
        for task in tasks:
            await _cancel(task)


async def _cancel(task: asyncio.Task[None]) -> None:
    if task.get_loop() is asyncio.get_running_loop():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
