"""A window that nobody told us: no turn fails, and it is learned from what was refused."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.context import ContextOptions, Projection, ProjectionContext
from turnlog.context._options import read_figures
from turnlog.contract import AgentError, TokenUsage, encode
from turnlog.history import MemoryStore
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn

TURNS = 40


@tool(timeout=None, concurrent=True)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return f"hall {hall}\n" + "\n".join(f"crate-{hall}-{n} weighs {n * 7} kilos" for n in range(40 * hall))


@tool(timeout=None, concurrent=True)
async def archive(hall: int) -> str:
    """Read the archive of a hall."""
    return "".join(f"第{n}箱重{n * 7}公斤,存放于{hall}号仓库。" for n in range(30 * hall))


class Server:
    """Refuses what is longer than its window, and may say how long that is and what it counted."""

    def __init__(self, window: int, *, says: bool, counts: bool, bytes_per_token: float = 4) -> None:
        self.window, self.says, self.counts = window, says, counts
        self.bytes_per_token = bytes_per_token
        self.refused = self.answered = 0

    def __call__(self, request: ModelRequest) -> Turn | AgentError:
        size = len((request.system_prompt or "").encode()) + len(encode(request.tool_specs))
        size += sum(len(encode(message.parts)) for message in request.messages)
        tokens = int(size / self.bytes_per_token)
        if tokens > self.window:
            self.refused += 1
            told = f": {tokens} tokens > {self.window} maximum" if self.says else ""
            return AgentError("ModelContextOverflow", f"prompt is too long{told}")
        self.answered += 1
        usage = TokenUsage(input_tokens=tokens if self.counts else 0, output_tokens=1, total_tokens=tokens)
        if request.messages[-1].role == "user":
            halls = [1 + (self.answered + n) % 5 for n in range(3)]
            name = "archive" if self.answered % 3 == 0 else "stock"
            return Turn(
                tool_calls=[{"name": name, "arguments": {"hall": hall}} for hall in halls], usage=usage
            )
        return Turn(text=f"Noted {self.answered}. " + "It all adds up. " * 20, usage=usage)


async def forty_turns(server: Server, context: ContextOptions | None = None, **model: Any) -> Agent:
    agent = Agent(
        ScriptedModel(default=server, **model),
        store=MemoryStore(),
        tools=[stock, archive],
        context=context or ContextOptions(),
    )
    for number in range(TURNS):
        result = await agent.run(f"Round {number}: what is in the halls? " + "Please. " * 30, session="s1")
        assert result.status == "completed", f"round {number}: {result.error}"
    return agent


@pytest.mark.spec("C-13")
@pytest.mark.parametrize("counts", [True, False], ids=["usage", "no usage"])
@pytest.mark.parametrize("says", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("window", [4_000, 8_000, 32_000])
async def test_no_turn_fails_in_a_window_nobody_told_us(window: int, says: bool, counts: bool) -> None:
    server = Server(window, says=says, counts=counts, bytes_per_token=3)
    await forty_turns(server)
    assert server.refused <= (6 if says else 12), f"{server.refused} refused of {server.answered}"


@pytest.mark.spec("C-13")
async def test_no_turn_fails_in_a_window_smaller_than_the_table_says() -> None:
    server = Server(8_192, says=True, counts=True)
    await forty_turns(server, model_id="llama-3.1-8b")
    assert server.refused <= 6


@pytest.mark.spec("C-13")
async def test_what_was_learned_is_known_when_the_session_is_opened_again() -> None:
    server = Server(8_000, says=True, counts=False)
    agent = await forty_turns(server)
    entries = await agent.store.load("s1")
    refused = [entry for entry in entries if entry.kind == "model_call_failed"]
    assert refused
    manager = ProjectionContext()
    manager.refold(entries)
    assert manager.preview("x" * 4_000, "artifact a") is not None, "600 tokens are the most of one result"
    assert manager.page_size < 2_500
    assert ProjectionContext().page_size == 8_000
    assert ProjectionContext().preview("x" * 4_000, "artifact a") is None


@pytest.mark.parametrize(
    ("message", "window", "counted"),
    [
        ("This model's maximum context length is 8192 tokens. However, you requested 9000", 8_192, 9_000),
        ("prompt is too long: 210,000 tokens > 200,000 maximum", 200_000, 210_000),
        ("input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000", 200_000, None),
        (
            "input token count (1050000) exceeds the maximum number of tokens allowed (1048576)",
            1048576,
            1050000,
        ),
        ("request (5000 tokens) exceeds the available context size (4096 tokens)", 4_096, 5_000),
        ("Range of input length should be [1, 30720]", 30_720, None),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 4_096, 5_000),
        ("maximum prompt length is 131072 but the request contains 140000 tokens", 131_072, 140_000),
        ("prompt too long", None, None),
        ("status 400: the context window is exceeded", None, None),
        ("trial 3 of at most 5: too long", None, None),
    ],
)
def test_figures_are_read_from_a_refusal(message: str, window: int | None, counted: int | None) -> None:
    assert read_figures(message) == (window, counted)


@pytest.mark.spec("C-9")
def test_a_preview_counts_bytes() -> None:
    text = "仓库" * 3_000
    limit = 2_500 * ContextOptions().bytes_per_token
    preview = ProjectionContext().preview(text, "artifact a")
    assert preview is not None
    assert 0.9 * limit < len(preview.encode()) < 1.05 * limit
    assert Projection().meter.tokens(len(preview.encode())) < 2_600
