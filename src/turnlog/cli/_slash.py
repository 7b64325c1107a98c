"""Commands of a chat, as ``/undo``: what they are and what they do."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable

from turnlog.contract import AgentError, ToolCallPart, ToolResultsEntry
from turnlog.history import messages_of, visible_entries
from turnlog.loop import Agent

from ._app import count, err, out, say, say_error
from ._text import plain, result_text, safe, whole


async def run_command(agent: Agent, session: str, said: str, *, running: bool = False) -> bool:
    """Do what a line asks for, or say why not; False when it is no command but a message. While a run is
    in progress only the commands that look at something work."""
    word, _, rest = said.strip().partition(" ")
    does = _DOES.get(word)
    if running and word in ("/attach", "/undo"):
        err.print(f"[dim]{word} works when the answer is complete[/]")
    elif does is not None:
        try:
            await does(agent, session, rest.strip())
        except AgentError as error:
            say_error(error.code, error.message)
    elif _is_command(word):
        _refuse(agent, word)
    else:
        return False
    return True


def _is_command(word: str) -> bool:
    return _WORD.fullmatch(word) is not None and not os.path.exists(word)


def leaves(said: str) -> bool:
    return said.strip() in ("/quit", "/exit")


def commands_of(agent: Agent) -> dict[str, str]:
    """The commands that work in a chat with this agent, and what each of them does."""
    has_files = agent.loop.parts.runtime is not None
    return {word: words for word, words in _COMMANDS.items() if has_files or word != "/undo"}


def _refuse(agent: Agent, word: str) -> None:
    from difflib import get_close_matches  # for mistakes alone

    near = get_close_matches(word, commands_of(agent), n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    err.print(f"there is no command {safe(word)}; {guess}/help lists them")


async def _help(agent: Agent, session: str, rest: str) -> None:
    for word, words in commands_of(agent).items():
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
        say(err, f"[dim]this session has {count(len(results), 'tool call')}[/]")
        return
    result = results[-back]
    call = calls.get(result.payload.tool_call_id)
    if call is not None:
        err.print(f"[cyan]{safe(call.payload.tool_name)}[/] {whole(call.payload.arguments)}")
    out.print(plain(result_text(result)), markup=False)


_COMMANDS = {
    "/help": "this list",
    "/attach": "send a file with the next message: /attach PATH",
    "/open": "show the last tool call whole; /open 2: the one before it",
    "/undo": "restore the files that the last turn changed",
    "/quit": "leave, as Ctrl-D and /exit do; the session is kept",
}
_DOES: dict[str, Callable[[Agent, str, str], Awaitable[None]]] = {
    "/help": _help,
    "/open": _open,
    "/undo": _undo,
}
"""The others belong to the chat itself."""
_WORD = re.compile(r"/[A-Za-z][\w-]*")
"""How a command looks: ``//`` and a path of several folders begin a message."""
