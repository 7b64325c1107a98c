"""The two tables of the contract, pair by pair: the grammar of a stream, the states of a run."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.contract import (
    DELTA_KINDS,
    STATUSES,
    TRANSITIONS,
    AgentError,
    DeltaGrammar,
    RunStatus,
    check_transition,
)
from turnlog.contract.deltas import GRAMMAR, StreamState

STATES: tuple[StreamState, ...] = get_args(StreamState)
CONTENT = ("text", "thinking", "tool_call_start", "tool_call_args", "tool_call_end", "usage")


def grammar_in(state: StreamState) -> DeltaGrammar:
    grammar = DeltaGrammar()
    if state != "idle":
        assert grammar.check("start") is None
        assert grammar.check("tool_call_start", "open") is None
        assert grammar.check("tool_call_start", "closed") is None
        assert grammar.check("tool_call_end", "closed") is None
    if state == "ended":
        assert grammar.check("error") is None
    return grammar


@pytest.mark.spec("D-2")
@pytest.mark.parametrize(("state", "kind"), list(product(STATES, [*DELTA_KINDS, "song"])))
def test_every_pair_of_the_grammar(state: StreamState, kind: str) -> None:
    grammar = grammar_in(state)
    call = {"tool_call_start": "new", "tool_call_args": "open", "tool_call_end": "open"}.get(kind)
    if kind == "done" and state == "streaming":
        assert grammar.check("tool_call_end", "open") is None
    expected = {
        ("idle", "start"): "streaming",
        ("streaming", "done"): "ended",
        ("streaming", "error"): "ended",
        **{("streaming", content): "streaming" for content in CONTENT},
    }.get((state, kind))
    assert GRAMMAR.get((state, kind)) == expected
    broken = grammar.check(kind, call)
    if expected is None:
        assert broken is not None
        assert kind in broken or "start" in broken
        assert grammar.state == state
    else:
        assert broken is None
        assert grammar.state == expected


@pytest.mark.spec("D-3")
@pytest.mark.parametrize(
    ("kind", "call", "why"),
    [
        ("tool_call_start", "open", "starts twice"),
        ("tool_call_start", "closed", "starts twice"),
        ("tool_call_args", "never", "never started"),
        ("tool_call_args", "closed", "has ended"),
        ("tool_call_end", "never", "never started"),
        ("tool_call_end", "closed", "has ended"),
        ("tool_call_start", None, "names no call"),
        ("tool_call_args", None, "names no call"),
        ("tool_call_end", "", "names no call"),
        ("done", None, "done while call open has no tool_call_end"),
    ],
)
def test_calls_pair_up(kind: str, call: str | None, why: str) -> None:
    grammar = grammar_in("streaming")
    assert why in (grammar.check(kind, call) or "")
    assert grammar.state == "streaming"
    assert grammar.open_calls == ["open"]


@pytest.mark.spec("D-2")
def test_seq_increases_strictly() -> None:
    grammar = DeltaGrammar()
    assert grammar.check("start", seq=5) is None
    assert grammar.check("text", seq=6) is None
    assert grammar.check("text", seq=9) is None
    for seq in (9, 8, 0, -1):
        assert "must increase" in (grammar.check("text", seq=seq) or "")


@given(st.lists(st.tuples(st.sampled_from(DELTA_KINDS), st.sampled_from(["a", "b"])), max_size=30))
def test_what_the_grammar_lets_through_is_well_formed(steps: list[tuple[str, str]]) -> None:
    grammar = DeltaGrammar()
    passed: list[tuple[str, str]] = []
    for kind, call in steps:
        if grammar.check(kind, call if kind.startswith("tool_call") else None) is None:
            passed.append((kind, call))
    kinds = [kind for kind, _ in passed]
    assert kinds.count("start") == min(1, len(kinds))
    assert not kinds or kinds[0] == "start"
    terminals = [index for index, kind in enumerate(kinds) if kind in ("done", "error")]
    assert terminals in ([], [len(kinds) - 1])
    for call in ("a", "b"):
        own = [kind for kind, of in passed if of == call and kind.startswith("tool_call")]
        assert own.count("tool_call_start") <= 1
        assert own.count("tool_call_end") <= 1
        assert not own or own[0] == "tool_call_start"
        assert "tool_call_end" not in own[:-1]
        if kinds and kinds[-1] == "done" and own:
            assert own[-1] == "tool_call_end"


TERMINAL = {"completed", "failed", "aborted"}
# Seed 003 §7 and what L-2 adds, written out once more.
RUN_TRANSITIONS = {
    "idle": {"preparing", "awaiting_human"},
    "preparing": {"model_running", "tool_running", "awaiting_human", "paused"} | TERMINAL,
    "model_running": {"tool_running", "paused"} | TERMINAL,
    "tool_running": {"model_running", "awaiting_human", "paused"} | TERMINAL,
    "awaiting_human": {"tool_running", "model_running", "paused", "failed", "aborted"},
    "paused": {"preparing", "awaiting_human", "failed", "aborted"},
    "completed": {"preparing"},
    "failed": {"preparing"},
    "aborted": {"preparing"},
}


@pytest.mark.spec("L-2")
@pytest.mark.parametrize(("current", "following"), list(product(STATUSES, STATUSES)))
def test_every_pair_of_run_states(current: RunStatus, following: RunStatus) -> None:
    if following in RUN_TRANSITIONS[current]:
        check_transition(current, following)
        assert TRANSITIONS[current, following]
        return
    with pytest.raises(AgentError, match=f"cannot go from {current} to {following}") as caught:
        check_transition(current, following)
    assert caught.value.code == "IllegalTransition"
    assert caught.value.meta == {"from": current, "to": following}


def test_the_states_are_those_of_the_type() -> None:
    assert get_args(RunStatus) == STATUSES
    running = {status for status in STATUSES if status not in TERMINAL and status != "idle"}
    for status in running:
        assert {"failed", "aborted"} <= RUN_TRANSITIONS[status]
