"""The one way into the log: a method for each thing that can have happened. The bytes of images are kept
apart, and secrets masked."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from ..contract import (
    HELD_SECRET,
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    BranchSummary,
    Clock,
    CompactionSummary,
    Custom,
    CustomEntry,
    DeltaBatch,
    Entry,
    EntryPayload,
    FileRefPart,
    Fold,
    IdSource,
    ImagePart,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessageDelta,
    MessagePart,
    ModelCallFailed,
    ModelCallStarted,
    ModelChange,
    ModelInput,
    ModelInputEntry,
    ModelOutput,
    ModelOutputEntry,
    Purge,
    Redaction,
    RunEnded,
    RunStarted,
    RuntimeInit,
    Sealed,
    Secrets,
    Store,
    StoredEntry,
    SystemPrompt,
    ToolAnswered,
    ToolDeferred,
    ToolOutcome,
    ToolResultPart,
    ToolResults,
    ToolResultsEntry,
    ToolsChange,
    ToolSpec,
    ToolStarted,
    WidgetEvent,
    decode,
    digest,
    encode,
    find_unjson,
    is_empty_answer,
    seal,
    tool_result_part,
)
from ._state import CONTINUED, PAUSED, SessionState


class Appends:
    """Each method checks against the state, gives the entry its place, stages it and returns it;
    ``Session.commit`` writes.

    Raises ``InvalidEntry``, ``InvalidMessage`` or ``MetaTooLarge`` (and ``ApprovalInvalid`` for a decision
    nobody asked for); then nothing is staged.
    """

    state: SessionState

    def _stage(
        self, payload: EntryPayload, meta: JsonObject | None = None, *, run_id: str | None = None
    ) -> Entry:
        raise NotImplementedError

    def _known_ids(self) -> frozenset[str] | set[str]:
        raise NotImplementedError

    # Runs

    def start_run(self, run_id: str, started: RunStarted) -> Entry:
        check_run_start(self.state, run_id)
        return self._stage(started, run_id=run_id)

    def end_run(self, ended: RunEnded) -> Entry:
        check_run_end(self.state)
        return self._stage(ended)

    def pause_run(self) -> Entry:
        """The run stays open and nobody drives it; its next step ends the pause."""
        if not self.state.is_open:
            raise invalid("no run is open, so none can be paused")
        return self._stage(Custom(name=PAUSED, data={}))

    def continue_call(self, tool_call_id: str) -> Entry:
        """The child session that a call waits for can continue: the call is made again."""
        call = self.state.calls.get(tool_call_id)
        if call is None or call.answered or call.deferred is None or call.child is None:
            raise invalid(f"call {tool_call_id} does not wait for a child session")
        return self._stage(Custom(name=CONTINUED, data={"toolCallId": tool_call_id}))

    # The conversation

    def append_model_input(
        self,
        message: Message,
        *,
        sections: LevelOfDetailSections | None = None,
        source: Literal["user", "steering", "correction", "host"] = "user",
        authored: bool = False,
        meta: JsonObject | None = None,
    ) -> Entry:
        """``authored`` says that a level of detail in ``sections`` was given with the input."""
        check_input(message)
        payload = ModelInput(message=message, sections=sections, source=source, authored=authored or None)
        return self._stage(payload, meta)

    def start_model_call(self, started: ModelCallStarted) -> Entry:
        return self._stage(started)

    def fail_model_call(self, failed: ModelCallFailed) -> Entry:
        return self._stage(failed)

    def append_model_output(self, output: ModelOutput, *, meta: JsonObject | None = None) -> Entry:
        check_output(self.state, output)
        return self._stage(output, meta)

    def append_tool_results(self, results: ToolResults, *, meta: JsonObject | None = None) -> Entry:
        check_results(self.state, results)
        return self._stage(results, meta)

    def fail_open_calls(
        self,
        reason: str,
        *,
        status: Literal["failed", "skipped", "denied", "unknown"] = "failed",
        error_code: str | None = None,
        unmatched: Sequence[str] = (),
    ) -> Entry | None:
        """One result for every open call, each with ``reason`` as its text; None when no call is open.

        ``unmatched`` names results that came back and fit no open call: they are noted in meta.
        """
        calls = [call.call for call in self.state.open_calls]
        if not calls:
            return None
        parts = [tool_result_part(call.tool_call_id, reason, is_error=True) for call in calls]
        outcomes = [
            ToolOutcome(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status=status,
                error_code=error_code,
            )
            for call in calls
        ]
        message = Message(run_id="", role="tool", parts=list(parts), timestamp="")
        results = ToolResults(message=message, outcomes=outcomes, execute_error=reason)
        meta = {"unmatched_results": list(unmatched)[:20]} if unmatched else None
        return self.append_tool_results(results, meta=meta)

    # Tools and approvals

    def change_tools(self, tools: Sequence[ToolSpec]) -> Entry:
        names = [tool.name for tool in tools]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise invalid(f"two tools share a name: {', '.join(twice)}; rename one")
        return self._stage(ToolsChange(tools=list(tools)))

    def start_tool(self, started: ToolStarted) -> Entry:
        check_tool_start(self.state, started)
        return self._stage(started)

    def defer_tool(self, deferred: ToolDeferred) -> Entry:
        """The tool ran and its answer comes later, from outside; the call stays open."""
        _check_open(self.state, deferred.tool_call_id, "an answer is put off")
        return self._stage(deferred)

    def answer_tool(self, answered: ToolAnswered) -> Entry:
        """What the tool asked for, or that nobody gives it; the call is run again with it."""
        call = self.state.calls.get(answered.tool_call_id)
        if call is None or call.answered or call.deferred is None or call.deferred.state is None:
            raise invalid(f"call {answered.tool_call_id} asks for nothing that it could be run again with")
        _check_json("the answer", {"content": answered.content})
        return self._stage(answered)

    def request_approval(self, requested: ApprovalRequested) -> Entry:
        check_approval_request(self.state, requested)
        return self._stage(requested)

    def decide_approval(self, decided: ApprovalDecided) -> Entry:
        check_approval_decision(self.state, decided)
        return self._stage(decided)

    # What the model is and is told

    def change_model(self, change: ModelChange) -> Entry:
        return self._stage(change)

    def init_runtime(self, data: JsonObject) -> Entry:
        _check_json("runtime data", data)
        return self._stage(RuntimeInit(data=data))

    def set_system_instruction(self, text: str) -> Entry:
        return self._stage(SystemPrompt(text=text))

    def append_widget_event(self, event: WidgetEvent) -> Entry:
        if not event.widget or not event.event:
            raise invalid("a widget event needs the widget's name and the event's")
        _check_json(f"event {event.event!r} of widget {event.widget!r}", event.data)
        return self._stage(event)

    def append_fold(self, fold: Fold) -> Entry:
        return self._stage(fold)

    def append_compaction(self, summary: CompactionSummary) -> Entry:
        if not summary.summary.strip():
            raise invalid("a compaction summary is empty")
        return self._stage(summary)

    def append_branch_summary(self, summary: BranchSummary) -> Entry:
        return self._stage(summary)

    # Bookkeeping

    def redact(
        self,
        entry_ids: Sequence[str],
        reason: str | None = None,
        by: str | None = None,
        *,
        trimmed: dict[str, str] | None = None,
    ) -> Entry:
        """Hide the named entries' content from every view, export and future context.

        ``turnlog.loop.redact_entries`` looks for copies of it first, and names those too.
        """
        missing = [id for id in entry_ids if id not in self._known_ids()]
        if missing or not entry_ids:
            raise invalid(
                f"nothing to redact: no entry of this session has the id {', '.join(missing) or '-'}"
            )
        return self._stage(Redaction(entry_ids=list(entry_ids), trimmed=trimmed, reason=reason, by=by))

    def append_purge(
        self,
        entry_ids: Sequence[str],
        reason: str | None = None,
        by: str | None = None,
        *,
        trimmed: dict[str, str] | None = None,
    ) -> Entry:
        """Record that content is being erased. ``turnlog.history.purge`` calls this, and then erases."""
        return self._stage(Purge(entry_ids=list(entry_ids), trimmed=trimmed, reason=reason, by=by))

    def append_custom(self, name: str, data: JsonObject, *, meta: JsonObject | None = None) -> Entry:
        """Keep something of the host's own with the session. No model ever sees it."""
        if not name:
            raise invalid("a custom entry needs a name")
        _check_json(f"custom entry {name!r}", data)
        return self._stage(Custom(name=name, data=data), meta)

    def append_deltas(self, model_call_index: int, attempt: int, deltas: Sequence[MessageDelta]) -> Entry:
        plain: list[JsonObject] = [msgspec.to_builtins(delta) for delta in deltas]
        return self._stage(DeltaBatch(model_call_index=model_call_index, attempt=attempt, deltas=plain))


