"""One session as an object: run it, watch it, decide on its calls, look back; with an agent or without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, get_args, overload

from typing_extensions import TypeVar, Unpack

from turnlog.approvals import Decision
from turnlog.context import ContextView, explain
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Chunk,
    Entry,
    JsonObject,
    Message,
    PendingApproval,
    RunEvent,
    RunInput,
    RunResult,
    Store,
)
from turnlog.history import AgentState, export_jsonl, messages_of, named_blobs, visible_entries
from turnlog.models import Model, ModelConfig, ModelRequest, load_model
from turnlog.tools import OutputType, ToolExecutor, ToolRegistry

from ._journal import Undone
from ._loop import AgentLoop
from ._open_sessions import LoopParts
from ._options import (
    AnyInput,
    Out,
    OutputSpec,
    RunDefaults,
    RunObjects,
    RunOptions,
    WhatIf,
    check_kind,
    check_list,
    check_store,
    said_by,
)
from ._output import read_output_type, show_format
from ._ports import Said
from ._replay import ReplayReport, replay, rerun_input
from ._rerun import (
    Comparison,
    Recording,
    RerunOptions,
    RerunPreview,
    check_tool,
    compare_logs,
    describe_change,
    plan_rerun,
    preview_rerun,
)
from ._stored import (
    PendingAnswer,
    fork_session,
    home_of,
    pending_answers,
    pending_calls,
    purge_entries,
    redact_entries,
    trace_of,
)
from ._stream import Run, RunStream

T = TypeVar("T", default=str)

ExportFormat: TypeAlias = Literal["jsonl", "html", "markdown", "otlp", "openai", "anthropic", "langchain"]


class StoredSession:
    """A session without an agent, made by :func:`open_session`: decide on its calls and answer them, reach
    its run in whichever process drives it, look back, fork, hide and erase."""

    def __init__(self, loop: AgentLoop, session_id: str) -> None:
        self.session_id = session_id
        self._loop = loop

    @property
    def _store(self) -> Store:
        return self._loop.parts.store

    # ── while it runs ──

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Events with numbers above ``after``: from the log what is over, then those of the run in progress
        in this process as they come, until none is. Any number of watchers may read."""
        check_kind("after", after, int, "the number of the last event you saw", required=True)
        return self._loop.events(self.session_id, after)

    async def send(self, text: AnyInput) -> None:
        """Add a message to the open run, also to one in another process: it enters before the next model
        call. A run that waits for approval takes it in when it is resumed. Raises ``SessionNotFound`` when
        no run is open."""
        await self._loop.control.send(self.session_id, said_by(text))

    async def abort(self, reason: str = "aborted by the caller") -> bool:
        """End the open run, in whichever process it is driven, at its next await point; False when none is
        open.
        Raises ``SessionBusy`` when the process that drives it does not answer."""
        return await self._loop.control.abort(self.session_id, None, reason)

    async def pause(self) -> bool:
        """Stop driving the open run before its next step, without ending it; ``resume`` continues it."""
        return await self._loop.control.pause(self.session_id, None)

    async def driver(self) -> str | None:
        """The process that drives the open run, as ``process 4711 on host``; None when none does."""
        return await self._loop.control.find_driver(self.session_id)

    # ── approvals and answers ──

    async def pending(self) -> list[PendingApproval]:
        """The calls that wait for a human, oldest first, with those of the children that calls here wait for.
        Decide on any of them here."""
        return await pending_calls(self._store, self.session_id)

    async def decide(
        self,
        call: PendingApproval | str,
        action: Decision,
        *,
        by: str,
        arguments: JsonObject | None = None,
        note: str | None = None,
    ) -> ApprovalDecided:
        """Record a decision on a call; ``resume`` then continues the run. A run that is in progress, here or
        in another process, takes it up by itself.

        Raises ``ApprovalInvalid`` for what cannot be decided (the call still waits) and ``ApprovalExpired``.
        """
        check_kind("by", by, str, "who decides, as text", required=True)
        check_kind("call", call, (str, PendingApproval), "a pending call or its id", required=True)
        call_id = call if isinstance(call, str) else call.tool_call_id
        home = await self._home_of(call, call_id)
        return await self._loop.control.decide(home, call_id, action, by=by, arguments=arguments, note=note)

    async def _home_of(self, call: PendingApproval | PendingAnswer | str, call_id: str) -> str:
        """The session in which a call waits; the log is read only where it may be that of a child."""
        running = self._loop.sessions.runs.get(self.session_id)
        runner = running.runner if running is not None else None
        here = not isinstance(call, str) and call.session_id == self.session_id
        if here or (runner is not None and call_id in runner.session.state.calls):
            return self.session_id
        return await home_of(self._store, self.session_id, call_id)

    async def approve(self, call: PendingApproval | str, *, by: str, note: str | None = None) -> None:
        """Let a call run as it was shown."""
        await self.decide(call, "approve", by=by, note=note)

    async def deny(self, call: PendingApproval | str, *, by: str, reason: str | None = None) -> None:
        """Refuse a call; the model reads the reason."""
        await self.decide(call, "deny", by=by, note=reason)

    async def modify(
        self, call: PendingApproval | str, *, arguments: JsonObject, by: str, note: str | None = None
    ) -> None:
        """Let a call run with other arguments; the model reads that they were changed."""
        await self.decide(call, "modify", by=by, arguments=arguments, note=note)

    async def questions(self) -> list[PendingAnswer]:
        """The calls that wait for an answer from outside (``ToolResult.deferred``), with those of the
        children that calls here wait for."""
        return await pending_answers(self._store, self.session_id)

    async def answer(
        self, call: PendingAnswer | str, content: object, *, is_error: bool = False, by: str | None = None
    ) -> None:
        """Answer a deferred call (``ToolResult.deferred``), from any process; ``resume`` then
        continues the run. ``content`` is what the tool would have returned. Raises ``InvalidEntry`` when no
        such call waits, or the content does not fit the form that was asked for."""
        check_kind("call", call, (str, PendingAnswer), "a waiting call or its id", required=True)
        check_kind("by", by, str, "who answers, as text")
        call_id = call if isinstance(call, str) else call.tool_call_id
        home = await self._home_of(call, call_id)
        await self._loop.control.answer(home, call_id, content, is_error=is_error, by=by)

    async def undo(self) -> Undone | None:
        """Put the files that the newest turn changed with the built-in tools back to what they were before
        it; called again, those of the turn before. None when there is nothing to undo. What commands
        changed stays. Raises ``RuntimeExecutionError``, with nothing undone, when a file was changed by
        something else since, and ``SessionBusy`` while a run is open."""
        return await self._loop.undo(self.session_id)

    # ── looking back ──

    async def entries(self) -> list[Entry]:
        """The log, with redacted content replaced by a placeholder."""
        return visible_entries(await self._store.load(self.session_id))

    async def messages(self) -> list[Message]:
        """The conversation so far."""
        return messages_of(await self.entries())

    async def state(self) -> AgentState:
        """Status, open run, pending calls, last error and usage, from the log."""
        return AgentState.from_entries(await self._store.load(self.session_id))

    async def explain(self, call: int | None = None) -> ContextView:
        """What the model saw at its ``call``-th call (from 1; negative counts from the end), or at its last
        one. Raises ``ContextInvalidInput`` when there was no such call."""
        check_kind("call", call, int, "the number of a model call")
        entries = await self._store.load(self.session_id)
        return explain(entries, -1 if call is None else call, options=self._loop.parts.options)

    async def replay(self) -> ReplayReport:
        """Run the session again without network and side effects, and compare every entry."""
        parts = self._loop.parts
        return await replay(self._store, self.session_id, options=parts.options, widgets=parts.widgets)

    async def export(self, path: str | Path | None = None, *, format: ExportFormat = "jsonl") -> bytes:
        """The session as a file; written to ``path`` too, when one is given. ``jsonl`` is the log itself,
        ``html`` the timeline in one file that needs no server, ``markdown`` the conversation to read,
        ``otlp`` a trace for a collector; the others are the messages as those systems write them."""
        data = await self._export(format)
        if path is not None:
            await asyncio.to_thread(Path(path).write_bytes, data)
        return data

    async def _export(self, format: ExportFormat) -> bytes:
        store, name = self._store, self.session_id
        if format not in get_args(ExportFormat):
            known = ", ".join(get_args(ExportFormat))
            raise AgentError("ConfigInvalid", f"format is {format!r}; it is one of {known}")
        if format == "jsonl":
            return await export_jsonl(store, name)
        if format == "otlp":
            from turnlog.observe import to_otlp

            return to_otlp(await trace_of(store, name)) + b"\n"
        from turnlog.transcript import export_messages, render_html, render_markdown  # as few need it

        entries = visible_entries(await store.load(name))
        if format == "markdown":
            return render_markdown(entries).encode()
        blobs: dict[str, bytes] = {}
        for blob in sorted({blob for entry in entries for blob in named_blobs(entry)}):
            with suppress(AgentError):  # one that is gone is shown by its name
                blobs[blob] = await store.get_blob(blob)
        if format == "html":
            branches = await store.sessions(parent=name)
            return (await asyncio.to_thread(render_html, entries, blobs=blobs, branches=branches)).encode()
        made = export_messages(entries, format=format, blobs=blobs)
        return json.dumps(made, ensure_ascii=False, indent=2).encode() + b"\n"

    async def compare(self, other: StoredSession | str) -> Comparison:
        """This session beside another: what they share, and how each continues."""
        name = other if isinstance(other, str) else other.session_id
        left, right = await self._store.load(self.session_id), await self._store.load(name)
        return compare_logs(self.session_id, left, name, right)

    # ── branches and endings ──

    async def fork(self, at: int | None = None, *, session: str | None = None) -> StoredSession:
        """A new session that shares this one's past up to entry ``at`` (default: all of it)."""
        parts = self._loop.parts
        branch = await fork_session(
            self._store, self.session_id, at=at, target=session, clock=parts.clock, ids=parts.ids
        )
        return StoredSession(self._loop, branch)

    async def redact(self, entry_ids: list[str], *, by: str, reason: str | None = None) -> Entry:
        """Hide what these entries hold from every view, export and future context."""
        check_list("entry_ids", entry_ids)
        return await redact_entries(self._store, self.session_id, entry_ids, by=by, reason=reason)

    async def purge(self, entry_ids: list[str], *, by: str, reason: str | None = None) -> Entry:
        """Erase what these entries hold from the store's own files. It cannot be undone."""
        check_list("entry_ids", entry_ids)
        return await purge_entries(self._store, self.session_id, entry_ids, by=by, reason=reason)

    async def delete(self, *, forks: Literal["refuse", "delete"] = "refuse") -> None:
        """Erase the session from the store. Raises ``SessionBusy`` while a run is in progress in it, and
        when forks share its past, unless ``forks="delete"`` takes them along."""
        await self._loop.delete(self.session_id, forks)


