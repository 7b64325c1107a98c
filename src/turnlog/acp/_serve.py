"""The agent's side of the Agent Client Protocol: an editor's prompts are runs, its conversations sessions."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Literal, cast

import acp
from acp import schema

from turnlog import __version__, events
from turnlog.contract import AgentError, PendingApproval, RunResult, encode
from turnlog.files import File
from turnlog.loop import Agent, EventReader, RunStream, Session

Stop = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
_STOPS: dict[str, Stop] = {"length": "max_tokens", "refusal": "refusal", "content_filter": "refusal"}
_LIMITS = ("RunMaxIterations", "RunTokenLimit", "RunCostLimit", "RunTimeout", "RunStalled")
_KINDS: dict[str, schema.ToolKind] = {
    "read": "read",
    "list": "read",
    "glob": "search",
    "grep": "search",
    "write": "edit",
    "edit": "edit",
    "shell": "execute",
}
_OPTIONS = [
    schema.PermissionOption(option_id="allow", name="Allow", kind="allow_once"),
    schema.PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
]


async def serve_acp(agent: Agent[Any], *, reader: Any = None, writer: Any = None) -> None:
    """Serve ``agent`` to an editor until it closes the connection; by default on standard input and output.
    The agent stays the caller's to close."""
    await acp.run_agent(cast("acp.Agent", _Acp(agent)), writer, reader)