# What may come next. Each check raises an error that states why an entry may not.


def check_run_start(state: SessionState, run_id: str) -> None:
    if not run_id:
        raise invalid("a run needs an id")
    if state.current_run is not None:
        raise invalid(
            f"run {state.current_run!r} has not ended, so run {run_id!r} cannot start; "
            "resume the open run, or end it first"
        )
    if run_id in state.run_ids:
        raise invalid(f"run {run_id!r} has been in this session before; a run id is used once")


def check_run_end(state: SessionState) -> None:
    if state.current_run is None:
        raise invalid("no run is open, so none can end")
    if state.open_calls:
        raise invalid(
            f"the run cannot end while calls have no result: {_open_ids(state)}; "
            "append their results, or fail_open_calls first"
        )


def check_input(message: Message) -> None:
    """Raises ``InvalidEntry`` for what no model could be told: another role's message, or an empty one."""
    if message.role not in ("user", "system"):
        raise invalid(f"a model's input is a user or system message, this one's role is {message.role}")
    if not any(part.kind in ("image", "file_ref") for part in message.parts) and not message.text.strip():
        raise invalid("the input is empty: it has no text, image or file")


def check_output(state: SessionState, output: ModelOutput) -> None:
    message, by = output.message, output.invocation
    if message.role != "assistant":
        raise invalid(f"a model's output is an assistant message, this one's role is {message.role}")
    if not (by.provider_id and by.specification and by.model):
        raise invalid("a model's output needs its invocation: provider id, specification and model")
    if state.open_calls:
        raise invalid(
            f"the calls {_open_ids(state)} have no result yet; "
            "a model's output comes after all results of the one before it"
        )
    calls = message.tool_calls
    if is_empty_answer(message, output.finish_reason):
        raise invalid(
            "a model's output holds neither text nor calls; record it as a failed model call "
            "(ModelEmptyOutput), which may be tried again"
        )
    seen: set[str] = set()
    for part in calls:
        id, name = part.payload.tool_call_id, part.payload.tool_name
        if not id or not name:
            raise invalid(f"a tool call needs an id and a name; found id {id!r}, name {name!r}")
        if id in seen or id in state.call_ids:
            raise invalid(f"call id {id!r} is already used in this session; call ids are unique in it")
        seen.add(id)


