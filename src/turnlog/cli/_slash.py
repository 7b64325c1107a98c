"""Commands of a chat, as ``/undo``: what they are and what they do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from turnlog.contract import AgentError, ToolCallPart, ToolResultsEntry
from turnlog.history import messages_of, visible_entries
from turnlog.loop import Agent

from ._app import err, out, say, say_error
from ._text import plain, result_text, safe, whole


async def run_command(agent: Agent, session: str, said: str) -> bool:
    """Do what a line asks for; False when it is no command but a message."""
    word, _, rest = said.strip().partition(" ")
    command = _COMMANDS.get(word)
    if command is None:
        return False
    try:
        await command[1](agent, session, rest.strip())
    except AgentError as error:
        say_error(error.code, error.message)
    return True


async def _help(agent: Agent, session: str, rest: str) -> None:
    for word, (words, _) in _COMMANDS.items():
        err.print(f"  {word:<8} [dim]{words}[/]")


async def _undo(agent: Agent, session: str, rest: str) -> None:
    undone = await agent.session(session).undo()
    if undone is None:
        err.print("[dim]no turn of this session has changed a file, or all are undone[/]")
        return
    parts = [
        f"{word} {', '.join(map(safe, paths))}"
        for word, paths in (("restored", undone.restored), ("removed", undone.removed))
        if paths
    ]
    say(err, f"{'; '.join(parts)} [dim](what commands changed stays)[/]")


async def _open(agent: Agent, session: str, rest: str) -> None:
    """The newest tool call whole, or the one that is so many calls back."""
    if rest and not rest.isdecimal():
        say(err, f"[dim]/open {safe(rest)}: give how many calls back, as /open 2[/]")
        return
    entries = visible_entries(await agent.store.load(session))
    calls = {
        part.payload.tool_call_id: part
        for message in messages_of(entries)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    }
    results = [
        part
        for entry in entries
        if isinstance(entry, ToolResultsEntry)
        for part in entry.payload.message.tool_results
    ]
    back = int(rest or 1)
    if not 1 <= back <= len(results):
        say(err, f"[dim]this session has {len(results)} tool calls[/]")
        return
    result = results[-back]
    call = calls.get(result.payload.tool_call_id)
    if call is not None:
        err.print(f"[cyan]{safe(call.payload.tool_name)}[/] {whole(call.payload.arguments)}")
    out.print(plain(result_text(result)), markup=False)


_COMMANDS: dict[str, tuple[str, Callable[[Agent, str, str], Awaitable[None]]]] = {
    "/help": ("this list", _help),
    "/open": ("show the last tool call whole; /open 2: the one before it", _open),
    "/undo": ("restore the files that the last turn changed", _undo),
}

NAMES: Sequence[str] = tuple(_COMMANDS)
