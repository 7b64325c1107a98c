"""A research team: an editor asks two researchers at once, gets typed findings, and hands over to a
publisher.

Run it: `python examples/research_team.py`. Each question is a session of its own below the editor's; tokens
of all of them count against one budget, and the whole tree replays from the store.
"""

import asyncio
from dataclasses import dataclass

from turnlog import Agent, Limits
from turnlog.models import ModelRequest, ScriptedModel, Turn


@dataclass
class Finding:
    fact: str
    sure: bool


@dataclass
class Article:
    title: str
    text: str


FACTS = {"bees": "Bees dance to tell where food is.", "ants": "Ants lay trails of scent."}


def research(request: ModelRequest) -> str:
    """What a researcher's model would say."""
    fact = next(fact for topic, fact in FACTS.items() if topic in request.messages[0].text)
    return f'{{"fact": "{fact}", "sure": true}}'


def edit(request: ModelRequest) -> Turn:
    """What the editor's model would say: ask both, then hand over what they found."""
    if not request.messages[-1].tool_results:
        inputs = [{"input": f"How do {topic} find food?"} for topic in FACTS]
        return Turn(tool_calls=[{"name": "researcher", "arguments": each} for each in inputs])
    return Turn(tool_calls=[{"name": "transfer_to_publisher", "arguments": {"reason": "all facts are in"}}])


PUBLISHED = '{"title": "Finding food", "text": "Bees dance, and ants follow scents."}'


async def main() -> None:
    researcher = Agent(
        ScriptedModel(default=research), name="researcher", output_type=Finding, store="memory:"
    )
    publisher = Agent(
        ScriptedModel(default=PUBLISHED), name="publisher", instructions="Write well.", store="memory:"
    )
    async with Agent(
        ScriptedModel(default=edit),
        name="editor",
        instructions="Have facts found, then hand over.",
        tools=[researcher.as_tool("Finds out about one topic.")],
        handoffs=[publisher.as_handoff("Writes the article, once all facts are there.")],
        limits=Limits(max_tokens=20_000),
        store="memory:",
    ) as editor:
        result = await editor.run("An article on insects.", session="article", output_type=Article)
        print(f"{result.agent_name}: {result.output.title}: {result.output.text}")
        for info in await editor.store.sessions(metadata={"parent_session": "article"}):
            (*_, answer) = await editor.session(info.session_id).messages()
            print(info.session_id.partition("-")[0], answer.text)
        for info in await editor.store.sessions():
            report = await editor.session(info.session_id).replay()
            print("replayed:", "identical" if report.identical else report.difference)


if __name__ == "__main__":
    asyncio.run(main())
