"""An agent hands the conversation to another: in the same session and run, the next one answers with a model,
tools and instructions of its own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnlog.contract import AgentError, JsonObject, ToolSpec
from turnlog.history import CallState, Session, SessionState
from turnlog.tools import Tool, ToolContext, ToolOptions

from ._ports import Finished, Judgement, Ports, ToolNews, ToolPort

if TYPE_CHECKING:  # these know of hand-offs
    from ._open_sessions import LoopParts
    from ._options import RunDefaults

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": "Why, in a few words."}},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class HandoffBody:
    """The body of the tool that hands over; what it does is in the log with its result."""

    to: str

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> str:
        return f"{self.to} has the conversation now."


@dataclass(frozen=True)
class Handoff:
    """The way to another agent, for ``Agent(handoffs=[…])``; made by :meth:`Agent.as_handoff`."""

    parts: LoopParts
    defaults: RunDefaults
    tool: Tool

    @property
    def name(self) -> str:
        """The agent that takes over."""
        return self.defaults.name


def make_handoff(
    parts: LoopParts, defaults: RunDefaults, description: str | None, name: str | None, options: ToolOptions
) -> Handoff:
    to = defaults.name

    words = description or f"Hand the conversation over to {to}, who answers from then on."
    usual: ToolOptions = {"idempotent": True}
    called = name or f"transfer_to_{re.sub(r'[^A-Za-z0-9_-]', '_', to)}"
    return Handoff(
        parts, defaults, Tool.from_schema(called, words, _SCHEMA, HandoffBody(to), **{**usual, **options})
    )


def team_of(parts: LoopParts) -> dict[str, Handoff]:
    """Every agent that the conversation may be handed to, over any number of hands, by name. Raises
    ``ConfigInvalid`` when two of them have one name."""
    found: dict[str, Handoff] = {}
    due = list(parts.handoffs)
    while due:
        each = due.pop(0)
        known = found.get(each.name)
        if known is None:
            known = found[each.name] = each
            due += each.parts.handoffs
        # By their tools: the parts are made anew where an agent works in the store of another.
        here = parts if each.name == parts.agent_name else known.parts
        if here.registry is not each.parts.registry:
            raise AgentError(
                "ConfigInvalid",
                f"two agents that hand over to each other are named {each.name!r}; the log knows by the name "
                "which of them speaks: give each Agent(name=…) of its own",
            )
    return found


def speaker_of(state: SessionState, parts: LoopParts) -> str | None:
    """Who speaks: the agent that the conversation was handed to where it is known here, else this one."""
    return state.speaker if state.speaker in team_of(parts) else parts.agent_name


def check_speaker(state: SessionState, parts: LoopParts) -> None:
    """Raises ``ConfigInvalid`` when the open run was handed to an agent that is not known here."""
    name = state.speaker
    if state.handoffs and name != parts.agent_name and name not in team_of(parts):
        raise AgentError(
            "ConfigInvalid",
            f"the conversation was handed to {name!r}, to which no hand-off leads from here; resume it with "
            "an agent that has it in Agent(handoffs=[…])",
        )


def is_handed(speaker: Handoff | None, state: SessionState) -> bool:
    """Whether ``speaker`` is another agent than the one for which the run was started."""
    return speaker is not None and state.started is not None and state.started.agent_name != speaker.name


class Speakers:
    """The tools of the agent that speaks. Where the conversation was handed over, the ports of the run become
    those of the next agent before it is asked."""

    def __init__(
        self,
        session: Session,
        ports: Ports,
        parts: LoopParts,
        ports_of: Callable[[Handoff], Awaitable[Ports]],
    ) -> None:
        self._session = session
        self._ports = ports
        self._parts = parts
        self._ports_of = ports_of
        self._tools: ToolPort = ports.tools
        self._speaker = speaker_of(session.state, parts)

    async def refresh(self) -> None:
        state = self._session.state
        next = team_of(self._parts).get(state.speaker or "")
        if next is not None and state.speaker != self._speaker:
            ports, self._speaker = await self._ports_of(next), next.name
            self._tools, self._ports.model = ports.tools, ports.model
            self._ports.human, self._ports.world = ports.human, ports.world
        if next is not None and state.handed_to is not None and not state.open_calls:
            instructions = next.defaults.instructions or ""
            if instructions != (state.system_prompt or ""):
                self._session.set_system_instruction(instructions)
        if (reading := self._tools.refresh()) is not None:
            await reading

    def specs(self, state: SessionState) -> Sequence[ToolSpec]:
        return self._tools.specs(state)

    async def judge(self, call: CallState, state: SessionState) -> Judgement:
        return await self._tools.judge(call, state)

    async def recover(self, call: CallState, state: SessionState) -> Judgement:
        return await self._tools.recover(call, state)

    def start(self, call: CallState, key: str, attempt: int) -> None:
        self._tools.start(call, key, attempt)

    async def next(self) -> ToolNews:
        return await self._tools.next()

    @property
    def running(self) -> int:
        return self._tools.running

    async def stop(self) -> list[Finished]:
        return await self._tools.stop()