def check_results(state: SessionState, results: ToolResults) -> None:
    parts = results.message.tool_results
    if results.message.role != "tool" or not parts:
        raise invalid(
            f"tool results are a tool message with at least one result; "
            f"this is a {results.message.role} message with {len(parts)}"
        )
    ids = [part.payload.tool_call_id for part in parts]
    outcomes = [outcome.tool_call_id for outcome in results.outcomes]
    if ids != outcomes:
        raise invalid(f"results and outcomes do not line up: results for {ids}, outcomes for {outcomes}")
    for place, id in enumerate(ids):
        call = state.calls.get(id)
        if call is not None and not call.answered and id not in ids[:place]:
            continue
        if id in state.call_ids:
            raise invalid(f"call {id!r} has a result already; a call has one result")
        raise invalid(
            f"result for call {id!r}, which is not open in this session; open calls: "
            f"{_open_ids(state) or 'none'}"
        )


def check_tool_start(state: SessionState, started: ToolStarted) -> None:
    _check_open(state, started.tool_call_id, "a tool starts")
    last = state.calls[started.tool_call_id].started
    before = last.attempt if last is not None else 0
    if started.attempt <= before:
        raise invalid(
            f"attempt {started.attempt} of call {started.tool_call_id!r} has started already "
            f"(the last was {before}); each attempt starts once"
        )


