"""Shrinking a session by hand, and a recap written by a model: asked for, recorded, used by the next fold."""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from turnlog.assembly import MessageAssembler
from turnlog.context import ContextOptions, FoldPlanner, Projection
from turnlog.contract import (
    AgentError,
    Clock,
    CompactionSummary,
    Entry,
    IdSource,
    Message,
    ModelOutputEntry,
    RequestMetadata,
    Store,
    text_part,
)
from turnlog.history import Session
from turnlog.models import Model
from turnlog.system import SystemClock, SystemIds
from turnlog.widgets import WidgetHost

from ._replay import BUILT_IN
from ._state import RunState
from ._warm import WarmSession

RECAP_REQUEST = (
    "Pause the work and write a recap of this conversation for yourself, to go on from when its beginning is "
    "no longer in view: the goal, what was decided and why, what is done and what is open, and every name, "
    "number, path and identifier that may be needed again. Plain text, no preamble."
)


async def compact_session(
    store: Store,
    session_id: str,
    *,
    model: Model | None = None,
    options: ContextOptions | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> list[Entry]:
    """Fold a session now. With a model, its recap stands for what is folded away.

    Returns the entries appended: none when there is nothing worth folding. A session with an open run is
    refused: its own loop folds it.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    session = await Session.open(store, session_id, clock=clock, ids=ids, create=False)
    warm = WarmSession(session, RunState(), Projection(options or ContextOptions()), WidgetHost(BUILT_IN))
    warm.catch_up()
    if warm.state.is_open:
        raise AgentError("SessionBusy", f"session {session_id} has an open run; resume or abort it first")
    if model is not None and (recap := await write_recap(model, warm)) is not None:
        warm.step(session.append_compaction(recap))
    planner = FoldPlanner(warm.projection, target=warm.state.target)
    fold = planner.plan("manual")
    if fold is not None:
        warm.step(session.append_fold(msgspec.structs.replace(fold, screen=warm.host.screen())))
    return await session.commit()


async def write_recap(model: Model, warm: WarmSession) -> CompactionSummary | None:
    """Ask ``model`` for a recap, on the wire the provider has cached. None when there is nothing to recap.

    Raises the model's error as ``ContextCompactionFailed``.
    """
    outputs = [entry for entry in warm.session.entries if isinstance(entry, ModelOutputEntry)]
    if len(outputs) < 2:
        return None
    context = warm.projection.emit(model.descriptor)
    request = Message(run_id="", role="user", parts=[text_part(RECAP_REQUEST)], timestamp="")
    stream = model.stream(
        [*context.messages, request],
        context.tool_specs,
        context.system_prompt,
        tool_choice="none",
        request_metadata=RequestMetadata(session_id=warm.session.session_id, run_id=""),
    )
    assembler = MessageAssembler("")
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            assembler.consume(delta)
    if assembler.error is not None:
        raise AgentError(
            "ContextCompactionFailed",
            f"the recap failed and the session is unchanged: "
            f"{assembler.error.message or assembler.error.error_code}",
        )
    text = assembler.finish().message.text.strip()
    if not text:
        raise AgentError(
            "ContextCompactionFailed", "the model wrote an empty recap; the session is unchanged"
        )
    return CompactionSummary(
        first_kept_entry_id=outputs[-1].id, summary=text, model=model.descriptor, usage=assembler.usage
    )
