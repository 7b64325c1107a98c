"""The server for clients of OpenAI: their own SDK, on `/v1/responses` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.served import TOKEN, Served, served
from turnlog import Agent, tool
from turnlog.history import MemoryStore
from turnlog.testing import ScriptedModel, Turn

openai = pytest.importorskip("openai", reason="the official client is not installed")
pytest.importorskip("starlette", reason="needs the extra 'server'")

CALL = Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "42"}}])
PAY = Turn(tool_calls=[{"name": "pay", "arguments": {"amount": 5}}])


@tool
def look_up(order: str) -> str:
    """Find an order."""
    return f"order {order} was paid"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def make(*turns: Any, **options: Any) -> Agent:
    model = ScriptedModel(list(turns))
    return Agent(
        model,
        tools=[look_up, pay],
        name="clerk",
        store=options.pop("store", None) or MemoryStore(),
        **options,
    )


@asynccontextmanager
async def client_of(agent: Agent) -> AsyncGenerator[tuple[Any, Served]]:
    async with served(agent) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key=TOKEN, max_retries=0)
        async with client:
            yield client, server


@pytest.mark.spec("X-6")
async def test_chat_completions_answer_and_stream() -> None:
    agent = make(CALL, "It is paid.", "Hello again.")
    async with client_of(agent) as (client, _):
        assert [model.id for model in (await client.models.list()).data] == ["clerk"]
        whole = await client.chat.completions.create(
            model="clerk",
            messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Paid?"}],
        )
        assert whole.choices[0].message.content == "It is paid." and whole.choices[0].finish_reason == "stop"
        assert whole.usage.total_tokens > 0
        session = whole.session_id
        stream = await client.chat.completions.create(
            model="clerk",
            messages=[{"role": "user", "content": "And now?"}],
            metadata={"session_id": session},
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        assert text == "Hello again." and usage is not None
    requests = agent.model.requests  # pyright: ignore[reportAttributeAccessIssue]
    assert requests[0].system_prompt == "Be kind."
    assert [message.role for message in requests[-1].messages].count("user") == 2  # one session


async def test_the_messages_before_the_last_one_are_the_past_of_a_new_session() -> None:
    agent = make("Ann.")
    async with client_of(agent) as (client, _):
        await client.chat.completions.create(
            model="clerk",
            messages=[
                {"role": "user", "content": "I am Ann."},
                {"role": "assistant", "content": "Hello Ann."},
                {"role": "user", "content": "Who am I?"},
            ],
        )
    sent = agent.model.requests[0].messages  # pyright: ignore[reportAttributeAccessIssue]
    assert [message.text for message in sent][:3] == ["I am Ann.", "Hello Ann.", "Who am I?"]


@pytest.mark.spec("X-6")
async def test_responses_stream_with_tools_and_continue_a_conversation() -> None:
    agent = make(CALL, "It is paid.", "Yes.")
    async with client_of(agent) as (client, _):
        seen: list[Any] = []
        async with client.responses.stream(model="clerk", input="Is order 42 paid?") as stream:
            async for event in stream:
                seen.append(event)
            final = await stream.get_final_response()
        kinds = [event.type for event in seen]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == "It is paid."
        numbers = [event.sequence_number for event in seen]
        assert numbers == sorted(set(numbers))
        assert [item.type for item in final.output] == ["mcp_call", "message"]
        assert final.output[0].output == "order 42 was paid" and final.output_text == "It is paid."
        again = await client.responses.create(
            model="clerk", input="Sure?", previous_response_id=final.id, temperature=0.5
        )
        assert again.output_text == "Yes." and again.conversation.id == final.conversation.id
        read = await client.responses.retrieve(again.id)
        assert read.output_text == "Yes." and read.status == "completed" and read.usage.output_tokens > 0


@pytest.mark.spec("X-6")
async def test_an_approval_is_asked_for_and_answered() -> None:
    async with client_of(make(PAY, "Done.", PAY, "As you wish.")) as (client, _):
        asked = await client.responses.create(model="clerk", input="Pay 5.")
        request = asked.output[-1]
        assert (request.type, request.name, request.arguments) == (
            "mcp_approval_request",
            "pay",
            '{"amount":5}',
        )
        decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = await client.responses.create(model="clerk", input=[decision], previous_response_id=asked.id)
        assert done.output_text == "Done."
        with pytest.raises(openai.APIStatusError) as twice:
            await client.responses.create(model="clerk", input=[decision], previous_response_id=asked.id)
        assert twice.value.status_code in (409, 422)
        with pytest.raises(openai.APIStatusError) as waits:
            await client.chat.completions.create(
                model="clerk", messages=[{"role": "user", "content": "Pay again."}]
            )
        assert waits.value.status_code == 409 and waits.value.code == "AwaitingApproval"


async def test_a_response_in_the_background_outlives_its_client_and_is_read_again() -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> str:
        begun.set()
        await end.wait()
        return "Late, but here."

    async with client_of(make(slow)) as (client, _):
        stream = await client.responses.create(model="clerk", input="Hurry.", background=True, stream=True)
        first = await anext(aiter(stream))
        await begun.wait()
        await stream.close()
        assert (await client.responses.retrieve(first.response.id)).status == "in_progress"
        end.set()
        rest = [
            event
            async for event in await client.responses.retrieve(
                first.response.id, stream=True, starting_after=first.sequence_number
            )
        ]
        assert rest[-1].type == "response.completed" and rest[-1].response.output_text == "Late, but here."
        assert all(event.sequence_number > first.sequence_number for event in rest)


async def test_a_client_that_leaves_ends_its_run_and_cancel_ends_one_in_the_background() -> None:
    begun = asyncio.Event()

    async def never(request: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = make(never, never)
    async with client_of(agent) as (client, _):
        stream = await client.responses.create(model="clerk", input="Hurry.", stream=True)
        first = await anext(aiter(stream))
        await begun.wait()
        await stream.close()
        session = first.response.conversation.id
        for _ in range(400):
            if (await agent.session(session).state()).status == "aborted":
                break
            await asyncio.sleep(0.05)
        assert (await agent.session(session).state()).status == "aborted"
        begun.clear()
        other = await client.responses.create(model="clerk", input="Hurry.", background=True)
        await begun.wait()
        assert (await client.responses.cancel(other.id)).status == "cancelled"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"messages": []}, 400, "last message"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "last message"),
        ({"messages": "x"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, 400, "leave out 'n'"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "its own tools"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "may hold text"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}
                ]
            },
            400,
            "data URL",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_in_their_form(body: Any, status: int, words: str) -> None:
    async with served(make("x")) as server:
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == status and words in answer.json()["error"]["message"]
        assert (await server.client.get("/v1/responses/resp_bm90.run_x")).status_code == 404
        bare = await server.client.post(
            "/v1/responses", json={"input": "x"}, headers={"authorization": "Bearer no"}
        )
        assert bare.status_code == 401


async def test_an_unknown_field_is_left_alone_and_a_failure_is_an_error() -> None:
    async with served(make("Hi.", Turn(error={"code": "ModelRefused"}))) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "logit_bias": {}, "from_the_future": 1}
        assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200
        failed = await server.client.post("/v1/responses", json={"input": "x"})
        assert failed.json()["status"] == "failed" and "ModelRefused" in failed.json()["error"]["message"]
