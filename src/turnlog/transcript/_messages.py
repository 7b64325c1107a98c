"""Conversations of other systems: their messages as entries of a log, and a log as their messages."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, overload

import msgspec

from turnlog.contract import (
    SCHEMA_VERSION,
    AgentError,
    Clock,
    Entry,
    EntryPayload,
    FileRefPart,
    IdSource,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    ModelInput,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutput,
    ModelOutputEntry,
    Secrets,
    SessionHeader,
    Store,
    SystemPrompt,
    SystemPromptEntry,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
    ToolResults,
    ToolResultsEntry,
    digest,
    owned_secrets,
    text_part,
    tool_result_part,
)
from turnlog.history import log_written, seal_entries, visible_entries
from turnlog.system import SystemClock, SystemIds

from ._formats import READERS, WRITERS, Said, find_format, refuse

MessageFormat: TypeAlias = Literal["openai", "anthropic", "langchain"]
"""OpenAI Chat Completions, Anthropic Messages, and what LangChain's ``messages_to_dict`` gives."""

_replace = msgspec.structs.replace
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NO_RESULT = "No result of this call was imported."


async def import_messages(
    store: Store,
    session_id: str,
    messages: Sequence[Any] | Mapping[str, Any],
    *,
    format: MessageFormat | Literal["auto"] = "auto",
    title: str | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> str:
    """Make a new session of a conversation that another system had; returns ``session_id``.

    Every entry says in its meta that it was imported, and from what; times are those of the import. Nothing
    is recorded that is not in the messages: no run, no model call, no tool that started. A call without a
    result gets one that says so. Call ids that a log cannot hold, or holds already, are replaced.

    ``messages`` is the list, or the whole request with ``system`` or ``instructions`` beside it; items of
    OpenAI's Responses are taken too. ``format="auto"`` tells the systems apart by how they spell things.
    Raises ``InvalidMessage``, with the place of the message that cannot be read, and ``InvalidEntry`` when
    the session exists. The whole conversation is written, or nothing.
    """
    ids = ids or SystemIds()
    if await store.tail(session_id) is not None:
        raise AgentError("InvalidEntry", f"session {session_id!r} exists already; import under another id")
    known = cast("MessageFormat", find_format(messages)) if format == "auto" else format
    maker = _Maker(known, ids)
    for place, said in enumerate(_reader(known)(messages), 1):
        maker.add(said, place)
    payloads = maker.finish(title)
    batch = seal_entries(
        session_id,
        payloads,
        clock=clock or SystemClock(),
        ids=ids,
        meta={"imported": known},
        secrets=Secrets(owned_secrets(store).values()),
    )
    await store.append(session_id, batch, expected_tail=0, blobs=list(maker.blobs.values()))
    log_written(session_id, batch)
    return session_id


@overload
def export_messages(
    entries: Sequence[Entry],
    *,
    format: Literal["openai", "langchain"],
    blobs: Mapping[str, bytes] | None = None,
) -> list[JsonObject]: ...
@overload
def export_messages(
    entries: Sequence[Entry], *, format: Literal["anthropic"], blobs: Mapping[str, bytes] | None = None
) -> JsonObject: ...
@overload
def export_messages(
    entries: Sequence[Entry], *, format: MessageFormat, blobs: Mapping[str, bytes] | None = None
) -> list[JsonObject] | JsonObject: ...
def export_messages(
    entries: Sequence[Entry], *, format: MessageFormat, blobs: Mapping[str, bytes] | None = None
) -> list[JsonObject] | JsonObject:
    """The conversation in ``entries`` as another system's messages, redactions applied.

    OpenAI and LangChain: a list. Anthropic: ``system`` and ``messages``, as its API takes them. ``blobs`` are
    stored bytes by name: images found there are included, others are named in words. Thinking is left out,
    for a provider takes back its own alone.
    """
    _reader(format)  # says so when the format is not known
    said: list[Said] = []
    for entry in visible_entries(entries):
        if isinstance(entry, SystemPromptEntry):
            said.append(Said("system", [text_part(entry.payload.text)]))
        elif isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            message = entry.payload.message
            parts = [_with_bytes(part, blobs or {}) for part in message.parts]
            names = (
                {outcome.tool_call_id: outcome.tool_name for outcome in entry.payload.outcomes}
                if isinstance(entry, ToolResultsEntry)
                else {}
            )
            said.append(Said(message.role, [part for part in parts if part.kind != "thinking"], names))
    return WRITERS[format](said)


def _reader(format: str) -> Any:
    if format not in READERS:
        raise AgentError(
            "ConfigInvalid", f"the format {format!r} is not known; it is one of {', '.join(READERS)}"
        )
    return READERS[format]


class _Maker:
    """Payloads of the log from one message after the other."""

    def __init__(self, format: MessageFormat, ids: IdSource) -> None:
        self._format = format
        self._ids = ids
        self._payloads: list[EntryPayload] = []
        self._open: dict[str, tuple[str, str]] = {}
        """Their id of each call without a result → our id and the tool's name."""
        self._used: set[str] = set()
        self._answers = 0
        self.blobs: dict[str, bytes] = {}

    def add(self, said: Said, place: int) -> None:
        parts = [self._keep_bytes(part) for part in said.parts]
        if said.role == "tool":
            self._add_results(parts, place)
            return
        self._end_calls()
        message = Message(run_id="", role=said.role, parts=parts, timestamp="")
        if said.role == "assistant":
            self._add_answer(message, said.model)
        elif said.role == "system" and not self._payloads:
            self._payloads.append(SystemPrompt(text=message.text))
        elif not message.text.strip() and all(part.kind == "text" for part in parts):
            raise refuse(place, "it is empty")
        else:
            source = "user" if said.role == "user" else "host"
            self._payloads.append(ModelInput(message=message, source=source))

    def finish(self, title: str | None) -> list[EntryPayload]:
        self._end_calls()
        if not self._payloads:
            raise AgentError("InvalidMessage", "there is no message to import")
        return [SessionHeader(schema_version=SCHEMA_VERSION, title=title), *self._payloads]

    def _add_answer(self, message: Message, model: str | None) -> None:
        parts = [self._own_id(part) for part in message.parts]
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        if not calls and not message.text.strip():
            return  # an empty answer says nothing, and a log does not hold one
        self._answers += 1
        self._payloads.append(
            ModelOutput(
                message=Message(run_id="", role="assistant", parts=parts, timestamp=""),
                invocation=ModelInvocationDescriptor(
                    provider_id="imported", specification=self._format, model=model or "unknown"
                ),
                model_call_index=self._answers,
                attempt=1,
                finish_reason="tool_calls" if calls else "stop",
            )
        )

    def _own_id(self, part: MessagePart) -> MessagePart:
        if not isinstance(part, ToolCallPart):
            return part
        call = part.payload
        theirs = call.tool_call_id
        ours = theirs if _CALL_ID.fullmatch(theirs) and theirs not in self._used else self._ids.call()
        self._used.add(ours)
        self._open[theirs] = (ours, call.tool_name)
        return ToolCallPart(
            payload=type(call)(
                tool_call_id=ours,
                tool_name=call.tool_name,
                arguments=call.arguments,
                raw_args_text=call.raw_args_text,
            )
        )

    def _add_results(self, parts: Sequence[MessagePart], place: int) -> None:
        results: list[MessagePart] = []
        outcomes: list[ToolOutcome] = []
        for part in parts:
            if not isinstance(part, ToolResultPart):
                raise refuse(place, f"a result holds a {part.kind}")
            found = self._open.pop(part.payload.tool_call_id, None)
            if found is None:
                raise refuse(
                    place, f"it is the result of call {part.payload.tool_call_id!r}, which is not open there"
                )
            id, name = found
            is_error = part.payload.is_error
            results.append(tool_result_part(id, part.payload.content, is_error=is_error))
            status = "failed" if is_error else "success"
            outcomes.append(ToolOutcome(tool_call_id=id, tool_name=name, status=status))
        self._add_tool_message(results, outcomes)

    def _end_calls(self) -> None:
        """A message comes after all results of the one before it."""
        missing = list(self._open.values())
        self._open = {}
        if missing:
            parts = [tool_result_part(id, _NO_RESULT, is_error=True) for id, _ in missing]
            outcomes = [
                ToolOutcome(tool_call_id=id, tool_name=name, status="skipped") for id, name in missing
            ]
            self._add_tool_message(list[MessagePart](parts), outcomes)

    def _add_tool_message(self, parts: list[MessagePart], outcomes: list[ToolOutcome]) -> None:
        message = Message(run_id="", role="tool", parts=parts, timestamp="")
        self._payloads.append(ToolResults(message=message, outcomes=outcomes))

    def _keep_bytes(self, part: MessagePart) -> MessagePart:
        """Images and files as the log names them; their bytes go beside it."""
        if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
            content: Any = [self._keep_bytes(inner) for inner in part.payload.content]
            return tool_result_part(part.payload.tool_call_id, content, is_error=part.payload.is_error)
        if not isinstance(part, ImagePart | FileRefPart) or part.payload.data is None:
            return part
        data = base64.b64decode(part.payload.data)
        name = f"sha256-{digest(data)}"
        self.blobs[name] = data
        return _replace(part, payload=_replace(part.payload, data=None, url=f"blob:{name}"))


def _with_bytes(part: MessagePart, blobs: Mapping[str, bytes]) -> MessagePart:
    if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
        content: Any = [_with_bytes(inner, blobs) for inner in part.payload.content]
        return tool_result_part(part.payload.tool_call_id, content, is_error=part.payload.is_error)
    if not isinstance(part, ImagePart | FileRefPart) or not (part.payload.url or "").startswith("blob:"):
        return part
    data = blobs.get((part.payload.url or "").removeprefix("blob:"))
    if data is None:
        named = f"file {part.payload.path}" if isinstance(part, FileRefPart) else "image"
        return text_part(f"[{named}, {part.payload.mime_type}, not included]")
    return _replace(part, payload=_replace(part.payload, data=base64.b64encode(data).decode(), url=None))
