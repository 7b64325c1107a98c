"""The way in: puts a model, tools, a store and policies together, and runs them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Generic, Self, overload

from typing_extensions import TypeVar, Unpack

from turnlog.approvals import ApprovalPolicy, Approvals, Decision
from turnlog.context import ContextManager, ContextOptions
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    Entry,
    IdSource,
    JsonObject,
    LoopLimits,
    ModelParams,
    Observer,
    PendingApproval,
    RetryPolicy,
    RunResult,
    Runtime,
    Store,
    ToolChoice,
    ToolPolicy,
    WidgetEvent,
    guard_environment,
)
from turnlog.history import default_store_url, open_store
from turnlog.models import Model, load_model
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import Tool, ToolExecutor, ToolOptions, ToolRegistry, ToolSource
from turnlog.widgets import MemoryNotebookWidget, Widget

from ._agent_config import AgentConfig, load_config
from ._child import ChildAgent
from ._folds import Memory, memory_tools, widget_tools
from ._handle import Session
from ._handoff import Handoff, make_handoff, team_of
from ._loop import AgentLoop
from ._map import Batch
from ._open_sessions import LoopParts, SessionOptions
from ._options import (
    AnyInput,
    Out,
    OutputSpec,
    RunDefaults,
    RunOptions,
    check_duck,
    check_kind,
    check_list,
    check_model,
    check_params,
    check_store,
    check_value,
    check_widgets,
    read_choice,
)
from ._output import read_output_type
from ._ports import Hooks
from ._skills import SkillSource, read_skills
from ._stream import Run, RunStream, SyncRunStream

T = TypeVar("T", default=str)


class Agent(Generic[T]):
    """A model, a context and an environment; every turn it takes is an entry in its store.

    ``model`` is a :class:`Model` or a name (``"local"``, ``"anthropic:claude-…"``), ``store`` a store or a
    URL (``memory:``, ``jsonl:DIR``, ``sqlite:FILE``, ``postgresql://…``; default: an SQLite file in the
    user's data directory). Nothing is opened before its use, and ``close`` closes what the agent opened.
    ``model_options`` configure a model given by name, ``params`` are sent with every call. ``deps`` are
    handed to tools as ``ctx.deps``; with ``deps_type`` others are refused. With ``output_type`` the output of
    every run is a checked value of that type. ``skills`` are folders of skills, which the model reads on
    demand. With ``recap`` a model (True: the same one) writes a recap in
    the background before the context has to be folded, and the fold uses it.
    ``context`` tunes the context, or makes another :class:`ContextManager` for each session.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        tools: Sequence[ToolSource] | None = (),
        skills: SkillSource = None,
        instructions: str | None = None,
        name: str = "agent",
        store: Store | str | None = None,
        deps: Any = None,
        deps_type: Any = None,
        output_type: OutputSpec[T] | None = None,
        runtime: Runtime | None = None,
        runtime_data: JsonObject | None = None,
        widgets: Sequence[Widget[Any]] | None = (),
        approvals: Approvals | ApprovalPolicy | None = None,
        limits: LoopLimits | None = None,
        context: ContextOptions | Callable[[], ContextManager] | None = None,
        hooks: Hooks | None = None,
        handoffs: Sequence[Agent[Any] | Handoff] = (),
        observers: Sequence[Observer] = (),
        params: ModelParams | None = None,
        model_options: dict[str, Any] | None = None,
        tool_policy: ToolPolicy | None = None,
        tool_choice: ToolChoice | str | None = None,
        retry: RetryPolicy | None = None,
        recap: Model | str | bool = False,
        sessions: SessionOptions | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        guard_environment(os.environ)
        self._opened = AsyncExitStack()
        self.model = self._load(model, model_options)
        self.store = self._open(store)
        self._widgets = check_widgets(widgets or ())
        check_list("tools", tools or ())
        known = read_skills(skills)
        own = (*(tools or ()), *known.tools())
        self._registry = registry = ToolRegistry([*own, *widget_tools(self._widgets), *memory_tools()])
        if deps_type is not None:
            registry.check_deps_type(deps_type)
        check_kind("name", name, str, "text")
        check_kind("instructions", instructions, str, "text")
        check_kind("runtime_data", runtime_data, dict, "a dict")
        check_params(params)
        check_duck("runtime", runtime, "connect", "a Runtime")
        registry.use_runtime(runtime)
        check_duck("clock", clock, "monotonic", "a Clock, as SystemClock()")
        check_duck("ids", ids, "entry", "an IdSource, as SystemIds()")
        check_list("observers", observers)
        for observer in observers:
            check_duck("observers", observer, "on_entry", "objects with on_entry(entry)")
        check_value("tool_policy", tool_policy, ToolPolicy)
        check_value("limits", limits, LoopLimits)
        check_value("retry", retry, RetryPolicy)
        self._defaults = RunDefaults(
            name=name,
            instructions=known.instructions(instructions),
            tool_policy=tool_policy or ToolPolicy(),
            limits=limits or LoopLimits(),
            retry=retry or RetryPolicy(),
            tool_choice=read_choice(tool_choice, lambda: registry.names),
            params=params,
            runtime_data=runtime_data,
            deps=deps,
            deps_type=deps_type,
            output=read_output_type(output_type),
            supports=self.model.supports,
            tool_names=lambda: registry.names,
            check_tools=registry.check_deps,
        )
        ways = sessions or SessionOptions()
        if context is not None and not isinstance(context, ContextOptions) and not callable(context):
            raise AgentError("ConfigInvalid", f"context is {context!r}; pass ContextOptions(…)")
        check_kind("hooks", hooks, Hooks, "Hooks(…)")
        check_kind("sessions", ways, SessionOptions, "SessionOptions(…)")
        clock = clock or SystemClock()
        self.loop = AgentLoop(
            LoopParts(
                model=self.model,
                store=self.store,
                registry=registry,
                executor=ToolExecutor(registry, clock=clock),
                agent_name=name,
                approvals=approvals if isinstance(approvals, Approvals) else Approvals(policy=approvals),
                options=context if isinstance(context, ContextOptions) else ContextOptions(),
                context=None if isinstance(context, ContextOptions) else context,
                hooks=hooks or Hooks(),
                runtime=runtime,
                widgets=self._widgets,
                observers=observers,
                clock=clock,
                ids=ids or SystemIds(),
                recap=self._recap_model(recap),
                sessions=ways,
                owners=tuple(tools or ()),
            )
        )
        self.add_handoffs(*handoffs)

    @property
    def name(self) -> str:
        return self._defaults.name

    @property
    def instructions(self) -> str | None:
        return self._defaults.instructions

    def _recap_model(self, recap: Model | str | bool) -> Model | None:
        if isinstance(recap, bool):
            return self.model if recap else None
        return self._load(recap, None, "recap")

    def _load(self, model: Model | str, options: dict[str, Any] | None, what: str = "model") -> Model:
        check_kind("model_options", options, dict, "a dict of the model's configuration")
        if not isinstance(model, str):
            check_model(model, what)
            return model
        loaded = load_model(model, **(options or {}))
        self._opened.push_async_callback(loaded.close)
        return loaded

    def _open(self, store: Store | str | None) -> Store:
        if store is not None:
            check_store(store)
        if store is not None and not isinstance(store, str):
            return store
        opened = open_store(default_store_url() if store is None else store)
        self._opened.push_async_callback(opened.close)
        return opened

    @classmethod
    def from_config(cls, config: AgentConfig | str | Path, **parts: Any) -> Self:
        """An agent from a configuration file (TOML) or value. ``parts`` are what a file cannot hold (tools,
        hooks, widgets, …), or override it: every argument of ``Agent`` is taken."""
        if not isinstance(config, AgentConfig | str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError(
                "ConfigInvalid", f"the configuration is {config!r}; pass an AgentConfig, or a path"
            )
        found = config if isinstance(config, AgentConfig) else load_config(config)
        return cls(**found.arguments(parts))

    # ── running ──

    def session(self, session: str | None = None) -> Session[T]:
        """A session of this agent, by its name; a new one without. Nothing is read before it is used."""
        check_kind("session", session, str, "its name, as text")
        name = self.loop.parts.ids.session() if session is None else session
        return Session(self.loop, self._defaults, name)

    @overload
    def run_stream(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream[Out]: ...
    @overload
    def run_stream(
        self,
        text: AnyInput,
        *,
        output_type: None = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream[T]: ...
    def run_stream(
        self,
        text: AnyInput,
        *,
        output_type: Any = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream[Any]:
        """A run that its reader drives: ``async with`` it, and iterate over its events or its ``text``.

        Leaving the block ends the run and keeps the session.
        """
        return self.session(session).run_stream(text, output_type=output_type, **options)

    @overload
    async def run(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...
    @overload
    async def run(
        self,
        text: AnyInput,
        *,
        output_type: None = None,
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...
    async def run(
        self,
        text: AnyInput,
        *,
        output_type: Any = None,
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]:
        """Run to the end. With ``output_type`` the result's ``output`` is a checked value of it.

        Raises the run's ``AgentError``, with its ``result``, when it failed or was aborted, unless ``check``
        is False. A run that waits for a human is a result, not an error.
        """
        stream = self.session(session).run_stream(text, output_type=output_type, **options)
        return await stream.result(check=check)

    @overload
    def run_sync(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Out]: ...
    @overload
    def run_sync(
        self,
        text: AnyInput,
        *,
        output_type: None = None,
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...
    def run_sync(
        self,
        text: AnyInput,
        *,
        output_type: Any = None,
        session: str | None = None,
        check: bool = True,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]:
        """``run`` for code without an event loop."""
        _check_no_loop("run_sync", "await agent.run(…)")

        async def run() -> RunResult[Any]:
            try:
                return await self.run(text, output_type=output_type, session=session, check=check, **options)
            finally:
                if self.loop.recaps is not None:
                    await self.loop.recaps.settle()  # this event loop ends here

        return asyncio.run(run())

    @overload
    def run_stream_sync(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> SyncRunStream[Out]: ...
    @overload
    def run_stream_sync(
        self,
        text: AnyInput,
        *,
        output_type: None = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> SyncRunStream[T]: ...
    def run_stream_sync(
        self,
        text: AnyInput,
        *,
        output_type: Any = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> SyncRunStream[Any]:
        """``run_stream`` for code without an event loop: ``for text in agent.run_stream_sync(…).text``."""
        _check_no_loop("run_stream_sync", "async with agent.run_stream(…)")
        return SyncRunStream(self.run_stream(text, output_type=output_type, session=session, **options))

    @overload
    async def start(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec[Out],
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[Out]: ...
    @overload
    async def start(
        self,
        text: AnyInput,
        *,
        output_type: None = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]: ...
    async def start(
        self,
        text: AnyInput,
        *,
        output_type: Any = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[Any]:
        """A run in the background: it continues when its watchers leave, until it ends or the agent is
        closed. Any number of watchers read ``run.events(after=n)``."""
        return await self.session(session).start(text, output_type=output_type, **options)

    async def submit(
        self,
        text: AnyInput,
        *,
        output_type: OutputSpec | None = None,
        session: str | None = None,
        **options: Unpack[RunOptions],
    ) -> str:
        """Commit the first entries of a run and return its id; ``resume``, here or in another process,
        drives it."""
        return await self.session(session).submit(text, output_type=output_type, **options)

    @overload
    def map(
        self,
        inputs: Iterable[AnyInput],
        *,
        output_type: OutputSpec[Out],
        sessions: str | Sequence[str] | None = None,
        concurrency: int = 20,
        progress: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch[Out]: ...
    @overload
    def map(
        self,
        inputs: Iterable[AnyInput],
        *,
        output_type: None = None,
        sessions: str | Sequence[str] | None = None,
        concurrency: int = 20,
        progress: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch[T]: ...
    def map(
        self,
        inputs: Iterable[AnyInput],
        *,
        output_type: Any = None,
        sessions: str | Sequence[str] | None = None,
        concurrency: int = 20,
        progress: bool | None = None,
        **options: Unpack[RunOptions],
    ) -> Batch[Any]:
        """A run for each input, ``concurrency`` at a time: ``async for done in agent.map(…)`` gives each as
        it finishes. A run that fails is an item with its ``error``.

        ``sessions`` is what the names of their sessions begin with, or a name for each: then a restart
        continues what a crash left open, and asks for nothing again that is done. ``progress`` shows a bar on
        standard error (None: where that is a terminal).
        """
        output = read_output_type(output_type, self._defaults.output)
        return Batch(
            inputs,
            self.session,
            sessions,
            concurrency,
            progress,
            self.store,
            output,
            output_type,
            options,
        )

    def resume_stream(self, session: str, *, deps: Any = None) -> RunStream[T]:
        """Continue the open run of a session, driven by the reader. No events come when no run is open."""
        return self.session(session).resume_stream(deps=deps)

    async def resume(self, session: str, *, deps: Any = None, check: bool = True) -> RunResult[T] | None:
        """Continue the run that a crash, a pause or a wait for approval left open; None when none is. For a
        run with an output type of its own, use :meth:`Session.resume`."""
        return await self.session(session).resume(deps=deps, check=check)

    def as_tool(self, description: str, *, name: str | None = None, **options: Unpack[ToolOptions]) -> Tool:
        """This agent as a tool of another: ``tools=[researcher.as_tool("Finds facts.")]``. ``name`` is the
        agent's unless given.

        Each call is a run in a session of its own, in the store of the agent that calls. Aborts, time limits
        and budgets of that one's run reach it, and what it uses counts there. A call whose run waits for a
        person waits with it: decide, then resume the session that called.
        """
        check_kind("description", description, str, "what the agent is good for, as text", required=True)
        return ChildAgent(self.loop, self._defaults).tool(description, name, options)

    def as_handoff(
        self, description: str | None = None, *, name: str | None = None, **options: Unpack[ToolOptions]
    ) -> Handoff:
        """The way to this agent for another: ``handoffs=[billing.as_handoff("For questions of money.")]``.
        The tool that hands over is named ``transfer_to_`` and the agent, unless ``name`` is given."""
        check_kind("description", description, str, "what the agent is good for, as text")
        return make_handoff(self.loop.parts, self._defaults, description, name, options)

    def add_handoffs(self, *handoffs: Agent[Any] | Handoff) -> None:
        """Let this agent hand the conversation over to others, also to those that were made after it."""
        for each in handoffs:
            check_kind("handoffs", each, (Agent, Handoff), "agents, or agent.as_handoff(…)", required=True)
            handoff = each if isinstance(each, Handoff) else each.as_handoff()
            self._registry.add(handoff.tool)
            self.loop.parts.handoffs.append(handoff)
            team_of(self.loop.parts)

    # ── while it runs ──

    async def abort(self, run_id: str, reason: str = "aborted by the caller") -> bool:
        """End a run at its next await point, here or in another process; False when it is not open."""
        session = await self.loop.control.find_session(run_id)
        return session is not None and await self.loop.control.abort(session, run_id, reason)

    async def pause(self, run_id: str) -> bool:
        """Stop driving a run before its next step, without ending it; ``resume`` continues it."""
        session = await self.loop.control.find_session(run_id)
        return session is not None and await self.loop.control.pause(session, run_id)

    async def send(self, session: str, text: AnyInput) -> None:
        """Add a message to the open run of a session, here or in another process."""
        await self.session(session).send(text)

    async def append_widget_event(self, session: str, event: WidgetEvent) -> Entry | None:
        """Change a widget from outside: the event goes into the log, and the screen follows from it.

        Between runs it is written at once, and returned. While a run is in progress here it is handed to
        that run, which takes it in before its next model call; then None is returned.
        """
        return await self.loop.append_widget_event(session, event)

    async def update_notebook(self, session: str, notes: Mapping[str, str]) -> Entry | None:
        """Replace everything that the notebook holds by ``notes``; as :meth:`append_widget_event`."""
        for widget in self._widgets:
            if isinstance(widget, MemoryNotebookWidget):
                return await self.append_widget_event(session, widget.replace_all(notes))
        raise AgentError(
            "ConfigInvalid", "this agent has no notebook; give it widgets=[MemoryNotebookWidget()]"
        )

    def memory(self, scope: str) -> Memory:
        """The notes that sessions share through ``MemoryNotebookWidget(scope=…)``, to read and edit."""
        parts = self.loop.parts
        secrets = self.loop.keyring.secrets()
        return Memory(self.store, scope, clock=parts.clock, ids=parts.ids, secrets=secrets)

    async def pending(self, session: str | None = None) -> list[PendingApproval]:
        """The calls that wait for a human, oldest first: in one session, or in all of the store."""
        return await (self.store.pending() if session is None else self.session(session).pending())

    async def decide(
        self,
        session: str,
        tool_call_id: str,
        action: Decision,
        *,
        by: str,
        arguments: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> ApprovalDecided:
        """As :meth:`Session.decide`."""
        handle = self.session(session)
        return await handle.decide(tool_call_id, action, by=by, arguments=arguments, note=note)

    async def close(self) -> None:
        """End the runs in progress as aborted, refuse new ones, and close what this agent opened itself."""
        try:
            await self.loop.close()
        finally:
            await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _check_no_loop(called: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AgentError(
        "ConfigInvalid", f"{called} was called inside a running event loop; use {instead!r} there"
    )