def check_approval_request(state: SessionState, requested: ApprovalRequested) -> None:
    _check_open(state, requested.tool_call_id, "an approval is asked for")
    if state.calls[requested.tool_call_id].awaits_human:
        raise invalid(f"an approval of call {requested.tool_call_id!r} is pending already")


def check_approval_decision(state: SessionState, decided: ApprovalDecided) -> None:
    call = state.calls.get(decided.tool_call_id)
    if call is None or call.requested is None or not call.awaits_human:
        pending = ", ".join(call.call.tool_call_id for call in state.awaiting)
        raise AgentError(
            "ApprovalInvalid",
            f"no approval of call {decided.tool_call_id!r} is pending; it was decided already, or never "
            f"asked for; pending: {pending or 'none'}",
        )
    if call.requested.digest != decided.digest:
        raise AgentError(
            "ApprovalInvalid",
            f"the decision on call {decided.tool_call_id!r} is bound to other content than what was "
            "asked for; show the request again and decide on that",
        )


def _check_open(state: SessionState, call_id: str, what: str) -> None:
    call = state.calls.get(call_id)
    if call is None or call.answered:
        raise invalid(
            f"{what} for call {call_id!r}, which is not open in this session; open calls: "
            f"{_open_ids(state) or 'none'}"
        )


def _open_ids(state: SessionState) -> str:
    return ", ".join(call.call.tool_call_id for call in state.open_calls)


def _check_json(what: str, data: JsonObject) -> None:
    if found := find_unjson(data):
        raise invalid(f"{what}: {found}")


def invalid(message: str) -> AgentError:
    return AgentError("InvalidEntry", message)


# ── images and files: their bytes live beside the log, once each; entries name them ──

Bearer: TypeAlias = ImagePart | FileRefPart
PREFIX = "blob:"
_NAME = re.compile(r"blob:(sha256-[0-9a-f]{64})")
_replace = msgspec.structs.replace


def detach_images(message: Message, found: dict[str, bytes]) -> Message:
    """``message`` with the data of images and files replaced by names; the bytes go into ``found`` by
    name."""
    if not any(inner.payload.data is not None for part in message.parts for inner in _bearers(part)):
        return message
    return _replace(
        message, parts=[_each(part, lambda inner: _detach(inner, found)) for part in message.parts]
    )


def named_blobs(entry: Entry) -> set[str]:
    """Names of the stored bytes that belong to an entry: its images and files, outputs that were kept apart,
    and what a host's own entry names as ``blob:sha256-…``."""
    if isinstance(entry, CustomEntry):
        return set(_NAME.findall(encode(entry.payload.data).decode()))
    if not isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
        return set()
    found: set[str] = set()
    for part in entry.payload.message.parts:
        urls = (inner.payload.url or "" for inner in _bearers(part))
        found |= {url.removeprefix(PREFIX) for url in urls if url.startswith(PREFIX)}
    if isinstance(entry, ToolResultsEntry):
        found |= {outcome.artifact for outcome in entry.payload.outcomes if outcome.artifact is not None}
    return found


async def attach_images(store: Store, message: Message) -> Message:
    """``message`` with the bytes of its images and files in place again, as a provider wants them."""
    data: dict[str, str] = {}
    for part in message.parts:
        for inner in _bearers(part):
            url = inner.payload.url
            if url is not None and url.startswith(PREFIX):
                data[url] = base64.b64encode(await store.get_blob(url.removeprefix(PREFIX))).decode()
    if not data:
        return message
    return _replace(
        message, parts=[_each(part, lambda inner: _attach(inner, data)) for part in message.parts]
    )


def _bearers(part: MessagePart) -> list[Bearer]:
    """What in ``part`` may have bytes."""
    content = part.payload.content if isinstance(part, ToolResultPart) else [part]
    return [inner for inner in content if isinstance(inner, Bearer)] if isinstance(content, list) else []


def _each(part: MessagePart, change: Callable[[Bearer], Bearer]) -> MessagePart:
    if isinstance(part, Bearer):
        return change(part)
    if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
        content = [change(inner) if isinstance(inner, Bearer) else inner for inner in part.payload.content]
        return _replace(part, payload=_replace(part.payload, content=content))
    return part


