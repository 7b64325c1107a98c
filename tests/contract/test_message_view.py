"""What a caller holds of a list of messages that goes on growing."""

from __future__ import annotations

import pytest

from context.context_log import CLAUDE, Log
from turnlog.context import Projection
from turnlog.contract import MessageView, user_message

MESSAGES = [user_message(f"message {number}") for number in range(6)]


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_a_view_reads_like_the_list_it_was_taken_of(count: int) -> None:
    view, plain = MessageView(list(MESSAGES), count), MESSAGES[:count]
    assert list(view) == plain
    assert (view == plain, view == tuple(plain), view == [*plain, MESSAGES[0]]) == (True, True, False)
    places = [None, *range(-7, 8)]
    for start in places:
        for stop in places:
            for step in (None, 1, 2, -1):
                assert list(view[start:stop:step]) == plain[start:stop:step]
    for at in range(-7, 8):
        if -count <= at < count:
            assert view[at] is plain[at]
        else:
            with pytest.raises(IndexError):
                view[at]


def test_views_of_lists_that_are_equal_are_equal() -> None:
    assert MessageView(list(MESSAGES)) == MessageView([user_message(message.text) for message in MESSAGES])
    assert MessageView(MESSAGES, 3) != MessageView(MESSAGES, 4)
    assert MessageView(MESSAGES, 3) != "text"


def test_what_was_handed_out_stays_as_it_was() -> None:
    log = Log()
    log.user("one")
    projection = Projection.of(log.entries)
    first = projection.emit(CLAUDE).messages
    projection.step(log.output("two"))
    second = projection.emit(CLAUDE).messages
    assert ([message.text for message in first], len(second)) == (["one"], 2)
    assert second[0] is first[0] and second[:1] == first
    with pytest.raises(TypeError):
        second[0] = first[0]  # type: ignore[index]
