"""The way in: puts a model, tools, a store and policies together, and runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from turnlog.approvals import ApprovalPolicy, PendingApproval
from turnlog.context import ContextOptions
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    Entry,
    IdSource,
    LoopLimits,
    Message,
    MessagePart,
    RetryPolicy,
    RunEndedEvent,
    RunEvent,
    RunInput,
    RunResult,
    Runtime,
    Store,
    ToolChoice,
    ToolPolicy,
    WidgetEvent,
    user_message,
)
from turnlog.history import default_store_url, open_store
from turnlog.models import Model, load_model
from turnlog.observe import guard_environment
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import Tool, ToolExecutor, ToolRegistry
from turnlog.widgets import MemoryNotebookWidget, Widget

from . import _given as given
from ._agent_config import AgentConfig
from ._decisions import pending_calls
from ._hooks import Hooks
from ._lease import LEASE_TTL
from ._live import ApprovalHandler
from ._loop import AgentLoop, drain
from ._shared import memory_tools, widget_tools

Input = str | Message | Sequence[MessagePart]


class Agent:
    """A model, a context and an environment; every turn it takes is a line in its store.

    ``model`` is a :class:`Model` or a name (``"local"``, ``"anthropic:claude-…"``), ``store`` a store or a
    URL (``memory:``, ``jsonl:DIR``, ``sqlite:FILE``, ``postgresql://…``). Nothing is opened before its use.
    ``model_options`` are configuration for a model given by name. With ``recap`` a model (True: the same one)
    writes a recap in the background before the context has to be folded, and the fold uses it.

    One writer at a time: a run on a session where another run is going, here or in another process, is
    refused as ``SessionBusy``, or waits in line with ``on_busy="wait"``. ``lease_ttl`` is how many seconds a
    session stays closed to other machines after its process died.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        model_options: dict[str, Any] | None = None,
        tools: Sequence[Tool | Callable[..., Any]] | None = (),
        store: Store | str | None = None,
        instructions: str | None = None,
        name: str | None = None,
        config: AgentConfig | None = None,
        tool_policy: ToolPolicy | None = None,
        limits: LoopLimits | None = None,
        retry: RetryPolicy | None = None,
        tool_choice: ToolChoice | None = None,
        approval: ApprovalPolicy | None = None,
        on_approval: ApprovalHandler | None = None,
        approval_ttl: float | None = None,
        context: ContextOptions | None = None,
        widgets: Sequence[Widget[Any]] | None = (),
        recap: Model | str | bool = False,
        hooks: Hooks | None = None,
        runtime: Runtime | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        on_busy: Literal["refuse", "wait"] = "refuse",
        lease_ttl: float = LEASE_TTL,
    ) -> None:
        guard_environment()
        config = given.check_kind("config", config, AgentConfig, "an AgentConfig") or AgentConfig()
        self.name = given.check_kind("name", name, str, "text") or config.name
        self.model = _load(model, model_options)
        self.store: Store = _open(config.store if store is None else store)
        given.check_kind("instructions", instructions, str, "text")
        self.instructions = instructions if instructions is not None else config.instructions
        given.check_value("tool_policy", tool_policy, ToolPolicy)
        given.check_value("limits", limits, LoopLimits)
        given.check_value("retry", retry, RetryPolicy)
        given.check_value("context", context, ContextOptions)
        given.check_choice(tool_choice)
        given.check_duck("approval", approval, "evaluate", "a policy, as RulePolicy([…])")
        given.check_duck("on_approval", on_approval, "__call__", "a function that takes the request")
        given.check_kind("hooks", hooks, Hooks, "Hooks(…)")
        self.tool_policy = tool_policy or config.tool_policy
        self.limits = limits or config.limits
        self.retry = retry or config.retry
        self.tool_choice: ToolChoice | None = tool_choice
        self.clock: Clock = clock or SystemClock()
        self.ids: IdSource = ids or SystemIds()
        self._recap = self._recap_model(recap)
        self._widgets = given.check_widgets(widgets or ())
        given.check_list("tools", tools or ())
        registry = ToolRegistry([*(tools or ()), *widget_tools(self._widgets), *memory_tools()])
        self.loop = AgentLoop(
            model=self.model,
            store=self.store,
            registry=registry,
            executor=ToolExecutor(registry, clock=self.clock),
            approval=approval,
            on_approval=on_approval,
            options=context or config.context,
            hooks=hooks or Hooks(),
            runtime=runtime,
            widgets=self._widgets,
            clock=self.clock,
            ids=self.ids,
            agent=self,
            approval_ttl=approval_ttl,
            recap=self._recap,
            on_busy=on_busy,
            lease_ttl=lease_ttl,
        )

    def _recap_model(self, recap: Model | str | bool) -> Model | None:
        if isinstance(recap, bool):
            return self.model if recap else None
        return _load(recap, None, "recap")

    # ── running ──

    def run_stream(
        self,
        text: Input,
        *,
        session: str | None = None,
        run_id: str | None = None,
        instructions: str | None = None,
        allowed_tools: list[str] | None = None,
        tool_choice: ToolChoice | None = None,
        limits: LoopLimits | None = None,
        runtime_init_data: dict[str, Any] | None = None,
        runtime_hints: dict[str, Any] | None = None,
        after: int = 0,
        title: str | None = None,
        session_metadata: dict[str, Any] | None = None,
        **model_params: Any,
    ) -> AsyncGenerator[RunEvent, None]:
        """Run, and watch. Driven by its consumer: closing it early aborts the run and keeps the session.

        Events are numbered from ``after`` + 1: hand in the number of the last one that your clients saw, and
        a client that reconnects with its own last number gets every later one, over several streams.

        ``title`` and ``session_metadata`` go into the header of a session that this run makes; for one that
        is there already another title, or other metadata, is refused.
        """
        message = text if isinstance(text, Message) else user_message(text)
        given.check_params(model_params)
        given.check_value("limits", limits, LoopLimits)
        given.check_choice(tool_choice)
        run = RunInput(
            session_id=self.ids.session() if session is None else session,
            run_id=self.ids.run() if run_id is None else run_id,
            input_messages=[message],
            system_prompt_override=instructions,
            allowed_tools=allowed_tools,
            tool_policy=self.tool_policy,
            loop_limits=limits or self.limits,
            retry=self.retry,
            tool_choice=self.tool_choice if tool_choice is None else tool_choice,
            runtime_init_data=runtime_init_data,
            runtime_hints=runtime_hints,
            model_params=model_params or None,
            agent_name=self.name,
            title=given.check_kind("title", title, str, "text"),
            session_metadata=given.check_kind("session_metadata", session_metadata, dict, "a dict"),
        )
        return self.loop.run_stream(run, instructions=self.instructions, after=after)

    async def run(self, text: Input, *, session: str | None = None, **options: Any) -> RunResult:
        """``run_stream``, drained. A run that failed is a result with ``last_error``, not an exception."""
        return await drain(self.run_stream(text, session=session, **options))

    def run_sync(self, text: Input, *, session: str | None = None, **options: Any) -> RunResult:
        """``run`` for code without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(text, session=session, **options))
        raise AgentError(
            "ConfigInvalid", "run_sync was called inside a running event loop; use 'await agent.run(…)' there"
        )

    def resume_stream(self, session: str, *, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Go on with the run that a crash, a pause or a wait for approval left open.

        Events are numbered from ``after`` + 1, as in :meth:`run_stream`. Nothing comes when no run is open.
        """
        return self.loop.resume_stream(session, after=after)

    async def resume(self, session: str) -> RunResult | None:
        """``resume_stream``, drained; None when no run is open."""
        result: RunResult | None = None
        async with aclosing(self.resume_stream(session)) as events:
            async for event in events:
                if isinstance(event, RunEndedEvent):
                    result = event.payload.result
        return result

    # ── while it runs ──

    async def abort(self, run_id: str, reason: str = "aborted by the caller") -> bool:
        """Stop a run of this agent at its next await point. False when it is not running here."""
        return self.loop.abort(run_id, reason)

    async def pause(self, run_id: str) -> bool:
        """Let a run go before its next step, without ending it; ``resume`` goes on with it."""
        return self.loop.pause(run_id)

    async def send(self, session: str, text: Input) -> None:
        """Say something to a run that is going: it enters before the next model call.

        When the run ends before that, it is in the log for the next one; when it is let go (a pause, a wait
        for approval), this agent keeps it in memory until the run is resumed. Raises ``SessionNotFound`` when
        no run is going here, and refuses what cannot be said.
        """
        message = text if isinstance(text, Message) else user_message(text)
        self.loop.steer(session, message)

    async def append_widget_event(self, session: str, event: WidgetEvent) -> Entry | None:
        """Change a widget from outside: the event goes into the log, and the screen follows from it.

        Between runs it is written at once, and returned. While a run is going here it is handed to that run,
        which takes it in before its next model call, or leaves it for its end; then None is returned.
        """
        return await self.loop.append_widget_event(session, event)

    async def update_notebook(self, session: str, notes: Mapping[str, str]) -> Entry | None:
        """Put ``notes`` in the place of all that the notebook holds; as :meth:`append_widget_event`."""
        for widget in self._widgets:
            if isinstance(widget, MemoryNotebookWidget):
                return await self.append_widget_event(session, widget.replace_all(notes))
        raise AgentError(
            "ConfigInvalid", "this agent has no notebook; give it widgets=[MemoryNotebookWidget()]"
        )

    async def pending(self, session: str) -> list[PendingApproval]:
        """What waits for a human in a session, oldest first; empty when nothing does.

        Each says the call, its tool and arguments, the digest that a decision is bound to, when it was asked
        (``requested_at``) and until when it may be decided (``expires_at``).
        """
        return await pending_calls(self.store, session)

    async def decide(
        self,
        session: str,
        tool_call_id: str,
        action: str,
        *,
        by: str,
        arguments: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> ApprovalDecided:
        """Record a decision on a call that waits for approval; ``resume`` then goes on with the run.

        A run of this agent that is still going and waits for it takes it up and goes on by itself. Arguments
        to run instead are checked first. Raises ``ApprovalInvalid`` for what cannot be decided (the call goes
        on waiting), ``ApprovalExpired``, and ``SessionBusy`` while a run elsewhere has the session.
        """
        return await self.loop.decide(session, tool_call_id, action, by=by, arguments=arguments, note=note)

    async def close(self) -> None:
        """Close the models and the store."""
        await self.model.close()
        if self._recap is not None and self._recap is not self.model:
            await self._recap.close()
        await self.store.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _load(model: Model | str, options: dict[str, Any] | None, what: str = "model") -> Model:
    given.check_kind("model_options", options, dict, "a dict of the model's configuration")
    if isinstance(model, str):
        return load_model(model, **(options or {}))
    given.check_model(model, what)
    return model


def _open(store: Store | str | None) -> Store:
    if store is None:
        return open_store(default_store_url())
    given.check_store(store)
    return open_store(store) if isinstance(store, str) else store