class _Acp:
    """What an editor may ask for. A method's name and parameters are the protocol's."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent
        self._client: acp.Client | None = None
        self._cancelled: set[str] = set()

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=schema.SessionCapabilities(list=schema.SessionListCapabilities()),
            ),
            agent_info=schema.Implementation(name="turnlog", title=self._agent.name, version=__version__),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **more: Any) -> None:
        return None

    async def new_session(self, cwd: str, **more: Any) -> acp.NewSessionResponse:
        return acp.NewSessionResponse(session_id=self._agent.session().session_id)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **more: Any
    ) -> schema.ListSessionsResponse:
        found = await self._agent.store.sessions(limit=51, after=cursor)
        return schema.ListSessionsResponse(
            sessions=[
                schema.SessionInfo(
                    session_id=info.session_id, cwd=cwd or "/", title=info.title, updated_at=info.updated_at
                )
                for info in found[:50]
            ],
            next_cursor=found[49].cursor if len(found) > 50 else None,
        )

    async def load_session(self, cwd: str, session_id: str, **more: Any) -> acp.LoadSessionResponse:
        """The conversation so far is shown again, from the log."""
        try:
            entries = await self._agent.session(session_id).entries()
        except AgentError as error:
            raise _refusal(error) from error
        reader = EventReader()
        for entry in entries:
            for event in reader.step(entry):
                if isinstance(event, events.InputAdded):
                    await self._update(session_id, acp.update_user_message_text(event.message.text))
                elif isinstance(event, events.AnswerAdded) and event.message.text:
                    await self._update(session_id, acp.update_agent_message_text(event.message.text))
                else:
                    await self._show(session_id, event)
        return acp.LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> acp.PromptResponse:
        session = self._agent.session(session_id)
        self._cancelled.discard(session_id)
        try:
            result = await self._watch(session_id, session.run_stream(_read(prompt)))
            while result is not None and result.status == "awaiting_human":
                if not await self._ask(session, await session.pending()):
                    break
                result = await self._watch(session_id, session.resume_stream())
        except AgentError as error:
            raise _refusal(error) from error
        return acp.PromptResponse(stop_reason=self._stop(session_id, result))

    async def cancel(self, session_id: str, **more: Any) -> None:
        self._cancelled.add(session_id)
        await self._agent.session(session_id).abort("cancelled in the editor")

    # ── a run ──

    async def _watch(self, session_id: str, stream: RunStream[Any]) -> RunResult[Any] | None:
        result: RunResult[Any] | None = None
        async with stream:
            async for event in stream:
                if isinstance(event, events.TextDelta):
                    await self._update(session_id, acp.update_agent_message_text(event.text))
                elif isinstance(event, events.ThinkingDelta):
                    await self._update(session_id, acp.update_agent_thought_text(event.text))
                elif isinstance(event, events.RunEnded):
                    result = event.result
                else:
                    await self._show(session_id, event)
        return result

    async def _show(self, session_id: str, event: object) -> None:
        """A tool call, as it begins and as it ends."""
        match event:
            case events.ToolStarted() | events.ApprovalRequested():
                waits = isinstance(event, events.ApprovalRequested)
                given = event.arguments or {}
                call = acp.start_tool_call(
                    event.tool_call_id,
                    _title(event.tool_name, given),
                    kind=_KINDS.get(event.tool_name, "other"),
                    status="pending" if waits else "in_progress",
                    raw_input=given,
                )
                await self._update(session_id, call)
            case events.ToolFinished():
                said = "".join(part.payload.text for part in event.message.tool_results)
                update = acp.update_tool_call(
                    event.tool_call_id,
                    status="completed" if event.status == "success" else "failed",
                    content=[acp.tool_content(acp.text_block(said))],
                )
                await self._update(session_id, update)
            case _:
                pass

    async def _update(self, session_id: str, update: Any) -> None:
        assert self._client is not None
        await self._client.session_update(session_id=session_id, update=update)

    async def _ask(self, session: Session[Any], waiting: Sequence[PendingApproval]) -> bool:
        """Put the calls that wait to the person at the editor; False when the run was cancelled, or nothing
        can be decided there."""
        assert self._client is not None
        for call in waiting:
            shown = schema.ToolCallUpdate(
                tool_call_id=call.tool_call_id,
                title=_title(call.tool_name, call.arguments),
                kind=_KINDS.get(call.tool_name, "other"),
                status="pending",
                raw_input=call.arguments,
            )
            answer = await self._client.request_permission(
                session_id=session.session_id, tool_call=shown, options=_OPTIONS
            )
            if not isinstance(answer.outcome, schema.AllowedOutcome):
                self._cancelled.add(session.session_id)
                await session.abort("cancelled in the editor")
                return False
            action = "approve" if answer.outcome.option_id == "allow" else "deny"
            await session.decide(call, action, by="editor")
        return bool(waiting)

    def _stop(self, session_id: str, result: RunResult[Any] | None) -> Stop:
        if session_id in self._cancelled or result is None or result.status == "aborted":
            return "cancelled"
        if result.status == "failed" and result.last_error is not None:
            if result.last_error.code in _LIMITS:
                return "max_turn_requests"
            raise _refusal(AgentError.from_info(result.last_error))
        return _STOPS.get(result.finish_reason or "", "end_turn")


def _title(name: str, arguments: dict[str, Any]) -> str:
    told = next((str(value) for value in arguments.values() if isinstance(value, str)), "")
    first = told.strip().partition("\n")[0]
    return f"{name} {first[:80]}".rstrip()


def _refusal(error: AgentError) -> acp.RequestError:
    return acp.RequestError(-32603, f"{error.code}: {error.message}", {"code": error.code})


def _read(prompt: Sequence[Any]) -> list[str | File]:
    """A prompt's blocks as input: text, pictures, and files that the editor sends along."""
    made: list[str | File] = []
    for block in prompt:
        match block:
            case schema.TextContentBlock():
                made.append(block.text)
            case schema.ImageContentBlock():
                made.append(File.from_bytes(b64decode(block.data), name="picture"))
            case schema.ResourceContentBlock():
                made.append(f"[{block.name}]({block.uri})")
            case schema.EmbeddedResourceContentBlock():
                held = block.resource
                if isinstance(held, schema.TextResourceContents):
                    made.append(f"<file uri={encode(held.uri).decode()}>\n{held.text}\n</file>")
                else:
                    made.append(
                        File.from_bytes(b64decode(held.blob), name=held.uri.rsplit("/", 1)[-1] or "file")
                    )
            case _:
                raise acp.RequestError.invalid_params({"reason": f"{type(block).__name__} is not taken"})
    if not any(isinstance(each, File) or each.strip() for each in made):
        raise acp.RequestError.invalid_params({"reason": "the prompt is empty"})
    return made
