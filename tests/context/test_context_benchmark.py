"""The benchmark of context measures what an Agent does and what a provider charges, and takes other files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turnlog import Agent, tool
from turnlog.context import ContextOptions
from turnlog.contract import FoldEntry, ModelInputEntry, TokenUsage, encode, text_part
from turnlog.history import MemoryStore
from turnlog.testing import FixedClock, ScriptedModel, Turn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.context import memory
from benchmarks.context.__main__ import main
from benchmarks.context.made_up import converse
from benchmarks.context.measure import NAMES, RARE, Needs, both_needs, run
from benchmarks.context.prices import Price
from benchmarks.context.sessions import Recording, read_session
from benchmarks.context.strategies import ClearOldResults, Fold, SendEverything, Strategy, Summarise

TURNS = 40
PAUSES = range(6, TURNS, 7)
SMALL = ContextOptions(fold_at=6_000, min_freed_tokens=300)


def crates(hall: int) -> str:
    """One in five is too long to be sent whole."""
    lines = 400 if hall % 5 == 0 else 20
    return f"hall {hall}\n" + "\n".join(f"crate-{hall}-{n} weighs {n * 7 + hall} kilos" for n in range(lines))


def spoken(turn: int) -> str:
    return f"Please look into hall {turn}. " + "It is about the winter stock. " * 12


@tool(timeout=None)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return crates(hall)


def written(path: Path) -> Path:
    """The same conversation as a recording: an hour passes before some of the turns."""
    seconds = 0
    lines: list[dict[str, Any]] = [{"type": "session", "id": "s"}]

    def add(message: dict[str, Any]) -> None:
        time = f"2026-01-{1 + seconds // 86_400:02}T{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:00Z"
        lines.append({"type": "message", "timestamp": time, "message": message})

    for turn in range(TURNS):
        seconds += 3_600 if turn in PAUSES else 60
        add({"role": "user", "content": spoken(turn)})
        call = {"type": "toolCall", "id": f"call_{turn:024}", "name": "stock", "arguments": {"hall": turn}}
        add({"role": "assistant", "content": [call], "stopReason": "toolUse"})
        text = [{"type": "text", "text": crates(turn)}]
        add({"role": "toolResult", "toolCallId": call["id"], "toolName": "stock", "content": text})
        add({"role": "assistant", "content": [{"type": "text", "text": f"Hall {turn} is fine."}]})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.spec("C-11")
async def test_the_folds_that_are_measured_are_those_of_an_agent(tmp_path: Path) -> None:
    clock, store = FixedClock(), MemoryStore()
    unsaid = TokenUsage(input_tokens=0, output_tokens=0, total_tokens=0)  # no count corrects the estimates
    answers = [
        answer
        for turn in range(TURNS)
        for answer in (
            Turn(tool_calls=[{"name": "stock", "arguments": {"hall": turn}}], usage=unsaid),
            Turn(text=f"Hall {turn} is fine.", usage=unsaid),
        )
    ]
    agent = Agent(ScriptedModel(answers, clock=clock), store=store, clock=clock, tools=[stock], context=SMALL)
    for turn in range(TURNS):
        if turn in PAUSES:
            await clock.sleep(3_600)
        assert (await agent.run(spoken(turn), session="s1")).status == "completed"
    made = folds_of(await store.load("s1"))
    assert {reason for _, reason, _ in made} == {"threshold", "turn_end", "cold"}

    recording = read_session(written(tmp_path / "halls.jsonl"))
    view = await agent.session("s1").explain()
    head = len(encode((view.system_prompt, view.tool_specs)))
    strategy = Fold(SMALL)
    run(strategy, recording._replace(head=int(head / SMALL.bytes_per_token)), [], [])
    measured = folds_of(strategy.log.entries)
    assert [one[:2] for one in measured] == [one[:2] for one in made]
    for (_, _, ours), (_, _, theirs) in zip(measured, made, strict=True):
        assert abs(ours - theirs) < 0.05 * theirs


def folds_of(entries: list[Any]) -> list[tuple[int, str, int]]:
    """After how many inputs each fold came, why, and how large the context was."""
    found: list[tuple[int, str, int]] = []
    inputs = 0
    for entry in entries:
        inputs += isinstance(entry, ModelInputEntry)
        if isinstance(entry, FoldEntry):
            found.append((inputs, entry.payload.reason, entry.payload.tokens_before))
    return found


@pytest.fixture
def halls(tmp_path: Path) -> Recording:
    return read_session(written(tmp_path / "halls.jsonl"))


def test_times_turns_and_the_head_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "halls.jsonl")
    lines = file.read_text().splitlines()
    first = json.loads(lines[2])
    first["message"]["usage"] = {"input": 100, "cacheRead": 0, "cacheWrite": 1_900, "output": 5}
    lines[2] = json.dumps(first)
    file.write_text("\n".join(lines))
    recording = read_session(file)
    assert 1_700 < recording.head < 2_000, "what was billed beyond the first message"
    assert [call.starts_turn for call in recording.calls] == [True, False] * TURNS
    assert [call.idle >= 3_600 for call in recording.calls[::2]] == [turn in PAUSES for turn in range(TURNS)]
    paused = recording.with_pauses(500, every=10)
    longer = [one.idle - two.idle for one, two in zip(paused.calls, recording.calls, strict=True)]
    assert [place for place, more in enumerate(longer) if more] == [18, 38, 58, 78]


def test_an_expired_cache_and_the_head_are_paid_for(halls: Recording) -> None:
    prices = [
        Price("short", "p", "m", 1, 0.1, 1, 0, lifetime=300),
        Price("marked", "p", "m", 1, 0.1, 1, 0, marked=True, lifetime=300),
        Price("long", "p", "m", 1, 0.1, 1, 0, lifetime=10**9),
    ]
    without = run(SendEverything(), halls, [], prices)
    assert without.breaks == 0
    new = sum(call.idle > 300 for call in halls.calls)
    assert new == len(PAUSES)
    assert without.costs["short"] == pytest.approx(without.costs["marked"])
    lost = sum(
        0.9 * before / 1e6
        for before, call in zip([0, *without.sizes], halls.calls, strict=False)
        if call.idle > 300
    )
    assert without.costs["short"] - without.costs["long"] == pytest.approx(lost, rel=0.01)
    headed = run(SendEverything(), halls._replace(head=10_000), [], prices)
    calls = len(halls.calls)
    head = 10_000 / 1e6 * ((new + 1) + 0.1 * (calls - new - 1))
    assert headed.costs["short"] - without.costs["short"] == pytest.approx(head)
    assert headed.byte_reuse == without.byte_reuse
    assert max(run(Fold(SMALL), halls._replace(head=2_000), [], prices).sizes) <= 6_000


def test_what_a_strategy_asks_a_model_is_paid_for(halls: Recording) -> None:
    price = Price("only", "p", "m", 1, 0.1, 1, 10, lifetime=10**9)
    strategy = Summarise(6_000)
    with_calls = run(strategy, halls, [], [price]).costs["only"]
    asked, strategy.extras = strategy.extras, []
    assert len(asked) >= 3

    class Free(Summarise):
        def request(self) -> Any:
            pieces = super().request()
            self.extras.clear()
            return pieces

    free = run(Free(6_000), halls, [], [price]).costs["only"]
    paid = sum(0.1 * one.input_tokens + 10 * one.output_tokens for one in asked) / 1e6
    assert with_calls - free == pytest.approx(paid)


def test_need_has_two_definitions(halls: Recording) -> None:
    """A word of every turn is common; a crate that the model names again after thirty entries is not."""
    last = halls.calls[-1]
    said = text_part("crate-3-7 weighs as much as any, in kilos, and the Wolframite more")
    message = msgspec.structs.replace(last.output.message, parts=[said])
    output = msgspec.structs.replace(last.output, message=message)
    recording = halls._replace(calls=[*halls.calls[:-1], last._replace(output=output)])
    assert Needs(recording, NAMES).by_call[-1] == {"crate-3-7"}
    assert Needs(recording, RARE).by_call[-1] == {"crate-3-7"}
    result = run(SendEverything(), recording, both_needs(recording), [])
    assert result.recall == {"names": 1.0, "rare words": 1.0}
    assert run(ClearOldResults(2_000, at_least=1), recording, both_needs(recording), []).recall["names"] == 0


PLUG_IN = """
from benchmarks.context.strategies import Strategy, piece_of
from turnlog.contract import ModelInputEntry

