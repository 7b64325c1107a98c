"""A call in, an answer out: arguments checked, time bounded, every failure a value."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

from turnlog.contract import HELD_SECRET, AgentError, Clock, JsonObject, ToolCallRequest, parse_arguments
from turnlog.system import SystemClock

from ._answer import ToolAnswer, ToolError, clean, failure, in_words
from ._body import Body, Threads, race
from ._context import ToolContext, changed, no_runtime, opened
from ._options import DEFAULT_TIMEOUT, NOT_RUN, Reconcile
from ._registry import Registry
from ._render import cut
from ._signature import is_async
from ._tool import Bound, Tool, invalid_text

_log = logging.getLogger("turnlog.tools")

_BASE_DELAY = 0.5
_MAX_DELAY = 10.0
_DEAD_RUNTIMES = ("failed", "closed")


class ToolExecutor:
    """Runs one call at a time for each caller; callers decide how many at once.

    ``execute`` raises nothing but CancelledError. Times are in seconds on the injected clock: ``timeout``
    for tools that set none, ``cancel_grace`` for a tool to end after it was told to.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock | None = None,
        *,
        timeout: float | None = 300.0,
        cancel_grace: float = 5.0,
        max_output: int = 100_000,
        max_threads: int = 64,
        max_stuck_threads: int = 1000,
    ) -> None:
        self._registry = registry
        self._clock: Clock = clock or SystemClock()
        self._timeout = timeout
        self._grace = cancel_grace
        self._max_output = max_output
        self._threads = Threads(max_threads, max_stuck_threads)
        self._signals: dict[str, set[asyncio.Future[str]]] = {}
        self._abandoned: set[asyncio.Task[Any]] = set()

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def running(self) -> list[str]:
        """The ids of the calls under way."""
        return list(self._signals)

    @property
    def abandoned(self) -> int:
        """Calls that were given up and still run: tasks that would not end, and stuck threads."""
        return len(self._abandoned) + self._threads.stuck

    def cancel(self, tool_call_id: str, reason: str = "the run was aborted") -> bool:
        """Stop a call: its ``execute`` returns within the grace time, with a ``ToolCancelled`` answer, or
        with the tool's own if it finished all the same. False when no such call is under way. May be called
        from any thread."""
        signals = tuple(self._signals.get(tool_call_id, ()))
        for signal in signals:
            with contextlib.suppress(RuntimeError):  # its loop is closed, and the call with it
                signal.get_loop().call_soon_threadsafe(_set, signal, reason)
        return bool(signals)

    def validate(self, call: ToolCallRequest) -> ToolAnswer | JsonObject:
        """The call's arguments if they can be run, else the answer that says why not. Runs nothing."""
        try:
            return self._checked(call)[1]
        except AgentError as error:
            return failure(call.tool_name, error)

    async def execute(self, call: ToolCallRequest, ctx: ToolContext) -> ToolAnswer:
        """Run one call. See the class; retries only what the tool declared harmless to repeat."""
        started = self._clock.monotonic()
        key = ctx.idempotency_key or call.tool_call_id
        if (ctx.tool_call_id, ctx.tool_name, ctx.idempotency_key) != (call.tool_call_id, call.tool_name, key):
            ctx = changed(ctx, tool_call_id=call.tool_call_id, tool_name=call.tool_name, idempotency_key=key)
        try:
            tool, arguments, bound = self._checked(call)
            self._require(tool, ctx)
            answer = _ending(tool, await self._attempts(tool, arguments, bound, ctx))
        except Exception as error:
            answer = failure(call.tool_name, error)
        if answer.traceback is not None:
            _log.debug("%s of tool %r failed:\n%s", call.tool_call_id, call.tool_name, answer.traceback)
        elapsed = max(round((self._clock.monotonic() - started) * 1000), 0)
        return answer.timed(elapsed)

    async def reconcile(
        self,
        call: ToolCallRequest | Tool,
        ctx: ToolContext,
        arguments: JsonObject | None = None,
    ) -> ToolAnswer | None:
        """Ask the tool what became of a call that was started and left no result. The call is given as it
        was recorded, or as its tool and the arguments it ran with.

        None when it cannot say, or failed to: the outcome stays unknown. When it says that the call had
        no effect, the call is run again, with the same key.
        """
        tool = call if isinstance(call, Tool) else self._registry.get(call.tool_name)
        ask = tool.reconcile if tool is not None else None
        if arguments is None and isinstance(call, ToolCallRequest):
            arguments = call.arguments
        if tool is None or ask is None or arguments is None:
            return None

        replies: list[Any] = []
        asking = Tool.from_schema(
            tool.name,
            "",
            {},
            _recording(ask, replies),
            timeout=tool.timeout,
            max_output=tool.max_output,
        )
        answer = await self._once(asking, asking.bind(arguments), ctx)
        if not replies or replies[-1] is None:
            return None
        if replies[-1] is NOT_RUN:
            again = ToolCallRequest(
                tool_name=tool.name, tool_call_id=ctx.tool_call_id, raw_arguments="", arguments=arguments
            )
            return await self.execute(again, changed(ctx, attempt=ctx.attempt + 1))
        return _ending(tool, answer)

    async def close(self) -> None:
        """Tell every call under way to stop."""
        for call_id in list(self._signals):
            self.cancel(call_id, "the executor was closed")

    # ── before the body ──

    def _checked(self, call: ToolCallRequest) -> tuple[Tool, JsonObject, Bound]:
        tool = self._registry.get(call.tool_name)
        if tool is None:
            raise self._not_found(call.tool_name)
        arguments, problem = call.arguments, call.parse_error
        if problem == HELD_SECRET:
            raise AgentError("ToolInvalidArgs", f"{call.tool_name!r} was not run: {problem}.")
        if arguments is None:
            parsed = parse_arguments(call.raw_arguments)
            arguments, problem = parsed.arguments, parsed.error or problem
            if arguments is None or problem:
                raise AgentError(
                    "ToolInvalidArgs",
                    f"The arguments of {call.tool_name!r} could not be read: {problem}. Nothing was run. "
                    "Send one complete JSON object with the fields of the tool's schema.",
                )
        bound = tool.bind(arguments)
        if bound.problems:
            raise AgentError("ToolInvalidArgs", invalid_text(tool.name, bound.problems))
        return tool, arguments, bound

    def _not_found(self, name: str) -> AgentError:
        names = self._registry.names
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return AgentError(
            "ToolNotFound", f"There is no tool {name!r}{hint or '.'} The tools are: {in_words(names)}."
        )

    def _require(self, tool: Tool, ctx: ToolContext) -> None:
        if tool.requires_runtime:
            if ctx.runtime is None:
                raise no_runtime(tool.name)
            if ctx.runtime.status in _DEAD_RUNTIMES:
                raise AgentError(
                    "RuntimeNotReady",
                    f"tool {tool.name!r} needs the runtime, which is {ctx.runtime.status}; do without this "
                    "tool until the runtime works again",
                )
        if tool.requires_agent and ctx.agent is None:
            raise AgentError(
                "ToolExecutionError",
                f"tool {tool.name!r} needs an agent and was called outside of one; run it through an Agent",
            )

    # ── the body ──

    async def _attempts(
        self, tool: Tool, arguments: JsonObject, bound: Bound, ctx: ToolContext
    ) -> ToolAnswer:
        tries = tool.retries + 1 if tool.rerunnable else 1
        for number in range(tries):
            if number:  # the try before may have changed the objects it was given
                bound = tool.bind(arguments)
                ctx = changed(ctx, attempt=ctx.attempt + 1)
            answer = await self._once(tool, bound, ctx)
            if not answer.retryable or number == tries - 1 or answer.error_code == "ToolCancelled":
                return replace(answer, retryable=False) if answer.retryable else answer
            delay = min(_BASE_DELAY * 2**number, _MAX_DELAY)
            if isinstance(answer.cause, ToolError) and answer.cause.retry_after is not None:
                delay = max(answer.cause.retry_after, 0.0)
            with self._signal(ctx.tool_call_id) as signal:
                await race(self._clock, {signal}, delay)
                if signal.done():
                    return ToolAnswer.failed("ToolCancelled", f"{tool.name!r}: {signal.result()}")
        raise AssertionError("unreachable: the last try returns")

    async def _once(self, tool: Tool, bound: Bound, ctx: ToolContext) -> ToolAnswer:
        ctx, channel = opened(ctx)
        limit = tool.max_output or self._max_output
        with self._signal(ctx.tool_call_id) as signal:
            body = Body(tool, bound.kwargs, ctx, channel, self._threads, limit)
            try:
                answer = await self._watch(tool, body, signal, limit)
            except asyncio.CancelledError:
                await self._end(body)
                raise
            finally:
                events = channel.close()
        if answer.status != "success" or not events:
            return answer
        return replace(answer, events=[*answer.events, *events])

    async def _watch(self, tool: Tool, body: Body, signal: asyncio.Future[str], limit: int) -> ToolAnswer:
        timeout: float | None = self._timeout if tool.timeout is DEFAULT_TIMEOUT else tool.timeout
        await race(self._clock, {body.task, signal}, timeout)
        if body.task.done():
            return body.answer()
        reason = signal.result() if signal.done() else None
        ended = await self._end(body)
        if reason is not None:
            if ended == "itself" and not body.answer().is_error:
                return body.answer()  # it happened: that is what the log must say
            return self._stopped(
                tool, "ToolCancelled", f"{tool.name!r} was stopped: {reason}", body, ended, limit
            )
        words = f"{tool.name!r} did not finish within {timeout:g} s and was stopped"
        return self._stopped(tool, "ToolTimeout", words, body, ended, limit)

    async def _end(self, body: Body) -> Literal["itself", "torn down", "running"]:
        """Stop a body: ask, wait for the grace time, then tear it down. Cancelled meanwhile: at once."""
        if body.task.done():
            return "itself"
        body.stop()
        try:
            if body.patient:
                await race(self._clock, {body.task}, self._grace)
            if body.task.done():
                return "itself"
            if await body.tear_down():
                return "torn down"
            return "running"
        except asyncio.CancelledError:
            body.close()
            raise
        finally:
            if not body.task.done():
                self._abandoned.add(body.task)
                body.task.add_done_callback(self._abandoned.discard)

    def _stopped(self, tool: Tool, code: str, words: str, body: Body, ended: str, limit: int) -> ToolAnswer:
        match ended:
            case "itself":
                answer = body.answer()
                if body.entered and not tool.rerunnable:
                    words += "; it may have taken effect"
                if not answer.is_error:
                    words += f". It answered when it was told to stop:\n{answer.text}"
                elif answer.error_code != "ToolCancelled":
                    words += f". It failed when it was told to stop: {answer.text}"
            case _:
                words += ", but it did not end when it was told to: it may still have effects"
        if body.output:
            words += f"\nOutput until then:\n{body.output}"
        text, whole = cut(clean(words), limit)
        return replace(ToolAnswer.failed(code, text), artifact=whole)

    def _signal(self, call_id: str) -> _Signal:
        return _Signal(self._signals, call_id)


