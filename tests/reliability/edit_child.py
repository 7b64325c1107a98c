"""A process that makes edits and runs commands, one after the other, to be killed in the middle of them.

``python edit_child.py FOLDER MARK LEVEL``: continues the session in FOLDER where it was left; ``MARK`` is in
the name of every command that it runs, ``LEVEL`` the sandbox.
"""

from __future__ import annotations

import asyncio
import sys

from turnlog import Agent
from turnlog.runtime import LocalRuntime, SandboxLevel
from turnlog.testing import ScriptedModel, Turn
from turnlog.tools import code_tools

EDITS = 12
END = "# end"


def next_turn(mark: str, request: object) -> Turn:
    """Read the file, then add a line a call; after every third a command. An edit that was applied could be
    applied again: nothing in the file would refuse it."""
    results = sum(len(message.tool_results) for message in request.messages)  # type: ignore[attr-defined]
    if results == 0:
        name, arguments = "read", {"path": "work.txt"}
    elif results % 4 == 0:
        name, arguments = "shell", {"command": f"sleep 0.05; : {mark}", "timeout": 60}
    elif results - results // 4 <= EDITS:
        line = f"line {results - results // 4}"
        name, arguments = "edit", {"path": "work.txt", "old": END, "new": f"{line}\n{END}"}
    else:
        return Turn(text="done")
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


async def main(folder: str, mark: str, level: SandboxLevel) -> None:
    model = ScriptedModel(default=lambda request: next_turn(mark, request))
    runtime = LocalRuntime(f"{folder}/work", level=level)
    async with Agent(model, tools=code_tools(), runtime=runtime, store=f"sqlite:{folder}/log.db") as agent:
        print("ready", flush=True)
        session = agent.session("s")
        started = await agent.store.tail("s") is not None
        result = await (session.resume() if started else session.run("Work."))
        if result is None:
            result = await session.run("Work on.")
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))  # type: ignore[arg-type]
