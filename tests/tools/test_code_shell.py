"""The shell, its jobs in the background, and patterns that take no longer than their text."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.code_rig import CodeRig, call
from turnlog import Agent, events
from turnlog.contract import ToolResultsEntry
from turnlog.testing import FakeOutput, FakeProcess, ScriptedModel
from turnlog.tools import code_tools
from turnlog.tools.code._pattern import BadPattern, Pattern
from turnlog.tools.code._shell import Output


async def test_a_command_answers_with_both_streams_and_its_exit_code() -> None:
    rig = CodeRig(commands={"make": FakeOutput("\x1b[31mbuilding\x1b[0m\n", "warning\n", 2)})
    [(status, text), (_, missing)] = await rig.run(
        call("shell", command="make"), call("shell", command="nope")
    )
    assert status == "success" and text == "building\nwarning\n[ended with exit code 2]"
    assert missing.endswith("[ended with exit code 127]")


async def test_partial_output_reaches_the_event_stream() -> None:
    rig = CodeRig(commands={"make": "building\n"})
    agent = rig.agent(call("shell", command="make"), "Done.")
    async with agent.run_stream("Work.", session="s") as run:
        shown = [event.text async for event in run if isinstance(event, events.ToolProgressed)]
    assert "".join(filter(None, shown)) == "building\n"


async def test_a_command_beyond_its_time_is_stopped_and_told_with_what_it_wrote() -> None:
    async def forever(process: FakeProcess) -> int:
        await process.out("begun\n")
        await asyncio.Event().wait()
        return 0

    rig = CodeRig(commands={"serve": forever})
    [(status, text), (bad, words)] = await rig.run(
        call("shell", command="serve", timeout=0.05), call("shell", command="serve", timeout=0)
    )
    assert status == "failed" and text == "begun\n[did not end in time and was stopped]"
    assert bad == "failed" and "above 0 and at most 3600" in words


async def test_much_output_is_kept_apart_with_its_middle_left_out() -> None:
    async def flood(process: FakeProcess) -> int:
        for _ in range(400):
            await process.out(b"x" * 9_999 + b"\n")
        return 0

    rig = CodeRig(commands={"flood": flood})
    await rig.run(call("shell", command="flood"))
    [entry] = [each for each in await rig.store.load("s") if isinstance(each, ToolResultsEntry)]
    artifact = entry.payload.outcomes[0].artifact
    assert artifact is not None
    kept = await rig.store.get_blob(artifact)
    assert 900_000 < len(kept) < 1_100_000 and b"characters left out here" in kept


async def test_jobs_run_beside_the_conversation_and_their_end_is_told() -> None:
    release = asyncio.Event()

    async def serve(process: FakeProcess) -> int:
        await process.out("listening\n")
        await release.wait()
        await process.out("bye\n")
        return 3

    rig = CodeRig(commands={"serve": serve, "ls": "a\n"})
    [(_, started), (_, first), (_, listed)] = await rig.run(
        call("shell", command="serve", background=True), call("job_output", job="job-1"), call("job_output")
    )
    assert started == "job-1 runs in the background: serve"
    assert first == "listening\n[job-1 is still running]"
    assert listed == "job-1 is running: serve"
    release.set()
    [(_, rest), (_, nothing), (status, unknown)] = await rig.run(
        call("job_output", job="job-1", wait=5), call("shell", command="ls"), call("job_output", job="job-7")
    )
    assert rest == "bye\n[job-1 ended with exit code 3]"
    assert nothing == "a\n[ended with exit code 0]"
    assert status == "failed" and "there is no job 'job-7'; the jobs are: job-1" in unknown


async def test_the_next_command_tells_of_jobs_that_have_ended() -> None:
    rig = CodeRig(commands={"quick": "done\n", "ls": "a\n"})
    await rig.run(call("shell", command="quick", background=True))
    [(_, text)] = await rig.run(call("shell", command="ls"))
    assert text.endswith("[job-1 ended with exit code 0; read what it wrote with job_output]")


async def test_fifty_jobs_run_at_once_and_are_stopped() -> None:
    async def forever(process: FakeProcess) -> int:
        await asyncio.Event().wait()
        return 0

    rig = CodeRig(commands={"serve": forever})
    await rig.run(*(call("shell", command="serve", background=True) for _ in range(50)))
    results = await rig.run(*(call("job_stop", job=f"job-{number}") for number in range(1, 51)))
    assert [text for _, text in results] == [f"job-{number} was stopped" for number in range(1, 51)]


async def test_without_a_runtime_every_tool_says_what_is_missing() -> None:
    for name, arguments in (
        ("shell", {"command": "ls"}),
        ("read", {"path": "a"}),
        ("glob", {"pattern": "*"}),
    ):
        model = ScriptedModel([call(name, **arguments), "Done."])
        agent = Agent(model, tools=code_tools(), store="memory:")
        await agent.run("Work.")
        assert f"tool '{name}' needs a runtime" in str(model.requests[-1].messages[-1])


def test_fewer_tools_for_an_agent_that_only_reads() -> None:
    assert [each.name for each in code_tools(writes=False, commands=False)] == [
        "read",
        "list",
        "glob",
        "grep",
    ]


def test_output_can_be_read_on_from_where_it_was_left() -> None:
    from turnlog.contract import ProcessOutput

    output = Output()
    euro = "€".encode()
    for data in (b"one\n", euro[:1], euro[1:], b" two\n"):
        output.add(ProcessOutput(stream="stdout", data=data))
    assert (
        output.text() == "one\n€ two\n" and output.text(4) == "€ two\n" and output.text(output.length) == ""
    )


# ── patterns ──

ATOMS = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\w",
    r"\b",
    "^",
    "$",
    r"\s",
    "(a|b)",
    "(?:ab|c)",
    " ",
    r"\W",
    "[a-c]",
]
REPEATS = ["", "", "*", "+", "?", "{2}", "{1,2}", "{,2}", "*?"]
PATTERNS = st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.text("abcAB 1_", max_size=8), st.booleans())
def test_a_pattern_finds_what_the_standard_library_finds(
    parts: list[tuple[str, str]], line: str, ignore_case: bool
) -> None:
    text = "".join(atom + repeat for atom, repeat in parts)
    try:
        theirs = re.compile(text, re.IGNORECASE if ignore_case else 0)
    except re.error:
        return
    assert Pattern(text, ignore_case=ignore_case).search(line) is bool(theirs.search(line))


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*a){12}$", r"(\w+\s?)*!"])
def test_a_pattern_takes_steps_in_proportion_to_the_text(pattern: str) -> None:
    """The standard library would need longer than the universe is old; here each character is one look-up."""
    found = Pattern(pattern)
    assert found.search("a" * 50_000 + "b") is False
    assert len(found._states) < 4_001  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a", "its end where a ) was expected"),
        ("a)", "a ) without its ("),
        ("*a", "a * with nothing before it"),
        (r"(a)\1", "a reference back"),
        ("(?=a)", "not supported"),
        ("[a", "the ] of a set"),
        ("a{5000}", "a repetition that is not between"),
        ("((a{1000}){1000}){1000}", "too large"),
        ("[z-a]", "a range whose end comes before"),
        ("\\", "its end where a character behind the backslash"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_in_words(pattern: str, words: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(words)):
        Pattern(pattern)
