"""A process dies between a payment and the line in the log that says so. Nobody is charged twice.

Run it: `python examples/resume_after_crash.py`. A child process asks an agent to charge a card; the bank is
charged, and at that very moment the process is killed. This process then resumes the session. The log knows
that the tool was started and not what came of it. The tool is `keyed`: it hands the call's idempotency key to
the bank, so it may run again, and the bank recognises it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from turnlog import Agent, tool
from turnlog.history import open_store
from turnlog.loop import replay
from turnlog.models import ScriptedModel, Turn
from turnlog.tools import ToolContext

SESSION = "s1"


class Bank:
    """The outside world: a file of payments by key. It pays once for each key, however often it is asked."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def payments(self) -> dict[str, int]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def charge(self, key: str, amount: int) -> str:
        known = self.payments()
        if key in known:
            return f"already paid: {known[key]}"
        self._file.write_text(json.dumps({**known, key: amount}))
        return f"paid: {amount}"


def make_agent(folder: Path, *answers: str | Turn, dies: bool = False) -> Agent:
    bank = Bank(folder / "bank.json")

    @tool(keyed=True)
    def charge(amount: int, ctx: ToolContext) -> str:
        """Charge the customer's card."""
        receipt = bank.charge(ctx.idempotency_key, amount)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt

    return Agent(ScriptedModel(answers), tools=[charge], store=f"sqlite:{folder / 'shop.db'}")


async def sell(folder: Path) -> None:
    call = Turn(tool_calls=[{"name": "charge", "arguments": {"amount": 80}}])
    async with make_agent(folder, call, dies=True) as agent:
        await agent.run("Charge 80, please.", session=SESSION)


async def go_on(folder: Path) -> None:
    async with make_agent(folder, "Done: 80 was charged, once.") as agent:
        result = await agent.resume(SESSION)
        assert result is not None
        print(f"resumed: {result.status}: {result.text}")


async def look(folder: Path) -> None:
    store = open_store(f"sqlite:{folder / 'shop.db'}")
    try:
        for entry in await store.load(SESSION):
            print(f"  {entry.seq:>3} {entry.kind}")
        print(f"payments at the bank: {list(Bank(folder / 'bank.json').payments().values())}")
        report = await replay(store, SESSION)
        print(f"replayed: {'identical' if report.identical else report.difference}")
    finally:
        await store.close()


def main(arguments: list[str]) -> int:
    if arguments:
        asyncio.run(sell(Path(arguments[0])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        died = subprocess.run([sys.executable, __file__, name], check=False)
        print(f"the other process ended with {died.returncode}, as after kill -9")
        asyncio.run(go_on(folder))
        asyncio.run(look(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
