"""Live implementations of the runner's ports: the model, the human, the context, hooks and
interruptions; and the secrets that are masked on the way."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from turnlog.approvals import ApprovalHandler, Decision, check_decision, expired, make_decision
from turnlog.assembly import MessageAssembler, MessageSnapshot
from turnlog.context import (
    CACHE_LIFETIME,
    ContextBuildResult,
    ContextInput,
    ContextUpdateInput,
    ModelContext,
    PictureCache,
)
from turnlog.contract import (
    APPROVAL,
    FINAL_ANSWER,
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    Clock,
    EntryPayload,
    ErrorInfo,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessageDelta,
    ModelInvocationDescriptor,
    RequestMetadata,
    RetryPolicy,
    RunStarted,
    Secrets,
    StreamError,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolCallArgsDelta,
    ToolChoice,
    ToolSpec,
    cost_of,
    is_empty_answer,
    is_guardable,
    owned_secrets,
    scrub,
)
from turnlog.history import CallState, SessionState, refuse_calls
from turnlog.models import Model, PromptPart
from turnlog.observe import get_logger
from turnlog.tools import ToolAnswer

from ._budget import Budget, Spent
from ._compact import Recaps
from ._decide import plan_retry, unfinished
from ._folds import Folds
from ._handoff import Handoff, is_handed
from ._options import joined
from ._phases import empty_output
from ._ports import (
    Batches,
    Collector,
    ModelCall,
    Outcome,
    Said,
)

_USUAL_ANSWER = 1000
"""Tokens that an answer is expected to have where ``max_tokens`` does not say."""


class LiveModel:
    def __init__(
        self,
        model: Model,
        pictures: PictureCache,
        clock: Clock,
        secrets: Secrets | None = None,
        assembler: Callable[[str], MessageAssembler] = MessageAssembler,
        budget: Budget | None = None,
        speaker: Handoff | None = None,
        invocation_state: JsonObject | None = None,
    ) -> None:
        self._model = model
        self._assembler = assembler
        self._secrets = secrets or Secrets()
        self._pictures = pictures
        self._budget = budget
        self._speaker = speaker
        self._clock = clock
        self._given = invocation_state

    def target(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        if self._budget is not None:
            self._budget.check()
        return self._model.target_for(metadata)

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        return self._model.ask_window(target)

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        return self._model.told_window(target)

    def _state(self, started: RunStarted | None) -> JsonObject | None:
        """As the caller gave it; a run that is taken over has what the log holds of it."""
        if self._given is not None:
            return self._given
        return started.invocation_state if started is not None else None

    async def open(self, call: ModelCall) -> tuple[Batches, Collector]:
        messages: Sequence[Message] = call.context.messages
        if call.state.has_images:
            messages = await self._pictures.attached(messages)  # the log only names their bytes
        deltas = self._model.stream(
            messages,
            call.context.tool_specs,
            call.context.system_prompt,
            tool_choice=self._choice(call),
            system_prompt_content=None if is_handed(self._speaker, call.state) else _prompt_parts(call),
            invocation_state=self._state(call.state.started),
            output_schema=self._schema(call.state.started),
            request_metadata=call.metadata,
            **self._params(call.state.started),
        ).batches
        target = call.state.open_call.target if call.state.open_call else self._model.descriptor
        if self._budget is not None and self._budget.is_shared:
            deltas = _in_turn(deltas, self._budget, self._expected(call, target))
        mask = DeltaMask(self._secrets) if self._secrets.forms else None
        if mask is not None:
            deltas = mask.mask(deltas)
        typed = call.state.started is not None and call.state.started.output_mode == "tool"
        return deltas, LiveCollector(self._assembler(call.metadata.run_id), target, mask, typed)

    def _params(self, started: RunStarted | None) -> dict[str, Any]:
        given = (started.model_params if started else None) or {}
        if self._speaker is not None:
            params = self._speaker.defaults.params
            given = params.to_fields() if params is not None else {}
        return {name: value for name, value in given.items() if name != "role"}

    def _expected(self, call: ModelCall, target: ModelInvocationDescriptor) -> Spent:
        """What a call may use: its prompt, as estimated, and an answer of the usual or the given length."""
        answer = self._params(call.state.started).get("max_tokens") or _USUAL_ANSWER
        tokens = call.context.stats.estimated_tokens
        usage = TokenUsage(input_tokens=tokens, output_tokens=answer, total_tokens=tokens + answer)
        return Spent(usage.total_tokens, cost_of(target, usage) or 0.0)

    def _schema(self, started: RunStarted | None) -> JsonObject | None:
        if started is None or started.output_schema is None or started.output_mode in ("tool", "text"):
            return None
        # A run may be resumed with another model than it was started with; its answer is checked anyway.
        held = started.output_mode is None or self._model.supports("output_schema")
        return started.output_schema if held else None

    def _choice(self, call: ModelCall) -> ToolChoice | None:
        """A forced choice holds for the first call of a run: forcing it again would never let the run end.
        A run that ends with a call is asked for one each time."""
        started = call.state.started
        choice = started.tool_choice if started else None
        if choice is None and started is not None and started.output_mode == "tool":
            return "required" if self._model.supports("forced_tool") else None
        if choice is None or choice in ("auto", "none") or call.metadata.model_call_index == 1:
            return choice
        return None

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None:
        return plan_retry(error, attempt, policy, random.random())

    async def wait(self, milliseconds: int) -> None:
        await self._clock.sleep(milliseconds / 1000)


async def _in_turn(batches: Batches, budget: Budget, expected: Spent) -> Batches:
    async with aclosing(batches), budget.turn(expected):
        async for deltas in batches:
            yield deltas


def _prompt_parts(call: ModelCall) -> list[PromptPart] | None:
    """The system prompt in the parts it was given in; what the context added to it comes last."""
    started, prompt = call.state.started, call.context.system_prompt or ""
    if started is None or not started.system_prompt_content:
        return None
    parts = [PromptPart(text=part.payload.text, cache=True) for part in started.system_prompt_content]
    rest = prompt.removeprefix(joined(started.system_prompt_content))
    return [*parts, PromptPart(text=rest)] if rest else parts


class LiveCollector:
    def __init__(
        self,
        assembler: MessageAssembler,
        target: ModelInvocationDescriptor,
        mask: DeltaMask | None = None,
        typed: bool = False,
    ) -> None:
        """``typed``: the answer is to be given by a call."""
        self._mask, self._typed = mask, typed
        self._assembler = assembler
        self._target = target
        self.consume = self._assembler.consume

    def snapshot(self) -> MessageSnapshot:
        return self._assembler.snapshot()

    def partial(self) -> str | None:
        return self._assembler.snapshot().text or None

    def outcome(self, timestamp: str) -> Outcome:
        assembler = self._assembler
        target = (assembler.start.target if assembler.start else None) or self._target
        usage = assembler.usage
        if usage is not None and usage.cost is None:
            cost = cost_of(target, usage)
            usage = assembler.usage = msgspec.structs.replace(usage, cost=cost)
        if assembler.error is not None:
            error = error_of(assembler.error)
            if self._typed and not error.retryable and error.code == "ModelProtocolError":
                # The one break of the grammar that no second try repairs: a call was cut by its length.
                error = unfinished("length") if repr(FINAL_ANSWER) in error.message else error
            return Outcome(
                error=error,
                shown=assembler.shown,
                partial=self.partial(),
                usage=usage,
                target=target,
            )
        done = assembler.finish(timestamp)
        if is_empty_answer(done.message, done.finish_reason):
            return Outcome(
                error=_nothing_said(done.finish_reason), shown=assembler.shown, usage=usage, target=target
            )
        return Outcome(
            message=done.message if self._mask is None else self._mask.marked(done.message),
            finish_reason=done.finish_reason,
            shown=assembler.shown,
            usage=usage,
            target=target,
            reason=assembler.start.reason if assembler.start else None,
        )


def error_of(error: StreamError) -> ErrorInfo:
    """A stream's error as the log keeps it."""
    meta = {"retry_after": error.retry_after} if error.retry_after is not None else None
    found = AgentError(
        error.error_code, scrub(error.message or error.error_code), retryable=error.retryable, meta=meta
    )
    return found.to_info()