class OnlyTheUser(Strategy):
    name = "only the user"

    @classmethod
    def of_budget(cls, tokens):
        return cls()

    def append(self, entry):
        self.said = getattr(self, "said", [])
        if isinstance(entry, ModelInputEntry):
            self.said.append(piece_of(entry.payload.message))

    def request(self):
        return self.said[-3:]
"""


def test_a_file_with_a_strategy_and_a_file_with_a_session_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.context.__main__._MADE_UP", 1)
    monkeypatch.setattr(memory, "BUDGETS", (0.2,))
    plug_in = tmp_path / "mine.py"
    plug_in.write_text(PLUG_IN)
    session = written(tmp_path / "halls.jsonl")
    plots = tmp_path / "plots"
    main(
        [str(session), "--data", str(tmp_path), "--strategy", f"{plug_in}:OnlyTheUser", "--plots", str(plots)]
    )
    out = capsys.readouterr().out
    assert "halls: 160 entries, 80 model calls" in out
    assert "the same, left alone for an hour before every 5th turn" in out
    rows = [line for line in out.splitlines() if line.startswith("only the user")]
    assert len(rows) == 3, "in the session, in the session with pauses, and among the memory questions"
    assert sorted(path.name for path in plots.iterdir()) == ["context-cost.svg", "context-size.svg"]
    with pytest.raises(SystemExit):
        main([str(session), "--strategy", f"{plug_in}:Strategic"])
    assert "cannot load" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text('{"type": "message", "timestamp": "noon", "message": {}}')
    with pytest.raises(SystemExit, match=r"broken\.jsonl, line 1: not a record"):
        main([str(tmp_path / "broken.jsonl")])


def test_made_up_conversations_are_the_same_for_a_seed_and_hold_their_answers() -> None:
    one, again, other = converse(1), converse(1), converse(2)
    assert one == again != other
    for scenario in (one, other):
        text = "\n".join(scenario["turns"])
        assert all(memory.holds_answer(text, question) for question in scenario["questions"])


def test_strategies_are_told_the_moment(halls: Recording) -> None:
    class Watcher(SendEverything):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[tuple[float, bool]] = []

        def prepare(self) -> None:
            self.told.append((self.idle, self.starts_turn))

    watcher: Watcher = Watcher()
    run(watcher, halls, [], [])
    assert watcher.told == [(call.idle, call.starts_turn) for call in halls.calls]
    assert isinstance(watcher, Strategy)