def _detach(part: Bearer, found: dict[str, bytes]) -> Bearer:
    if part.payload.data is None:
        return part
    what = "an image" if isinstance(part, ImagePart) else f"the file {part.payload.path!r}"
    try:
        data = base64.b64decode(part.payload.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AgentError(
            "InvalidMessage", f"the data of {what} is not base64: {error}; encode the bytes", cause=error
        ) from error
    name = f"sha256-{digest(data)}"
    found[name] = data
    return _replace(part, payload=_replace(part.payload, data=None, url=PREFIX + name))


def _attach(part: Bearer, data: Mapping[str, str]) -> Bearer:
    found = data.get(part.payload.url or "")
    return part if found is None else _replace(part, payload=_replace(part.payload, data=found, url=None))


# ── secrets: none reaches the log, and no call runs with arguments that were masked ──


def scrub_payload(payload: EntryPayload, secrets: Secrets) -> EntryPayload:
    """``payload`` with every secret masked, wherever in it a text stands.

    Arguments that run are never altered: a call that a model made with a secret is marked as one not to be
    run, and a decision that puts one into a call is refused as ``ApprovalInvalid``.
    """
    plain = msgspec.json.decode(encode(payload))
    masked = decode(encode(secrets.scrub_json(plain)), type(payload))
    if isinstance(payload, ApprovalDecided) and isinstance(masked, ApprovalDecided):
        _check_decision(payload, masked)
    if isinstance(payload, ModelOutput) and isinstance(masked, ModelOutput):
        held = [
            call.payload.tool_call_id
            for call, hidden in zip(payload.message.tool_calls, masked.message.tool_calls, strict=True)
            if call.payload != hidden.payload
        ]
        return _replace(masked, message=refuse_calls(masked.message, held))
    return masked


def _check_decision(decided: ApprovalDecided, masked: ApprovalDecided) -> None:
    if decided.arguments != masked.arguments:
        raise AgentError(
            "ApprovalInvalid",
            f"the changed arguments of call {decided.tool_call_id} hold a secret of this agent, which the "
            "log may not keep; change them without it",
        )


def refuse_calls(message: Message, call_ids: Iterable[str]) -> Message:
    """Mark calls of ``message`` that are not to be run: their arguments held a secret."""
    errors = dict.fromkeys(call_ids, HELD_SECRET)
    if not errors:
        return message
    meta = message.meta or {}
    return _replace(message, meta={**meta, "parse_errors": {**meta.get("parse_errors", {}), **errors}})


def seal_after(
    last: Entry | None,
    payload: EntryPayload,
    session_id: str,
    id: str,
    now: str,
    run_id: str | None,
    meta: JsonObject | None,
    secrets: Secrets,
) -> Sealed:
    """The entry that follows ``last``, without a secret in it."""
    place: dict[str, Any] = {
        "id": id,
        "previous_id": last.id if last else None,
        "previous_hash": last.hash if last else "",
        "session_id": session_id,
        "seq": last.seq + 1 if last else 1,
        "timestamp": now,
        "run_id": run_id,
    }
    sealed = seal(payload, **place, meta=meta)
    if secrets.may_be_in(sealed.stored.body):
        sealed = seal(scrub_payload(payload, secrets), **place, meta=secrets.scrub_json(meta))
    return sealed


def seal_entries(
    session_id: str,
    payloads: Sequence[EntryPayload],
    *,
    clock: Clock,
    ids: IdSource,
    after: Entry | None = None,
    run_id: str | None = None,
    meta: JsonObject | None = None,
    secrets: Secrets | None = None,
) -> list[StoredEntry]:
    """These payloads as the entries that follow ``after`` in a session's log, ready for ``Store.append``: for
    what is written without a session, as an import is."""
    made: list[StoredEntry] = []
    for payload in payloads:
        sealed = seal_after(
            after, payload, session_id, ids.entry(), clock.now(), run_id, meta, secrets or Secrets()
        )
        made.append(sealed.stored)
        after = sealed.entry
    return made
