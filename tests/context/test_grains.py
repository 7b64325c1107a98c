"""What a text shrinks to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.context import Vocabulary, extract_words, make_grains

STEPS = [f"passed step {n}" for n in range(40)]
FAILED = "E   AssertionError: expected flux_capacitor"
LOG = "\n".join(["collected 3 items", "tests/test_a.py ..F", *STEPS, FAILED, *STEPS, "1 failed in 2.31s"])


@pytest.mark.spec("C-4")
def test_first_last_and_diagnostic_lines_then_rare_words() -> None:
    vocabulary = Vocabulary()
    for n in range(5):
        vocabulary.add(f"passed step {n} collected items tests/test_a.py")
    grains = make_grains(LOG, "tool_result", vocabulary)
    lines = grains.gist.splitlines()
    assert lines[0] == "collected 3 items"
    assert "1 failed in 2.31s" in lines
    assert FAILED in lines
    assert len(grains.gist) < len(grains.summary) < len(LOG)


def test_a_short_text_is_its_own_gist() -> None:
    assert make_grains("done", "tool_result", Vocabulary()) == ("done", "done")


def test_rare_words_win_over_common_ones() -> None:
    vocabulary = Vocabulary()
    for _ in range(10):
        vocabulary.add("the meeting about the budget was long")
    text = "the meeting about the budget was long and Zanzibar paid 49.99 for the coffee_machine " * 3
    assert extract_words(text, vocabulary, 36) == "Zanzibar paid 49.99 coffee_machine"


def test_frequencies_do_not_depend_on_when_they_are_asked() -> None:
    eager, lazy = Vocabulary(), Vocabulary()
    for n in range(900):
        for vocabulary in (eager, lazy):
            vocabulary.add(f"word{n % 7} other{n} shared")
        assert eager.counts["shared"]
    assert eager.counts == lazy.counts
    assert eager.counts["shared"] == 400


@given(st.text(max_size=2_000), st.integers(0, 300))
def test_any_text_keeps_its_budget(text: str, budget: int) -> None:
    vocabulary = Vocabulary()
    vocabulary.add(text)
    words = extract_words(text, vocabulary, budget)
    assert len(words) <= budget
    grains = make_grains(text, "tool_result", vocabulary)
    assert len(grains.gist) <= len(grains.summary) <= len(text)
    assert grains == make_grains(text, "tool_result", vocabulary)
