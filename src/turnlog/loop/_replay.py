"""Run a recorded session again, with no network and no side effects, and compare every entry it writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from turnlog.context import ContextOptions, ProjectionContext
from turnlog.contract import (
    AgentError,
    Entry,
    ModelCallStartedEntry,
    ModelInputEntry,
    Rerun,
    RunInput,
    RunStarted,
    RunStartedEntry,
    RuntimeInitEntry,
    SessionHeaderEntry,
    Store,
    ToolsChangeEntry,
    Value,
)
from turnlog.history import MemoryStore, Session
from turnlog.widgets import Widget

from ._folds import Folds, find_widgets
from ._output import RecordedOutput
from ._ports import Ports, RunLeft, Said
from ._recorded import (
    RecordedClock,
    RecordedContext,
    RecordedHuman,
    RecordedIds,
    RecordedModel,
    RecordedTools,
    RecordedWorld,
    said_in,
)
from ._runner import Runner
from ._tape import Tape, TapeEnded


class ReplayReport(Value, frozen=True, kw_only=True):
    """``identical``, or where the first difference is and what it looks like.

    ``unproven``: contexts of which a part was purged since; they cannot be made again and are not compared.
    """

    session_id: str
    identical: bool
    entries: int
    runs: int
    contexts: int
    unproven: int = 0
    open_run: bool = False
    seq: int | None = None
    kind: str | None = None
    difference: str | None = None


async def replay(
    store: Store,
    session_id: str,
    *,
    options: ContextOptions | None = None,
    widgets: Sequence[Widget[Any]] = (),
) -> ReplayReport:
    """Replay ``session_id``. Raises for what cannot be read; a difference is in the report.

    ``widgets`` are those of your own that the session has; ours are known.
    """
    return await replay_entries(await store.load(session_id), session_id, options=options, widgets=widgets)


async def replay_entries(
    recorded: list[Entry],
    session_id: str,
    *,
    options: ContextOptions | None = None,
    widgets: Sequence[Widget[Any]] = (),
) -> ReplayReport:
    for entry in recorded:
        if isinstance(entry, RunStartedEntry):
            find_widgets(entry.payload.widgets, widgets)  # one that is missing is no difference
    tape = Tape(recorded)
    runs = 0
    open_run = False
    try:
        folds = await _open(tape, session_id, options)
        while not tape.ended:
            if isinstance(tape.next, RunStartedEntry):
                runs += 1
                await _run_again(tape, folds, widgets)
            else:
                tape.copy()
                await folds.session.commit()
    except TapeEnded:
        open_run = True
        if not tape.ended:
            seq = tape.position + 1
            tape.mismatch = tape.mismatch or (seq, "the run would end here, and the recording continues")
    except AgentError as error:
        if tape.mismatch is None:
            if error.code != "ReplayMismatch" and tape.ended:
                raise
            tape.mismatch = (tape.position + 1, str(error))
    seq, difference = tape.mismatch or (None, None)
    compared = recorded if seq is None else recorded[: seq - 1]
    contexts = [entry for entry in compared if isinstance(entry, ModelCallStartedEntry)]
    unproven = sum(tape.is_unproven(entry) for entry in contexts)
    return ReplayReport(
        session_id=session_id,
        identical=tape.mismatch is None,
        entries=len(compared),
        runs=runs,
        contexts=len(contexts) - unproven,
        unproven=unproven,
        open_run=open_run,
        seq=seq,
        kind=recorded[seq - 1].kind if seq is not None and seq <= len(recorded) else None,
        difference=difference,
    )


async def _open(tape: Tape, session_id: str, options: ContextOptions | None) -> Folds:
    header = tape.recorded[0] if tape.recorded else None
    if not isinstance(header, SessionHeaderEntry):
        raise AgentError("SessionCorrupt", f"session {session_id} does not begin with its header")
    session = await Session.open(
        MemoryStore(),
        session_id,
        clock=RecordedClock(tape),
        ids=RecordedIds(tape),
        create=True,
        title=header.payload.title,
        metadata=header.payload.metadata,
    )
    tape.follow(session)
    return Folds(session, lambda: ProjectionContext(options))


async def _run_again(tape: Tape, folds: Folds, widgets: Sequence[Widget[Any]]) -> None:
    started = tape.next
    assert isinstance(started, RunStartedEntry)
    on_screen = find_widgets(started.payload.widgets, widgets)
    if on_screen != folds.host.widgets:
        folds.show(on_screen)
    session = folds.session
    ports = Ports(
        model=RecordedModel(tape),
        tools=RecordedTools(tape, session),
        human=RecordedHuman(tape),
        context=RecordedContext(tape, folds),
        world=RecordedWorld(tape),
        output=RecordedOutput(tape),
    )
    runner = Runner(
        session,
        ports,
        RecordedClock(tape),
        started.run_id or "",
        widgets=on_screen,
        home=tape.session_id,
    )
    try:
        runner.begin(*_input_of(tape, started))
        while runner.result is None:
            await runner.advance()
            deque(iter(runner.show, None), maxlen=0)
    except TapeEnded:
        raise
    except RunLeft:
        pass  # what follows on the tape is not this run's
    finally:
        runner.outbox.close()


def recorded_input(payload: RunStarted) -> RunInput:
    """The options that a run was started with."""
    return RunInput(
        system_prompt_override=payload.system_prompt_override,
        allowed_tools=payload.allowed_tools,
        tool_order=payload.tool_order,
        tool_policy=payload.tool_policy,
        loop_limits=payload.limits,
        retry=payload.retry,
        tool_choice=payload.tool_choice,
        model_params=payload.model_params,
        agent_name=payload.agent_name,
        output_schema=payload.output_schema,
        output_mode=payload.output_mode,
        output_field=payload.output_field,
        role=payload.role,
        trace_id=payload.trace_id,
        invocation_state=payload.invocation_state,
        system_prompt_content=payload.system_prompt_content,
    )


def rerun_input(started: RunStartedEntry, change: Rerun, session_id: str, run_id: str) -> RunInput:
    """The run that repeats a recorded one in a branch."""
    run = msgspec.structs.replace(
        recorded_input(started.payload), session_id=session_id, run_id=run_id, rerun=change
    )
    if change.instructions is None:
        return run
    return msgspec.structs.replace(run, system_prompt_override=None, system_prompt_content=None)


def _input_of(tape: Tape, started: RunStartedEntry) -> tuple[RunInput, list[Said]]:
    """What the run was started with: its own entry, and what was said to it before it first acted."""
    payload = started.payload
    said: list[Said] = []
    runtime = None
    for entry in tape.after(1):
        match entry:
            case ModelInputEntry() if entry.payload.source == "user":
                said.append(said_in(entry))
            case RuntimeInitEntry():
                runtime = entry.payload.data
            case ToolsChangeEntry():
                continue
            case _:
                break
    run = msgspec.structs.replace(
        recorded_input(started.payload),
        session_id=started.session_id,
        run_id=started.run_id or "",
        input_messages=[each.message for each in said],
        runtime_init_data=runtime,
        rerun=payload.rerun,
    )
    return run, said
