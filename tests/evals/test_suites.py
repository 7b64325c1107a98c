"""Suites of cases: what is tried, what is kept of it, and what a report tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from turnlog import Agent, AgentError, open_store, tool
from turnlog.contract import TokenUsage
from turnlog.evals import (
    Attempt,
    Case,
    Report,
    Suite,
    Verdict,
    add_case,
    called,
    contains,
    equals,
    fits,
    judge,
    matches,
    not_called,
    read_cases,
    similar,
)
from turnlog.history import MemoryStore
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn


@tool
def look_up(order: str) -> str:
    """Find an order."""
    return f"order {order} was paid"


def asked(request: ModelRequest[Any]) -> str:
    return request.messages[-1].text


def echo(request: ModelRequest[Any]) -> str:
    return f"You said: {asked(request)}"


def agent(answer: Callable[[ModelRequest[Any]], Any] = echo, store: Any = None, **parts: Any) -> Agent:
    return Agent(ScriptedModel(default=answer), store=store or MemoryStore(), **parts)


def looks_up(request: ModelRequest[Any]) -> Any:
    if request.messages[-1].role == "user":
        return Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "42"}}])
    return "Order 42 was paid."


async def try_one(*checks: Any, answer: Any = echo, **parts: Any) -> Report:
    suite = Suite("s", agents=agent(answer, **parts), cases=[Case(name="c", input="hello", checks=checks)])
    return await suite.run()


@pytest.mark.parametrize(
    ("check", "passes"),
    [
        (equals("You said: hello"), True),
        (equals("You said: hello "), True),
        (equals("hello"), False),
        (contains("HELLO", "you"), True),
        (contains("HELLO", ignore_case=False), False),
        (contains("hello", "goodbye"), False),
        (matches(r"^You \w+:"), True),
        (matches(r"^hello"), False),
        (similar("you said hello", at_least=0.6), True),
        (similar("something else entirely"), False),
        (not_called("look_up"), True),
        (called("look_up"), False),
        (lambda attempt: True, True),
        (lambda attempt: None, True),
        (lambda attempt: False, False),
        (lambda attempt: "it is too short", False),
        (lambda attempt: Verdict(passed=True, score=0.9), True),
    ],
)
async def test_a_check_decides(check: Any, passes: bool) -> None:
    report = await try_one(check)
    assert report.trials[0].status == ("passed" if passes else "failed")
    assert report.passed is passes


async def test_a_failed_check_says_why() -> None:
    def short(attempt: Attempt) -> None:
        assert len(attempt.text) < 5, "the answer is long"

    report = await try_one(short, contains("goodbye"))
    assert [verdict.reason for verdict in report.trials[0].verdicts] == [
        "the answer is long",
        "the answer has no 'goodbye'",
    ]
    assert report.trials[0].reason == "short: the answer is long; contains: the answer has no 'goodbye'"


async def test_a_check_that_breaks_is_no_failure_of_the_answer() -> None:
    def broken(attempt: Attempt) -> bool:
        raise KeyError("price")

    async def wrong(attempt: Attempt) -> Any:
        return 3

    report = await try_one(broken, wrong)
    assert report.trials[0].status == "error"
    assert report.trials[0].reason == (
        "broken: the check raised KeyError('price'); wrong: the check returned a int; return True, False, "
        "None, why it failed as text, or a Verdict"
    )
    assert report.scores[0].errors == 1 and not report.passed


async def test_tool_calls_are_checked_with_their_arguments_and_results() -> None:
    def result(attempt: Attempt) -> bool:
        return [use.result for use in attempt.calls] == ["order 42 was paid"]

    report = await try_one(
        called("look_up"),
        called("look_up", {"order": "42"}),
        called("look_up", times=1),
        result,
        answer=looks_up,
        tools=[look_up],
    )
    assert report.passed, report.trials[0].reason
    other = await try_one(called("look_up", {"order": "7"}), answer=looks_up, tools=[look_up])
    assert (
        other.trials[0].reason
        == 'called: look_up({"order":"7"}) was never called; the model called look_up({"order":"42"})'
    )


async def test_answers_are_held_against_a_type_and_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    good = await try_one(fits(schema), fits(dict[str, int]), answer=lambda request: '{"a": 1}')
    assert good.passed, good.trials[0].reason
    bad = await try_one(fits(schema), answer=lambda request: '{"a": "one"}')
    assert bad.trials[0].status == "failed" and "integer" in bad.trials[0].reason
    none = await try_one(fits(schema), answer=lambda request: "one")
    assert "the answer is not JSON" in none.trials[0].reason


async def test_typed_outputs_reach_the_checks_as_values() -> None:
    suite = Suite(
        "typed",
        agents=agent(lambda request: '{"value": 3}', output_type=int),
        cases=[Case(name="three", input="3?", checks=[equals(3), lambda attempt: attempt.output + 1 == 4])],
    )
    report = await suite.run()
    assert report.passed, report.trials[0].reason


async def test_a_run_that_fails_is_an_error_with_its_code() -> None:
    report = await try_one(contains("x"), answer=lambda request: Turn(error={"code": "ModelRefused"}))
    trial = report.trials[0]
    assert trial.status == "error" and trial.error is not None and trial.error.code == "ModelRefused"


async def test_two_agents_try_every_case_as_often_as_asked() -> None:
    store = MemoryStore()
    suite = Suite(
        "pair",
        agents={"polite": agent(store=store), "curt": agent(lambda request: "No.", store=store)},
        cases=[Case(name=name, input=name, checks=[contains(name)]) for name in ("a", "b", "c")],
        repeat=4,
    )
    report = await suite.run(concurrency=3)
    assert len(report.trials) == 24 and len({trial.session_id for trial in report.trials}) == 24
    assert [(score.agent, score.rate.passed, score.rate.of) for score in report.scores] == [
        ("polite", 12, 12),
        ("curt", 0, 12),
    ]
    low, high = report.scores[0].rate.low, report.scores[0].rate.high
    assert 0.74 < low < 0.76 and high == 1.0  # Wilson's interval for 12 of 12
    assert report.rate("curt", "b").of == 4
    assert await store.tail(report.trials[0].session_id) is not None


async def test_the_next_run_tells_what_changed_the_worst_first() -> None:
    store, broken = MemoryStore(), set[str]()

    def answer(request: ModelRequest[Any]) -> str:
        return "no" if asked(request) in broken else "yes"

    def suite() -> Suite:
        cases = [Case(name=name, input=name, checks=[equals("yes")]) for name in ("a", "b", "c")]
        return Suite("again", agents={"one": agent(answer, store)}, cases=cases, repeat=2)

    broken.add("c")
    first = await suite().run()
    assert first.compared_to is None and first.changes == []
    broken.clear()
    broken.add("a")
    second = await suite().run()
    assert second.run != first.run and second.compared_to == first.run
    assert [(change.case, change.is_worse) for change in second.changes] == [("a", True), ("c", False)]
    assert [change.case for change in second.regressions] == ["a"]


async def test_what_is_done_is_not_asked_again_after_a_stop(tmp_path: Path) -> None:
    url, calls = f"sqlite:{tmp_path / 'e.db'}", list[str]()
    reached = asyncio.Event()

    def suite(stop_at: int | None) -> Suite:
        async def answer(request: ModelRequest[Any]) -> str:
            calls.append(asked(request))
            if len(calls) == stop_at:
                reached.set()
                await asyncio.Event().wait()
            return "fine"

        names = [f"case {number}" for number in range(8)]
        cases = [Case(name=name, input=name, checks=[equals("fine")]) for name in names]
        return Suite("stop", agents={"one": agent(answer, open_store(url))}, cases=cases)

    stopped = suite(4)
    task = asyncio.create_task(stopped.run(concurrency=1))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first = list(calls)
    calls.clear()
    report = await suite(None).run(concurrency=1)
    assert report.passed and len(report.trials) == 8
    assert first == [f"case {number}" for number in range(4)]
    assert calls == [f"case {number}" for number in range(3, 8)]  # the one that was cut off, and the rest
    calls.clear()
    assert (await suite(None).run(concurrency=1)).run != report.run and len(calls) == 8


async def test_a_changed_suite_or_fresh_begins_anew() -> None:
    store, count = MemoryStore(), 0

    def answer(request: ModelRequest[Any]) -> str:
        nonlocal count
        count += 1
        return "fine"

    def suite(*names: str) -> Suite:
        return Suite(
            "new", agents={"one": agent(answer, store)}, cases=[Case(name=name, input=name) for name in names]
        )

    with pytest.raises(AgentError):
        await suite("a").run(max_cost=0.0, cases=lambda case: False)
    await suite("a", "b").run(cases=lambda case: case.name == "b")
    assert count == 1
    report = await suite("a", "b").run()
    assert count == 3 and report.cases == 2


async def test_no_attempt_begins_once_the_money_is_spent() -> None:
    def costs(request: ModelRequest[Any]) -> Turn:
        return Turn(
            text="fine", usage=TokenUsage(input_tokens=10, output_tokens=10, total_tokens=20, cost=0.4)
        )

    cases = [Case(name=str(number), input="x") for number in range(10)]
    store = MemoryStore()
    report = await Suite("rich", agents=agent(costs, store), cases=cases).run(concurrency=1, max_cost=1.0)
    assert len(report.trials) == 3 and not report.passed
    assert report.stopped == "$1.2000 are spent, and $1.0000 were allowed"
    more = await Suite("rich", agents=agent(costs, store), cases=cases).run(concurrency=1, max_cost=100.0)
    assert more.run == report.run and len(more.trials) == 10 and more.stopped is None


async def test_one_suite_is_run_by_one_process_at_a_time() -> None:
    store, begun, end = MemoryStore(), asyncio.Event(), asyncio.Event()

    async def waits(request: ModelRequest[Any]) -> str:
        begun.set()
        await end.wait()
        return "fine"

    def suite(name: str) -> Suite:
        return Suite(name, agents=agent(waits, store), cases=[Case(name="a", input="a")])

    running = asyncio.create_task(suite("one").run())
    await begun.wait()
    with pytest.raises(AgentError) as busy:
        await suite("one").run()
    assert busy.value.code == "SessionBusy" and "what it has done is kept" in busy.value.message
    other = asyncio.create_task(suite("two").run())
    end.set()
    assert (await running).passed and (await other).passed


class TestJudges:
    async def test_a_judge_has_a_log_of_its_own_and_its_cost_counts(self) -> None:
        store, seen = MemoryStore(), list[str]()

        def decide(request: ModelRequest[Any]) -> Turn:
            seen.append(asked(request))
            return Turn(
                text='{"reason": "It greets.", "passed": true}',
                usage=TokenUsage(input_tokens=7, output_tokens=1, total_tokens=8, cost=0.25),
            )

        suite = Suite(
            "judged",
            agents=agent(store=store),
            cases=[Case(name="c", input="hello", reference="Hi there", checks=[judge("The answer greets.")])],
            judge=ScriptedModel(default=decide),
        )
        report = await suite.run()
        verdict = report.trials[0].verdicts[0]
        assert report.passed and verdict.reason == "It greets."
        assert (report.usage is not None and report.usage.cost is None) or report.usage.cost == 0.25
        assert verdict.session_id is not None and await store.tail(verdict.session_id) is not None
        for part in ("The answer greets.", "hello", "Hi there", "You said: hello"):
            assert part in seen[0]

    async def test_a_judge_that_answers_nonsense_breaks_the_check(self) -> None:
        suite = Suite(
            "nonsense",
            agents=agent(),
            cases=[Case(name="c", input="hello", checks=[judge("It is good.")])],
            judge=ScriptedModel(default="maybe, who knows"),
        )
        trial = (await suite.run()).trials[0]
        assert trial.status == "error" and "the judge gave no verdict: OutputInvalid" in trial.reason

    def test_a_judge_without_a_model_is_refused_at_once(self) -> None:
        with pytest.raises(AgentError, match="a judge without a model"):
            Suite("s", agents=agent(), cases=[Case(name="c", input="x", checks=[judge("good")])])


class TestCasesFromSessions:
    async def test_a_session_becomes_a_case_that_needs_no_tool_again(self, tmp_path: Path) -> None:
        store, ran = MemoryStore(), list[str]()

        @tool(name="look_up")
        def live(order: str) -> str:
            """Find an order."""
            ran.append(order)
            return f"order {order} was paid"

        production = agent(looks_up, store, tools=[live])
        await production.run("Where is order 42?", session="monday")
        assert ran == ["42"]
        file = tmp_path / "cases.jsonl"
        case = await add_case(file, store, "monday")
        again = await add_case(file, store, "monday")
        assert (case.name, again.name, case.reference) == ("monday", "monday 2", "Order 42 was paid.")
        assert json.loads(file.read_text().splitlines()[0])["checks"] == [{"called": "look_up"}]

        elsewhere = agent(looks_up, tools=[live])  # another store, which has never seen that session
        report = await Suite("recorded", agents=elsewhere, cases=read_cases(file)).run()
        assert report.passed, report.trials[0].reason
        assert ran == ["42"]  # the recording answered

    async def test_a_call_that_is_not_recorded_ends_the_attempt_or_runs_live(self, tmp_path: Path) -> None:
        store, ran = MemoryStore(), list[str]()

        @tool(name="look_up")
        def live(order: str) -> str:
            """Find an order."""
            ran.append(order)
            return "unknown"

        await agent(looks_up, store, tools=[live]).run("Where is order 42?", session="monday")
        file = tmp_path / "cases.jsonl"
        await add_case(file, store, "monday")
        ran.clear()

        def another(request: ModelRequest[Any]) -> Any:
            if request.messages[-1].role == "user":
                return Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "7"}}])
            return "Order 7."

        recorded = await Suite("r", agents=agent(another, tools=[live]), cases=read_cases(file)).run()
        assert recorded.trials[0].status == "error" and ran == []
        line = json.loads(file.read_text()) | {"tools": "live"}
        file.write_text(json.dumps(line))
        through = await Suite("l", agents=agent(another, tools=[live]), cases=read_cases(file)).run()
        assert through.passed and ran == ["7"]

    async def test_the_instructions_of_the_agent_under_test_hold(self, tmp_path: Path) -> None:
        store, seen = MemoryStore(), list[str | None]()
        await agent(store=store, instructions="Be kind.").run("hello", session="s")
        case = await add_case(tmp_path / "c.jsonl", store, "s")

        def answer(request: ModelRequest[Any]) -> str:
            seen.append(request.system_prompt)
            return "fine"

        await Suite("i", agents=agent(answer, instructions="Be curt."), cases=[case]).run()
        assert seen == ["Be curt."]

    async def test_a_session_without_a_question_is_refused(self, tmp_path: Path) -> None:
        store = MemoryStore()
        await agent(store=store).run("hello", session="s")
        with pytest.raises(AgentError, match="has no question at entry 1;"):
            await add_case(tmp_path / "c.jsonl", store, "s", entry=1)
        assert not (tmp_path / "c.jsonl").exists()


class TestFiles:
    def test_cases_are_read_with_their_checks(self, tmp_path: Path) -> None:
        file = tmp_path / "c.jsonl"
        file.write_text(
            '{"name": "one", "input": "hi", "checks": [{"contains": ["a", "b"]}, '
            '{"similar": "x", "atLeast": 0.5}]}\n'
            '\n{"input": "ho", "checks": [{"called": "t", "arguments": {"a": 1}, "times": 2}]}\n'
        )
        cases = read_cases(file)
        assert [(case.name, len(case.checks)) for case in cases] == [("one", 2), ("line 3", 1)]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("{", "line 1: "),
            ('{"input": "a", "chekcs": []}', "chekcs"),
            ('{"name": "a"}', "needs an input or a log"),
            ('{"input": "a", "checks": [{"contians": "b"}]}', "a check names one of equals, contains"),
            ('{"input": "a", "checks": [{"matches": "("}]}', "line 1"),
            ('{"input": "a", "checks": [{"contains": "b", "times": 2}]}', "line 1"),
            ("", "has no case"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: str, words: str) -> None:
        file = tmp_path / "c.jsonl"
        file.write_text(line)
        with pytest.raises(AgentError) as wrong:
            read_cases(file)
        assert wrong.value.code == "ConfigInvalid" and words in wrong.value.message

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(AgentError, match="cannot read"):
            read_cases(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a:b"}, "cannot be named"),
        ({"agents": {}}, "has no agent"),
        ({"cases": []}, "has no case"),
        ({"cases": [Case(name="a", input="1"), Case(name="a", input="2")]}, "two cases named 'a'"),
        ({"repeat": 0}, "repeat is 0"),
    ],
)
def test_a_wrong_suite_is_refused(change: dict[str, Any], words: str) -> None:
    parts: dict[str, Any] = {"name": "s", "agents": agent(), "cases": [Case(name="a", input="1")], **change}
    with pytest.raises(AgentError, match=words):
        Suite(parts.pop("name"), **parts)


async def test_junit_has_a_test_for_each_trial_and_survives_any_text() -> None:
    report = await try_one(lambda attempt: "bad \x00 <&> \ud800 text", contains("nothing"))
    root = ElementTree.fromstring(report.junit())
    case = root.find("testsuite/testcase")
    assert case is not None and case.get("name") == "c"
    failure = case.find("failure")
    assert failure is not None and "<&>" in (failure.get("message") or "")
    suite = root.find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("1", "1")
