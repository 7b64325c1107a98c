"""200 letters to typed records, twenty at a time. Stop it with Ctrl-C, start it again, and it does the rest.

Run it: `python examples/extract.py FOLDER`. A letter is a session of its own in `FOLDER/letters.db`, its
record a file beside it. A run that a crash left open is resumed, one that was stopped is made again.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from turnlog import Agent, ToolContext, ToolError, tool
from turnlog.models import ModelRequest, ScriptedModel, Turn

LETTERS = {f"letter-{n:03}": f"Invoice {1000 + n} is over {n * 7 % 90 + 10} dollars." for n in range(200)}


@dataclass
class Invoice:
    number: int
    dollars: float


@tool(idempotent=True)
def record(ctx: ToolContext[Path], invoice: Invoice) -> str:
    """Record the invoice that the letter is about."""
    if invoice.dollars <= 0:
        raise ToolError("an invoice is over more than 0 dollars; read the letter again")
    draft = ctx.deps / f"{ctx.session_id}.draft"
    draft.write_text(json.dumps(asdict(invoice)))
    draft.replace(ctx.deps / f"{ctx.session_id}.json")  # whole, or not there
    return "recorded"


async def answer(request: ModelRequest) -> str | Turn:
    """What a model would say; it misreads every eighth amount at first."""
    await asyncio.sleep(0.02)
    results = [part.payload for message in request.messages for part in message.tool_results]
    if results and not results[-1].is_error:
        return "Done."
    number, dollars = (int(found) for found in re.findall(r"\d+", request.messages[0].text))
    invoice = {"number": number, "dollars": dollars if number % 8 or results else 0}
    return Turn(tool_calls=[{"name": "record", "arguments": {"invoice": invoice}}])


async def extract(agent: Agent, name: str, folder: Path, gate: asyncio.Semaphore) -> None:
    async with gate:
        session = agent.session(name)
        if await agent.store.tail(name) is None or await session.resume(deps=folder) is None:
            await session.run(LETTERS[name], deps=folder)


async def main(folder: Path) -> None:
    model, gate = ScriptedModel(default=answer), asyncio.Semaphore(20)
    left = [name for name in LETTERS if not (folder / f"{name}.json").exists()]
    print(f"{len(left)} of {len(LETTERS)} letters to read", flush=True)
    agent = Agent(model, tools=[record], deps_type=Path, store=f"sqlite:{folder / 'letters.db'}")
    async with agent, asyncio.TaskGroup() as group:
        for name in left:
            group.create_task(extract(agent, name, folder, gate))
    records = [Invoice(**json.loads((folder / f"{name}.json").read_text())) for name in LETTERS]
    print(f"{len(records)} records over {sum(each.dollars for each in records):.0f} dollars")


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        print("stopped; start it again for the rest")
