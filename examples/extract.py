"""200 letters to typed records, twenty at a time. Stop it with Ctrl-C, start it again, and it does the rest.

Run it: `python examples/extract.py FOLDER`. A letter is a session of its own in `FOLDER/letters.db`. A run
that a crash left open is resumed, one that was stopped is made again, one that is done is read from its log.
"""

import asyncio
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from turnlog import Agent
from turnlog.models import Model, ModelRequest, ScriptedModel
from turnlog.tools import OutputType

LETTERS = [f"Invoice {1000 + n} is over {n * 7 % 90 + 10} dollars." for n in range(200)]


@dataclass
class Invoice:
    number: int
    dollars: float


def check(invoice: Invoice) -> str | None:
    return None if invoice.dollars > 0 else "dollars: an invoice is over more than 0; read the letter again"


async def answer(request: ModelRequest) -> str:
    """What a model would say; it misreads every eighth amount at first."""
    await asyncio.sleep(0.02)
    number, dollars = re.findall(r"\d+", request.messages[0].text)
    misread = int(number) % 8 == 0 and "read the letter again" not in request.messages[-1].text
    return f'{{"number": {number}, "dollars": {0 if misread else dollars}}}'


async def main(folder: Path, model: Model) -> None:
    dollars, output = 0.0, OutputType(Invoice, check=check)
    async with Agent(model, output_type=output, store=f"sqlite:{folder / 'letters.db'}") as agent:
        async for done in agent.map(LETTERS, sessions="letter", concurrency=20):
            dollars += done.output.dollars
            if not done.known:
                print(done.output, flush=True)
    print(f"{len(LETTERS)} letters over {dollars:.0f} dollars")


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1]), ScriptedModel(default=answer)))
    except KeyboardInterrupt:
        print("stopped; start it again for the rest")
