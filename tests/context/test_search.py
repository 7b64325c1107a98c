"""Recall by words: ranked, deterministic, and over what the log itself holds."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from context.context_log import CLAUDE, Log, call
from turnlog.context import ContextOptions, Projection, plan_fold, recall_search
from turnlog.context._search import rank_texts, split_terms
from turnlog.contract import AgentError, Message, ToolOutcome, ToolResults, encode, tool_result_part
from turnlog.history import visible_entries

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.context import memory

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(400))


def talked() -> Log:
    log = Log()
    log.user("My sister Ines lives in Porto and breeds goats.")
    log.output("Noted: goats in Porto.")
    log.user("The invoice of the plumber was 412 euros.")
    log.output("looking", call("c1", path="ledger.csv"))
    log.results(c1=f"{LONG}\nthe boiler was paid on 3 May\n{LONG}")
    log.user("What shall we cook tonight?")
    return log


@pytest.mark.spec("C-12")
def test_the_best_match_comes_first_and_says_its_number() -> None:
    log = talked()
    found = recall_search(log.entries, "where does my sister live?")
    assert found == "#1 user: My sister Ines lives in Porto and breeds goats."
    both = recall_search(log.entries, "Which goats are in Porto?")
    assert [line[:4] for line in both.splitlines() if line] == ["#2 a", "#1 u"]
    assert recall_search(log.entries, "plumbers' invoices").startswith("#3 user: The invoice of the plumber")
    assert recall_search(log.entries, "goat", limit=1).endswith(
        "[1 more match; search with other words for those]"
    )


@pytest.mark.spec("C-12")
def test_of_a_long_text_the_part_that_was_asked_for_is_shown() -> None:
    found = recall_search(talked().entries, "when was the boiler paid", limit=1, size=600)
    assert "the boiler was paid on 3 May" in found
    assert len(found.encode()) < 800
    assert "[recall #5 brings the whole text]" in found


@pytest.mark.spec("C-12")
def test_the_same_entries_give_the_same_order_and_equals_go_by_age() -> None:
    texts = [f"note {n} of the harbour" for n in range(50)]
    assert rank_texts(texts, "harbour") == list(range(49, -1, -1))
    words = [f"w{n}" for n in range(200)]
    random_texts = [" ".join(random.Random(n).choices(words, k=60)) for n in range(80)]
    assert rank_texts(random_texts, "w3 w77 w150") == rank_texts(list(random_texts), "w150 w3 w77")


def test_scripts_without_spaces_are_searched_by_pairs() -> None:
    assert split_terms("第3箱重21公斤") == ["第", "3", "箱重", "21", "公斤"]
    assert rank_texts(["今天天气很好", "仓库里有三箱苹果"], "苹果在哪个仓库") == [1]


@pytest.mark.spec("C-12")
def test_what_is_in_view_was_recalled_or_does_not_match_is_not_found() -> None:
    log = talked()
    log.output(call("r1", "recall", query="sister Porto"))
    outcome = ToolOutcome(tool_call_id="r1", tool_name="recall", status="success")
    part = tool_result_part("r1", "#1 user: My sister Ines lives in Porto and breeds goats.")
    log.add(
        ToolResults(message=Message(run_id="", role="tool", parts=[part], timestamp=""), outcomes=[outcome])
    )
    found = recall_search(log.entries, "sister Porto")
    assert [line[:4] for line in found.splitlines() if line.startswith("#")] == ["#1 u", "#2 a"]
    with pytest.raises(AgentError, match="nothing earlier in this session matches 'zeppelin'") as caught:
        recall_search(log.entries, "zeppelin")
    assert caught.value.code == "ContextInvalidInput"
    with pytest.raises(AgentError, match="nothing earlier"):
        recall_search(log.entries, "sister", skip={log.entries[0].id})


@pytest.mark.spec("C-12", "H-9")
def test_a_redaction_reaches_what_a_search_brought_back() -> None:
    log = talked()
    log.output(call("r1", "recall", query="sister"))
    outcome = ToolOutcome(tool_call_id="r1", tool_name="recall", status="success")
    part = tool_result_part("r1", recall_search(log.entries, "sister Porto"))
    message = Message(run_id="run_1", role="tool", parts=[part], timestamp="")
    log.add(ToolResults(message=message, outcomes=[outcome]))
    log.redact(log.entries[0])
    assert "Ines" not in encode(visible_entries(log.entries)).decode()
    with pytest.raises(AgentError, match="nothing earlier"):
        recall_search(log.visible(), "sister Ines")


def test_what_is_folded_away_is_what_is_searched() -> None:
    log = talked()
    options = ContextOptions(fold_at=8_000, user_cap=5)
    projection = Projection.of(log.entries, options)
    assert len(projection.live_ids()) == len(log.entries)
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=3)
    assert fold is not None
    projection.step(log.add(fold))
    assert log.entries[4].id not in projection.live_ids()
    found = recall_search(log.entries, "boiler", skip=projection.live_ids())
    assert found.startswith("#5 tool read: ")


@pytest.mark.spec("C-12")
def test_most_memory_answers_are_reachable_at_a_fifth_of_the_text(shared_data: Path) -> None:
    scenarios = memory.read_scenarios(shared_data / "memory_questions")
    assert memory.reachable(scenarios, 0.2) >= 0.85