class Session(StoredSession, Generic[T]):
    """A session of an agent: ``trip = agent.session("trip")``. Nothing is read before it is used."""

    def __init__(self, loop: AgentLoop, defaults: RunDefaults, session_id: str) -> None:
        super().__init__(loop, session_id)
        self._defaults = defaults

    @overload
    def run_stream(
        self, text: AnyInput, *, output_type: OutputSpec[Out], **options: Unpack[RunOptions]
    ) -> RunStream[Out]: ...
    @overload
    def run_stream(
        self, text: AnyInput, *, output_type: None = None, **options: Unpack[RunOptions]
    ) -> RunStream[T]: ...
    def run_stream(
        self, text: AnyInput, *, output_type: Any = None, **options: Unpack[RunOptions]
    ) -> RunStream[Any]:
        """As :meth:`Agent.run_stream`."""
        run, said, output = self._prepare(text, output_type, options)
        objects = RunObjects(self._defaults.check_deps(options), output, self._defaults.under)
        return self._loop.run_stream(
            run, said=[said], instructions=self._defaults.instructions, objects=objects
        )

    def _prepare(
        self, text: AnyInput, output_type: Any, options: RunOptions
    ) -> tuple[RunInput, Said, OutputType[Any] | None]:
        said = said_by(text)
        output = read_output_type(output_type, self._defaults.output)
        run = self._defaults.prepare(self.session_id, said.message, options, self._loop.parts.ids, output)
        if output is not None and run.output_mode == "text":
            said = show_format(said, output)
        return run, said, output

    @overload
    async def run(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...
    @overload
    async def run(
        self, text: AnyInput, *, output_type: None = None, check: bool = True, **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...
    async def run(
        self, text: AnyInput, *, output_type: Any = None, check: bool = True, **options: Unpack[RunOptions]
    ) -> RunResult[Any]:
        """As :meth:`Agent.run`."""
        return await self.run_stream(text, output_type=output_type, **options).result(check=check)

    @overload
    async def start(
        self, text: AnyInput, *, output_type: OutputSpec[Out], **options: Unpack[RunOptions]
    ) -> Run[Out]: ...
    @overload
    async def start(
        self, text: AnyInput, *, output_type: None = None, **options: Unpack[RunOptions]
    ) -> Run[T]: ...
    async def start(
        self, text: AnyInput, *, output_type: Any = None, **options: Unpack[RunOptions]
    ) -> Run[Any]:
        """As :meth:`Agent.start`."""
        stream = self.run_stream(text, output_type=output_type, **options)
        await stream.commit()
        return Run(stream, self._loop.events)

    async def start_resume(self, *, output_type: Any = None, deps: Any = None) -> Run[Any] | None:
        """As :meth:`start`, for the run that a crash, a pause or a wait left open; None when none is open."""
        stream = self.resume_stream(output_type=output_type, deps=deps)
        await stream.commit()
        return None if stream.is_over else Run(stream, self._loop.events)

    async def submit(
        self, text: AnyInput, *, output_type: OutputSpec | None = None, **options: Unpack[RunOptions]
    ) -> str:
        """As :meth:`Agent.submit`; returns the run's id."""
        run, said, _ = self._prepare(text, output_type, options)
        await self._loop.submit(run, said=[said], instructions=self._defaults.instructions)
        return run.run_id

    @overload
    def resume_stream(self, *, output_type: OutputSpec[Out], deps: Any = None) -> RunStream[Out]: ...
    @overload
    def resume_stream(self, *, output_type: None = None, deps: Any = None) -> RunStream[T]: ...
    def resume_stream(self, *, output_type: Any = None, deps: Any = None) -> RunStream[Any]:
        """Continue the open run, driven by the reader. No events come when no run is open."""
        given = self._defaults.check_deps({"deps": deps})
        output = read_output_type(output_type, self._defaults.output)
        return self._loop.resume_stream(self.session_id, RunObjects(given, output, self._defaults.under))

    @overload
    async def resume(
        self, *, output_type: OutputSpec[Out], deps: Any = None, check: bool = True
    ) -> RunResult[Out] | None: ...
    @overload
    async def resume(
        self, *, output_type: None = None, deps: Any = None, check: bool = True
    ) -> RunResult[T] | None: ...
    async def resume(
        self, *, output_type: Any = None, deps: Any = None, check: bool = True
    ) -> RunResult[Any] | None:
        """Continue the run that a crash, a pause or a wait for approval left open, to its end; None when no
        run is open. Raises the run's ``AgentError`` when it failed, unless ``check`` is False. A run that was
        asked for an output checks it again: give its type, else the output is the plain JSON."""
        async with self.resume_stream(output_type=output_type, deps=deps) as stream:
            return await stream.result(check=check) if not stream.is_over else None

    async def rerun_stream(self, at: int, **change: Unpack[RerunOptions]) -> RunStream[T]:
        """As :meth:`rerun`, driven by its reader; ``stream.session_id`` names the branch."""
        check_kind("at", at, int, "the number of an entry", required=True)
        model, parts = change.get("model"), self._loop.parts
        other = load_model(model) if isinstance(model, str) else model
        rerun = describe_change(self.session_id, at, change, other)
        entries = await self._store.load(self.session_id)
        plan = plan_rerun(entries, at, rerun)
        recording = Recording(visible_entries(entries), plan, rerun)
        check_tool(recording, plan, rerun, await self._tools())
        branch = await fork_session(
            self._store,
            self.session_id,
            at=plan.fork_at,
            target=change.get("session"),
            clock=parts.clock,
            ids=parts.ids,
        )
        objects = RunObjects(
            self._defaults.check_deps({"deps": change.get("deps")}),
            self._defaults.output,
            model=other,
            what_if=WhatIf(recording, plan, rerun),
        )
        return self._loop.run_stream(
            rerun_input(plan.started, rerun, branch, parts.ids.run()),
            said=[said_by(rerun.text)] if rerun.text is not None else [],
            instructions=rerun.instructions,
            objects=objects,
        )

    async def rerun(self, at: int, **change: Unpack[RerunOptions]) -> Session[T]:
        """What if: run on from the step of entry ``at`` with something changed, in a branch, to its end; the
        branch is returned, whatever came of the run.

        ``text`` replaces what a run was asked, ``result`` what a tool returned, ``arguments`` what it was
        given; ``model`` and ``instructions`` hold from there on. Calls of the same tool with the same
        arguments get their recorded results. For others ``tools`` decides: ``recorded`` ends the run,
        ``ask`` asks as for an approval, ``live`` runs them. Raises ``ConfigInvalid`` for a place where the
        change makes no sense; nothing is made then.
        """
        stream = await self.rerun_stream(at, **change)
        await stream.result(check=False)
        return Session(self._loop, self._defaults, stream.session_id)

    async def preview_rerun(self, at: int, **change: Unpack[RerunOptions]) -> RerunPreview:
        """What :meth:`rerun` would do with these arguments, as far as it is known beforehand: what is shared,
        the size and the cost of the first call, which calls the recording answers. Nothing is made, and no
        model is asked. Raises as :meth:`rerun`."""
        check_kind("at", at, int, "the number of an entry", required=True)
        model = change.get("model")
        other = load_model(model) if isinstance(model, str) else model
        rerun = describe_change(self.session_id, at, change, other)
        entries = await self._store.load(self.session_id)
        plan, tools = plan_rerun(entries, at, rerun), await self._tools()
        visible = visible_entries(entries)
        check_tool(Recording(visible, plan, rerun), plan, rerun, tools)
        return preview_rerun(visible, plan, rerun, (other or self._loop.parts.model).descriptor, tools)

    async def _tools(self) -> list[str]:
        registry = self._loop.parts.registry
        await registry.refresh()
        return list(registry.names)

    async def start_rerun(self, at: int, **change: Unpack[RerunOptions]) -> Run[T]:
        """As :meth:`rerun`, in the background."""
        stream = await self.rerun_stream(at, **change)
        await stream.commit()
        return Run(stream, self._loop.events)

    async def fork(self, at: int | None = None, *, session: str | None = None) -> Session[T]:
        """As :meth:`StoredSession.fork`, for the same agent."""
        branch = await super().fork(at, session=session)
        return Session(self._loop, self._defaults, branch.session_id)


def open_session(store: Store, session_id: str) -> StoredSession:
    """A session of a store, without an agent: ``open_session(open_store("sqlite:agent.db"), "trip")``. The
    store stays the caller's to close."""
    if isinstance(store, str):
        raise AgentError("ConfigInvalid", "store is text; pass open_store(…), and close it when you are done")
    check_store(store)
    check_kind("session_id", session_id, str, "its name, as text", required=True)
    registry = ToolRegistry([])
    parts = LoopParts(model=_NoModel("none"), store=store, registry=registry, executor=ToolExecutor(registry))
    return StoredSession(AgentLoop(parts), session_id)


class _NoModel(Model[ModelConfig]):
    """Stands where an agent has its model. It is never called: a session without an agent runs nothing."""

    provider_id = "none"
    specification = "none"

    def _stream(self, request: ModelRequest[ModelConfig]) -> AsyncIterator[Chunk]:
        raise AgentError("ConfigInvalid", "this session was opened without an agent, and cannot run")
