"""Stream readers: what a server sends, however it is framed and wherever it is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.contract import AgentError
from turnlog.models.http import SSEReader


def read(body: bytes, cuts: list[int] | None = None, **limits: int) -> list[tuple[str, bytes]]:
    reader = SSEReader(**limits)
    events: list[tuple[str, bytes]] = []
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts or [])})
    for start, end in pairwise(places):
        events += reader.feed(body[start:end])
    return events + reader.end()


FRAMINGS: list[tuple[str, bytes, list[tuple[str, bytes]]]] = [
    ("plain", b"data: a\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
    ("crlf", b"data: a\r\n\r\ndata: b\r\n\r\n", [("", b"a"), ("", b"b")]),
    ("cr alone", b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
    ("mixed ends", b"data: a\r\n\ndata: b\n\r\ndata: c\r\n\r", [("", b"a"), ("", b"b"), ("", b"c")]),
    ("no space", b"data:a\n\n", [("", b"a")]),
    ("two spaces keep one", b"data:  a\n\n", [("", b" a")]),
    ("name", b"event: error\ndata: a\n\n", [("error", b"a")]),
    ("name after data", b"data: a\nevent: x\n\n", [("x", b"a")]),
    ("several lines", b"data: a\ndata: b\ndata:\n\n", [("", b"a\nb\n")]),
    ("comment", b": keep-alive\n\ndata: a\n\n: more\n\n", [("", b"a")]),
    ("comment inside", b": c\ndata: a\n\n", [("", b"a")]),
    ("id and retry", b"id: 7\nretry: 10\ndata: a\n\nid: 8\n\n", [("", b"a")]),
    ("unknown field", b"foo: x\ndata: a\n\n", [("", b"a")]),
    ("field without colon", b"data\ndata: a\n\n", [("", b"\na")]),
    ("blank data", b"data\n\ndata:\n\ndata:  \n\nevent: x\ndata:\n\n", []),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
    ("blank lines", b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
    (
        "line separator is text",
        "data: a\u2028b\u2029c\x85d\n\n".encode(),
        [("", "a\u2028b\u2029c\x85d".encode())],
    ),
    ("no blank line at the end", b"data: a\n\ndata: b", [("", b"a"), ("", b"b")]),
    ("one newline at the end", b"data: a\n", [("", b"a")]),
    ("plain JSON between", b'data: a\n\n{\n "error": 1\n}\n\n', [("", b"a"), ("", b'{\n "error": 1\n}')]),
    ("empty", b"", []),
]


@pytest.mark.spec("P-2")
@pytest.mark.parametrize(("body", "expected"), [f[1:] for f in FRAMINGS], ids=[f[0] for f in FRAMINGS])
def test_framings(body: bytes, expected: list[tuple[str, bytes]]) -> None:
    assert read(body) == expected
    assert read(body, list(range(len(body)))) == expected
    for cut in range(len(body)):
        assert read(body, [cut]) == expected, f"cut at {cut}"


_LINE = st.sampled_from(
    [
        "data: ä€𝄞",
        "data:x",
        "data: {}",
        "event: e",
        ": c",
        "id: 1",
        "",
        "",
        "data",
        "zzz: y",
        "\ufeff",
        "data: \u2028",
    ]
)


@given(
    st.lists(st.tuples(_LINE, st.sampled_from(["\n", "\r\n", "\r"])), max_size=12),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_cuts_never_show(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    body = "".join(text + end for text, end in lines).encode()
    assert read(body, cuts) == read(body)


@pytest.mark.spec("E-2")
def test_limits() -> None:
    with pytest.raises(AgentError, match="one event is larger than 100 bytes") as found:
        read(b"data: " + b"x" * 200, max_event=100)
    assert found.value.code == "ModelProtocolError"
    with pytest.raises(AgentError, match="one event"):
        read(b"data: " + b"x" * 200 + b"\n\n", max_event=100)
    with pytest.raises(AgentError, match="one event"):
        read(b"event: e\ndata: " + b"x" * 200 + b"\n\n", list(range(0, 200, 7)), max_event=100)
    with pytest.raises(AgentError, match="the stream is larger"):
        read(b": ping\n\n" * 100, max_total=300)


def test_a_large_event_in_small_pieces_is_read_in_linear_time() -> None:
    body = b"data: " + b"x" * 400_000 + b"\n\n"
    reader = SSEReader()
    events: list[tuple[str, bytes]] = []
    for at in range(0, len(body), 2):
        events += reader.feed(body[at : at + 2])
    assert events == [("", b"x" * 400_000)]


def test_events_without_blank_lines_between_them() -> None:
    reader = SSEReader()
    body = b'data: {"a": 1}\ndata: {"b": [\ndata: ]}\ndata: [DONE]\n\n'
    assert reader.feed(b'data: {"a": 1}\ndata: {"b": 2}\ndata: [DONE]\n\n') == [
        ("", b'{"a": 1}'),
        ("", b'{"b": 2}'),
        ("", b"[DONE]"),
    ]
    assert reader.feed(body) == [("", b'{"a": 1}\n{"b": [\n]}\n[DONE]')]
    assert reader.feed(b'event: x\ndata: {"a":\ndata: {"b": 1}}\n\n') == [("x", b'{"a":\n{"b": 1}}')]
