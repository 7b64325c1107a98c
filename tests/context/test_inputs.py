"""An input with titled sections and with levels of detail of its own."""

from __future__ import annotations

from typing import Any

import pytest

from context.context_log import CLAUDE, Log
from turnlog.context import Projection, ProjectionContext, plan_fold, recall_text
from turnlog.contract import AgentError, Fold, FoldItem, Input, ModelInput, text_part

LONG = "\n".join(f"line {n}: value_{n} = compute_{n}(alpha, beta)" for n in range(60))


def add(log: Log, given: Input, **shown: Any) -> Projection:
    """Append an input as the loop does."""
    manager = ProjectionContext()
    manager.refold(log.entries)
    message = given.message(run_id="run_1")
    sections = manager.input_sections(
        message, summary=given.summary, gist=given.gist, sections=given.live_sections, **shown
    )
    log.add(ModelInput(message=message, sections=sections, authored=True))
    return Projection.of(log.entries)


def texts(projection: Projection) -> list[str]:
    return [message.text for message in projection.emit(CLAUDE).messages]


@pytest.mark.spec("C-10")
def test_sections_follow_the_text_in_their_order_with_their_titles_as_headings() -> None:
    log = Log()
    given = Input("Review this.", sections={"Diff": "-a\n+b", "Rules": "no tabs"})
    projection = add(log, given, hints={"branch": "main"}, screen="## Todo")
    assert texts(projection) == [
        'Review this.# Diff\n\n-a\n+b\n\n# Rules\n\nno tabs\n\n# [Hints]\n\n{"branch":"main"}'
        "\n\n# [LiveScreen]\n\n## Todo"
    ]
    assert recall_text(log.entries, "#1") == "Review this.\n\n# Diff\n\n-a\n+b\n\n# Rules\n\nno tabs"


@pytest.mark.spec("C-10")
def test_sections_alone_are_an_input() -> None:
    log = Log()
    assert texts(add(log, Input(sections=[("Diff", "-a\n+b")]))) == ["# Diff\n\n-a\n+b"]
    assert texts(add(log, Input([text_part("parts"), text_part("too")])))[1] == "partstoo"


@pytest.mark.spec("C-4")
@pytest.mark.parametrize("grain", ["summary", "gist"])
def test_a_given_level_stands_for_the_input_at_a_fold(grain: Any) -> None:
    log = Log()
    given = Input(LONG, summary="sixty lines of values", gist="values", sections={"Seed": "4711"})
    add(log, given)
    item = FoldItem(entry_id=log.entries[0].id, grain=grain)
    log.add(Fold(reason="manual", tokens_before=2, tokens_after=1, items=[item]))
    expected = {"summary": "sixty lines of values", "gist": "values"}[grain]
    assert texts(Projection.of(log.entries)) == [f"[#1 {grain}; recall #1 brings the whole text]\n{expected}"]


@pytest.mark.spec("C-5")
def test_sections_of_an_input_are_the_users_words_in_a_digest() -> None:
    log = Log()
    add(log, Input("Keep this.", sections={"Seed": "4711"}), screen="## Todo\n\nnot the user's")
    for n in range(6):
        log.output(f"answer {n} " * 300)
        log.user(f"step {n}")
    fold = plan_fold(Projection.of(log.entries), target=CLAUDE, reason="overflow", overflow_step=2)
    assert fold is not None
    assert "#1 user: Keep this.\n\n# Seed\n\n4711\n#2 " in fold.segments[0].text


@pytest.mark.parametrize("title", ["", " ", "[LiveScreen]", "[Hints]", 3])
def test_titles_that_cannot_be_are_refused(title: Any) -> None:
    with pytest.raises(AgentError, match="section") as caught:
        Input("a", sections={title: "b"})
    assert caught.value.code == "InvalidMessage"