def _nothing_said(finish_reason: str) -> ErrorInfo:
    if finish_reason == "content_filter":
        return AgentError("ModelContentFiltered", "the provider withheld the answer").to_info()
    if finish_reason == "length":
        return AgentError(
            "ModelEmptyOutput",
            "the model used up its output tokens before it said anything; raise max_tokens",
        ).to_info()
    return empty_output()


class LiveHuman:
    def __init__(self, handler: ApprovalHandler | None, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock
        self._asking: dict[str, asyncio.Future[ApprovalDecided | Decision | None]] = {}

    async def decide(self, calls: Sequence[CallState]) -> list[ApprovalDecided] | None:
        """Ask the handler, where there is one. What nobody decided in time is over without asking."""
        ends = {call.call.tool_call_id: self._expired(call) for call in calls}
        decisions = [end for end in ends.values() if end is not None]
        waiting = [call for call in calls if ends[call.call.tool_call_id] is None]
        if self._handler is None:
            return decisions or None
        for call in waiting:
            assert call.requested is not None
            given = await self._ask(self._handler, call.requested) if call.awaits_human else None
            if not call.awaits_human:
                continue  # decided elsewhere, before or while it was asked
            if given is None:
                return _still_asked(calls, decisions) or None
            now = self._clock.now()
            if isinstance(given, ApprovalDecided):
                check_decision(call.requested, given, now=now)
                decisions.append(given)
            else:
                decisions.append(make_decision(call.requested, given, by="handler", now=now))
        return _still_asked(calls, decisions)

    async def _ask(
        self, handler: ApprovalHandler, request: ApprovalRequested
    ) -> ApprovalDecided | Decision | None:
        asked = asyncio.ensure_future(_asked(handler, request))
        task = asyncio.current_task()
        cancelling = task.cancelling() if task is not None else 0
        self._asking[request.tool_call_id] = asked
        try:
            return await asked
        except asyncio.CancelledError:
            if task is None or task.cancelling() > cancelling or request.tool_call_id in self._asking:
                raise
            return None  # withdrawn
        finally:
            self._asking.pop(request.tool_call_id, None)

    def withdraw(self, tool_call_id: str) -> None:
        asked = self._asking.pop(tool_call_id, None)
        if asked is not None:
            asked.cancel()

    def _expired(self, call: CallState) -> ApprovalDecided | None:
        return expired(call.requested, self._clock.now()) if call.requested is not None else None


async def _asked(handler: ApprovalHandler, request: ApprovalRequested) -> ApprovalDecided | Decision | None:
    try:
        given = handler(request)
        return await given if inspect.isawaitable(given) else given
    except AgentError:
        raise
    except Exception as error:
        name = getattr(handler, "__name__", type(handler).__name__)
        raise AgentError(
            "HookFailed",
            f"the approval handler {name!r} raised {type(error).__name__}: {error}",
            cause=error,
        ) from error


def _still_asked(calls: Sequence[CallState], decisions: list[ApprovalDecided]) -> list[ApprovalDecided]:
    """Without those on calls that were decided elsewhere meanwhile: what the log says counts."""
    open_ids = {call.call.tool_call_id for call in calls if call.awaits_human}
    return [decided for decided in decisions if decided.tool_call_id in open_ids]


# ── the context: its manager asked at the right moments, with the screen and the hints of the moment ──


class LiveContext:
    def __init__(
        self,
        folds: Folds,
        clock: Clock,
        hints: JsonObject | None = None,
        recaps: Recaps | None = None,
    ) -> None:
        self._folds = folds
        self._clock = clock
        self._hints = hints
        self._recaps = recaps

    def build(
        self,
        state: SessionState,
        target: ModelInvocationDescriptor,
        specs: Sequence[ToolSpec],
        window: int | None = None,
    ) -> ContextBuildResult:
        """Folds when the context is past its threshold; earlier at a turn's end or on a cold cache."""
        return self._folds.context.build_context(
            ContextInput(
                target=target,
                tool_specs=specs,
                cold=self._is_cold(state),
                turn_end=state.call_index == 0,
                screen=self._folds.host.screen,
                window=window,
            )
        )

    def shrink(
        self, state: SessionState, step: int, target: ModelInvocationDescriptor
    ) -> Sequence[EntryPayload]:
        updates = self._folds.context.compute_context_updates(
            ContextUpdateInput(
                target=target, overflow_hint=True, overflow_step=step, screen=self._folds.host.screen
            )
        )
        return updates.entries_to_append

    def begin_recap(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        if self._recaps is not None:
            self._recaps.consider(self._folds, context, target)

    async def await_recap(self) -> None:
        if self._recaps is not None:
            await self._recaps.wait(self._folds.session.session_id)

    def _is_cold(self, state: SessionState) -> bool:
        if state.last_answer_at is None:
            return False
        try:
            then, now = (datetime.fromisoformat(text) for text in (state.last_answer_at, self._clock.now()))
        except ValueError:
            return False
        return (now - then).total_seconds() > CACHE_LIFETIME

    def input_sections(self, said: Said) -> LevelOfDetailSections | None:
        return self._folds.context.input_sections(
            said.message,
            summary=said.summary,
            gist=said.gist,
            sections=said.sections,
            hints=self._new_hints(),
            screen=self._folds.host.changes(),
        )

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None:
        changed = changed_by_human(call)
        return self._folds.context.result_sections(
            answer.content,
            summary=answer.summary,
            gist=answer.gist,
            sections=[(APPROVAL, changed)] if changed else (),
            hints=self._new_hints() if closes else None,
            screen=self._folds.host.changes() if closes else None,
        )

    def _new_hints(self) -> JsonObject | None:
        return self._hints


def changed_by_human(call: CallState) -> str | None:
    """What a model has to know of a result that is not of the arguments it gave: who changed which of them.

    Not what to: a purge of the decision must not leave that behind.
    """
    decided, asked = call.decided, call.requested
    if call.started is None or decided is None or decided.action != "modify" or asked is None:
        return None
    before, after = asked.arguments, decided.arguments or {}
    names = [name for name in {**before, **after} if _in(before, name) != _in(after, name)]
    if not names:
        return None
    return (
        f"{decided.decided_by} changed {', '.join(names)} before this ran; the result is of the changed call."
    )


def _in(arguments: JsonObject, name: str) -> tuple[bool, object]:
    return name in arguments, arguments.get(name)


# ── secrets: gathered from what an agent is made of, and masked in an answer as it streams ──

_replace = msgspec.structs.replace
_log = get_logger("loop")
_warned: set[str] = set()

_TextDelta: TypeAlias = TextDelta | ThinkingDelta | ToolCallArgsDelta


class Keyring:
    """What the owners' secrets are now: a key may be changed while its model is in use."""

    def __init__(self, owners: Iterable[object]) -> None:
        self._owners = tuple(owners)
        self._values: list[tuple[str, str]] = []
        self._secrets = Secrets()
        self.secrets()

    def add(self, owners: Iterable[object]) -> None:
        self._owners += tuple(each for each in owners if all(each is not known for known in self._owners))

    def secrets(self) -> Secrets:
        values = [pair for owner in self._owners for pair in owned_secrets(owner).items()]
        if values != self._values:
            self._values, self._secrets = values, Secrets(value for _, value in values)
            for name, value in values:
                if value and not is_guardable(value) and name not in _warned:
                    _warned.add(name)
                    _log.warning(
                        "%s is too short or too plain to differ from ordinary words: where it occurs in a "
                        "conversation it is not masked; use a random value of at least 16 characters",
                        name,
                    )
        return self._secrets


class DeltaMask:
    """Masks secrets in the deltas of one answer, also where one is cut into several of them.

    A delta that ends in what may be the beginning of a secret waits for the next one. ``calls`` are those
    whose arguments held one: what is left of the arguments is not what the model asked for.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held: list[_TextDelta] = []
        self._text = ""
        self.calls: set[str] = set()

    async def mask(self, batches: Batches) -> Batches:
        async with aclosing(batches):
            async for deltas in batches:
                if masked := self._masked(deltas):
                    yield masked
            if held := self._release():
                yield held

    def _masked(self, deltas: list[MessageDelta]) -> list[MessageDelta]:
        begins = self._secrets.begins.search
        masked: list[MessageDelta] = []
        for delta in deltas:
            if type(delta) is TextDelta or type(delta) is ThinkingDelta:
                text = delta.payload.text_delta
            elif type(delta) is ToolCallArgsDelta:
                text = delta.payload.args_text_delta
            else:
                masked += self._release()
                masked.append(delta)
                continue
            if not self._held and begins(text) is None:  # nearly all of them
                masked.append(delta)
            else:
                masked += self._take(delta, text)
        return masked

    def _take(self, delta: _TextDelta, text: str) -> list[MessageDelta]:
        before = self._release() if self._held and _place(delta) != _place(self._held[0]) else []
        self._held.append(delta)
        self._text += text
        return before if self._secrets.is_cut(self._text) else [*before, *self._release()]

    def _release(self) -> list[MessageDelta]:
        held, text = self._held, self._text
        if not held:
            return []
        self._held, self._text = [], ""
        masked = self._secrets.scrub(text)
        if masked == text:
            return [*held]
        if isinstance(held[0], ToolCallArgsDelta):
            self.calls.add(held[0].payload.tool_call_id)
        return [_with_text(delta, "" if place else masked) for place, delta in enumerate(held)]

    def marked(self, message: Message) -> Message:
        """``message``, and which of its calls are not to be run."""
        return refuse_calls(message, sorted(self.calls))


def _place(delta: _TextDelta) -> str:
    return delta.payload.tool_call_id if isinstance(delta, ToolCallArgsDelta) else delta.kind


def _with_text(delta: _TextDelta, text: str) -> MessageDelta:
    if isinstance(delta, ToolCallArgsDelta):
        return _replace(delta, payload=_replace(delta.payload, args_text_delta=text))
    return _replace(delta, payload=_replace(delta.payload, text_delta=text))
