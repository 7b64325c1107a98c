"""Record once, replay for ever: what is compared, and how a change is told."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, Image, ImagePart, ModelParams, RetryPolicy, text_part
from turnlog.history import MemoryStore, export_jsonl
from turnlog.testing import RecordedModel, RecordingModel, ScriptedModel, Turn

pytest_plugins = ["pytester"]

RETRY = RetryPolicy(max_attempts=3, base_delay_ms=0)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@tool
def book(hotel: str) -> str:
    """Book a room."""
    return f"{hotel}: one room"


def build(model: Any, **options: Any) -> Agent[str]:
    usual: dict[str, Any] = {
        "instructions": "You book hotels.",
        "tools": [book],
        "params": ModelParams(temperature=0.0),
        "store": "memory:",
        "retry": RETRY,
    }
    return Agent(model, **{**usual, **options})


def script() -> ScriptedModel:
    call = Turn(thinking="The Ritz.", tool_calls=[{"name": "book", "arguments": {"hotel": "Ritz"}}])
    return ScriptedModel([AgentError("ModelOverloaded", "busy"), call, "Booked.", "At eight."])


async def talk(agent: Agent[Any]) -> list[str]:
    picture = ImagePart(payload=Image(mime_type="image/png", data=base64.b64encode(PNG).decode()))
    first = await agent.run([text_part("Book this one."), picture], session="trip")
    return [first.text, (await agent.run("When?", session="trip")).text]


@pytest.fixture(params=["store", "export", "recording"])
async def recording(request: pytest.FixtureRequest, tmp_path: Path) -> RecordedModel:
    store = MemoryStore()
    recorder = RecordingModel(script())
    model = recorder if request.param == "recording" else script()
    assert await talk(build(model, store=store)) == ["Booked.", "At eight."]
    path = tmp_path / "ritz.jsonl"
    if request.param == "store":
        return RecordedModel.from_log(store, "trip")
    if request.param == "recording":
        recorder.save(path)
    else:
        path.write_bytes(await export_jsonl(store, "trip"))
    return RecordedModel.from_log(path)


@pytest.mark.spec("X-5")
async def test_the_same_requests_get_the_recorded_answers(recording: RecordedModel) -> None:
    assert await talk(build(recording)) == ["Booked.", "At eight."]
    assert recording.calls == 4 and recording.mismatches == []
    with pytest.raises(AgentError, match="has no request 5"):
        await build(recording).run("And?", session="trip")


@pytest.mark.spec("X-5")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"instructions": "You book trains."},
            ["the system prompt changed", "-  You book hotels.", "+  You book trains."],
        ),
        ({"params": ModelParams(temperature=1.0)}, ["parameter temperature: 0.0 is now 1.0"]),
        ({"tools": []}, ["tool 'book' is gone"]),
    ],
    ids=["prompt", "parameter", "tool"],
)
async def test_a_change_fails_and_is_named(recording: RecordedModel, change: Any, words: list[str]) -> None:
    with pytest.raises(AgentError) as error:
        await talk(build(recording, **change))
    assert error.value.code == "ReplayMismatch"
    for each in ("request 1 is not in", *words):
        assert each in error.value.message
    assert len(recording.mismatches) == 1


async def test_a_changed_result_and_a_changed_tool_are_named_by_their_place(recording: RecordedModel) -> None:
    @tool(name="book")
    def other(hotel: str) -> str:
        """Book a room."""
        return f"{hotel}: two rooms"

    with pytest.raises(
        AgentError, match=r"request 3 (.|\n)*- message 3 \(tool\) changed(.|\n)*\+.*two rooms"
    ):
        await talk(build(recording, tools=[other]))


async def test_a_new_argument_of_a_tool_is_named(recording: RecordedModel) -> None:
    @tool(name="book")
    def more(hotel: str, nights: int) -> str:
        """Book a room."""
        return hotel

    with pytest.raises(AgentError, match=r"the parameters of tool 'book' changed(.|\n)*nights"):
        await talk(build(recording, tools=[more]))


async def test_requests_are_found_in_whichever_order_they_come(tmp_path: Path) -> None:
    recorder = RecordingModel(ScriptedModel(default=lambda request: f"On {request.messages[0].text}."))
    for topic in ("bees", "ants", "wasps"):
        await build(recorder).run(topic)
    recorder.save(tmp_path / "insects.jsonl")
    model = RecordedModel.from_log(tmp_path / "insects.jsonl")
    for topic in ("wasps", "bees", "ants"):
        assert (await build(model).run(topic)).text == f"On {topic}."


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot read the recording"):
        RecordedModel.from_log(tmp_path / "none.jsonl")
    with pytest.raises(AgentError, match="name the session"):
        RecordedModel.from_log(MemoryStore())


TEST = """
from turnlog import Agent
from turnlog.testing import ScriptedModel

def test_it_greets(recorded):
    model = recorded("recordings/greeting.jsonl", model=ScriptedModel(["Good day."]))
    agent = Agent(model, instructions="INSTRUCTIONS", store="memory:")
    result = agent.run_sync("Greet me.", check=False)
    assert CHECK
"""


@pytest.mark.spec("X-5")
def test_the_fixture_records_when_asked_and_replays_ever_after(pytester: pytest.Pytester) -> None:
    def run(instructions: str, check: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(TEST.replace("INSTRUCTIONS", instructions).replace("CHECK", check))
        return pytester.runpytest_inprocess(
            "-p", "turnlog.testing.pytest_plugin", "-p", "no:xdist", "-p", "no:asyncio", *options
        )

    said = "result.text == 'Good day.'"
    missing = run("Be kind.", said)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*run this test once with --turnlog-record*"])
    file = pytester.path / "recordings" / "greeting.jsonl"
    run("Be kind.", "False", "--turnlog-record").assert_outcomes(failed=1)
    assert not file.exists()
    run("Be kind.", said, "--turnlog-record").assert_outcomes(passed=1)
    before = file.read_bytes()
    run("Be kind.", said).assert_outcomes(passed=1)
    changed = run("Be curt.", "result.status == 'failed'")
    changed.assert_outcomes(passed=1, errors=1)
    changed.stdout.fnmatch_lines(["*the system prompt changed*", "*-  Be kind.*", "*+  Be curt.*"])
    run("Be curt.", said, "--turnlog-record=all").assert_outcomes(passed=1)
    assert file.read_bytes() != before


SUITE = """
from turnlog import Agent
from turnlog.evals import Case, Suite, contains
from turnlog.testing import ScriptedModel

suite = Suite(
    "greetings",
    agents=Agent(ScriptedModel(default="hello there"), store="memory:"),
    cases=[Case(name=name, input=name, checks=[contains(name)]) for name in ("hello", "goodbye", "there")],
)
"""


@pytest.mark.spec("O-6")
def test_a_suite_in_a_test_file_is_a_test_for_each_case(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_greetings=SUITE)
    options = ("-p", "turnlog.testing.pytest_plugin", "-p", "no:xdist", "-p", "no:asyncio")
    run = pytester.runpytest_inprocess(*options)
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(["*contains: the answer has no 'goodbye'*", "*session eval:greetings:*"])
    pytester.runpytest_inprocess(*options, "-k", "hello or there").assert_outcomes(passed=2, deselected=1)