class _Signal:
    """What ``cancel`` sets while a call is under way."""

    __slots__ = ("_all", "_call_id", "_signal")

    def __init__(self, all: dict[str, set[asyncio.Future[str]]], call_id: str) -> None:
        self._all = all
        self._call_id = call_id
        self._signal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> asyncio.Future[str]:
        self._all.setdefault(self._call_id, set()).add(self._signal)
        return self._signal

    def __exit__(self, *_: object) -> None:
        signals = self._all[self._call_id]
        signals.discard(self._signal)
        if not signals:
            del self._all[self._call_id]


def _ending(tool: Tool, answer: ToolAnswer) -> ToolAnswer:
    return replace(answer, ends_run=True) if tool.ends_run and answer.status == "success" else answer


def _set(signal: asyncio.Future[str], reason: str) -> None:
    if not signal.done():
        signal.set_result(reason)


def _recording(ask: Reconcile, replies: list[Any]) -> Callable[[JsonObject, ToolContext], Any]:
    """A ``reconcile`` function as the body of a tool, its reply kept: None has a meaning of its own."""

    def record(found: Any) -> Any:
        replies.append(found)
        return None if found is NOT_RUN else found

    async def record_later(found: Awaitable[Any]) -> Any:
        return record(await found)

    async def asked(arguments: JsonObject, ctx: ToolContext) -> Any:
        return record(await ask(ctx, arguments))

    def asked_now(arguments: JsonObject, ctx: ToolContext) -> Any:
        found = ask(ctx, arguments)
        return record_later(found) if inspect.isawaitable(found) else record(found)

    return asked if is_async(ask) else asked_now
