"""A conversation that another system had becomes a session, goes on here, and can go back.

Run it: `python examples/migrate/migrate.py examples/migrate/messages.json`. They are OpenAI's messages.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from hotel import make_agent

from turnlog import open_store
from turnlog.models import ScriptedModel
from turnlog.transcript import export_messages, import_messages


async def main(messages: list[dict[str, object]]) -> None:
    store = open_store("memory:")
    await import_messages(store, "trip", messages, format="openai")
    async with make_agent(ScriptedModel(["It costs 300 dollars a night."]), store) as agent:
        trip = agent.session("trip")
        same = export_messages(await trip.entries(), format="openai")
        print("exported as it came" if same == messages else same)
        await trip.run("For one night?")
        print(json.dumps(export_messages(await trip.entries(), format="openai")[-2:], indent=1))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
