"""Other frameworks, asked for the same stream: each by the leanest way to a model's deltas it documents.

None of them is needed. What is installed is measured, the rest is named; all of them at once:
``pip install --group bench``, best into an environment of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

Job: TypeAlias = Callable[[], Awaitable[int]]
"""Streams one answer and counts its text deltas."""

USER = {"role": "user", "content": "go"}


class Peer(NamedTuple):
    name: str
    module: str
    make: Callable[[str], Job]
    """Takes the base URL of the protocol."""
    protocol: str


def peers() -> list[Peer]:
    return [
        Peer("pydantic-ai, chat", "pydantic_ai", _pydantic_ai_chat, "chat"),
        Peer("pydantic-ai, anthropic", "pydantic_ai", _pydantic_ai_anthropic, "anthropic"),
        Peer("litellm, chat", "litellm", _litellm_chat, "chat"),
        Peer("litellm, anthropic", "litellm", _litellm_anthropic, "anthropic"),
        Peer("openai-agents, chat", "agents", _openai_agents, "chat"),
        Peer("langchain-openai, chat", "langchain_openai", _langchain_openai, "chat"),
        Peer("langchain-anthropic, anthropic", "langchain_anthropic", _langchain_anthropic, "anthropic"),
    ]


def installed(peer: Peer) -> bool:
    return find_spec(peer.module) is not None


def _pydantic_ai_chat(base: str) -> Job:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return _pydantic_ai(OpenAIChatModel("m", provider=OpenAIProvider(base_url=base, api_key="none")))


def _pydantic_ai_anthropic(base: str) -> Job:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return _pydantic_ai(AnthropicModel("m", provider=AnthropicProvider(base_url=base, api_key="none")))


def _pydantic_ai(model: Any) -> Job:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    def counts(event: Any) -> bool:
        if isinstance(event, PartStartEvent):
            return isinstance(event.part, TextPart) and bool(event.part.content)
        return isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta)

    async def job() -> int:
        async with model_request_stream(model, [ModelRequest.user_text_prompt("go")]) as stream:
            return len([1 async for event in stream if counts(event)])

    return job


def _litellm_chat(base: str) -> Job:
    return _litellm(model="openai/m", api_base=base)


def _litellm_anthropic(base: str) -> Job:
    return _litellm(model="anthropic/m", api_base=base, max_tokens=9)


def _litellm(**fields: Any) -> Job:
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True

    async def job() -> int:
        stream = await litellm.acompletion(messages=[USER], stream=True, api_key="none", **fields)
        return len([1 async for chunk in stream if chunk.choices and chunk.choices[0].delta.content])

    return job


def _openai_agents(base: str) -> Job:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base, api_key="none")
    agent = Agent(name="a", model=OpenAIChatCompletionsModel(model="m", openai_client=client))

    async def job() -> int:
        events = Runner.run_streamed(agent, "go").stream_events()
        return len(
            [
                1
                async for event in events
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
        )

    return job


def _langchain_openai(base: str) -> Job:
    from langchain_openai import ChatOpenAI

    return _langchain(ChatOpenAI(model="m", base_url=base, api_key="none"))


def _langchain_anthropic(base: str) -> Job:
    from langchain_anthropic import ChatAnthropic

    return _langchain(ChatAnthropic(model="m", base_url=base, api_key="none", max_tokens=9))


def _langchain(model: Any) -> Job:
    async def job() -> int:
        return len([1 async for chunk in model.astream([USER]) if chunk.text])

    return job
