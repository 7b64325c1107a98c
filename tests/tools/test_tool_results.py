"""Whatever a tool returns: shown, cut, cleaned, or refused in words."""

from __future__ import annotations

import array
import asyncio
import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from pydantic import BaseModel

from turnlog.contract import (
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    TokenUsage,
    ToolCallRequest,
    encode,
    find_unjson,
    guard,
    text_part,
    tool_result_part,
)
from turnlog.tools import (
    Deferral,
    ImageContent,
    ToolAnswer,
    ToolContext,
    ToolExecutor,
    ToolRegistry,
    ToolResult,
    tool,
)

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 16


async def result_of(value: Any, **options: Any) -> ToolAnswer:
    @tool
    async def give() -> Any:
        return value

    call = ToolCallRequest(tool_name="give", tool_call_id="call_1", raw_arguments="")
    answer = await ToolExecutor(ToolRegistry([give]), **options).execute(call, ToolContext())
    # Everything that comes out can be written to the log.
    part = tool_result_part("call_1", answer.content, is_error=answer.is_error)
    assert encode(Message(run_id="r", role="tool", parts=[part], timestamp="t"))
    return answer


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Box:
    width: int
    colour: Colour


class Model(BaseModel):
    when: datetime.date


class Struct(msgspec.Struct):
    path: pathlib.Path
    raw: bytes


Pair = collections.namedtuple("Pair", "left right")


class Drawn:
    def _repr_png_(self) -> bytes:
        return PNG


CASES: list[tuple[Any, Any]] = [
    ("text", "text"),
    ("", "(no output)"),
    (None, "(no output)"),
    (True, "true"),
    (0, "0"),
    (1.5, "1.5"),
    (float("nan"), "NaN"),
    (2**70, str(2**70)),
    (Colour.RED, "red"),
    ([1, "a", None], '[1,"a",null]'),
    ((1, 2), "[1,2]"),
    ({3, 1, 2}, "[1,2,3]"),
    ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    ({"a": float("inf"), "b": float("-inf")}, {"a": "Infinity", "b": "-Infinity"}),
    ({1: "a", 0: "b", None: "c"}, {"1": "a", "0": "b", "null": "c"}),
    ({True: "a", False: "b", 1.5: "c"}, {"true": "a", "false": "b", "1.5": "c"}),
    ({Colour.RED: 1, datetime.date(2026, 1, 2): 2}, {"red": 1, "2026-01-02": 2}),
    (Box(3, Colour.RED), {"width": 3, "colour": "red"}),
    (Model(when=datetime.date(2026, 1, 2)), {"when": "2026-01-02"}),
    (Struct(pathlib.Path("/x"), b"\x00"), {"path": "/x", "raw": "AA=="}),
    (Pair(1, 2), {"left": 1, "right": 2}),
    (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (decimal.Decimal("1.10"), "1.10"),
    (pathlib.Path("/tmp"), "/tmp"),
    (datetime.timedelta(seconds=90), "0:01:30"),
    (b"plain text", "plain text"),
    (array.array("i", [1, 2]), "[1,2]"),
    ("a\x00b", "a\u2400b"),
    ("x\ud800y", "x\ufffdy"),
    ({"k\ud800": "\ude00\x00"}, {"k\ufffd": "\ufffd\u2400"}),
    ([Box(1, Colour.RED)], '[{"width":1,"colour":"red"}]'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "content"), CASES, ids=[repr(case[0])[:40] for case in CASES])
async def test_values_of_every_kind(value: Any, content: Any) -> None:
    answer = await result_of(value)
    assert (answer.status, answer.error_code, answer.artifact) == ("success", None, None)
    assert answer.content == content


class Markup(str):
    """As markupsafe's: text whose own methods make more of its kind."""

    def __str__(self) -> str:
        return self

    def replace(self, *_: Any) -> Markup:  # type: ignore[override]  # pyright: ignore
        raise TypeError("not this kind of text")


class Level(enum.StrEnum):
    HIGH = "high"


class Count(int):
    def __int__(self) -> int:
        raise TypeError("not this kind of number")


class Share(float):
    pass


class Settings(dict[str, Any]):
    pass


class Key(str):
    pass


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (Markup("<b>\x00"), "<b>\u2400"),
        (Level.HIGH, "high"),
        (Settings({Key("a"): Markup("b"), Level.HIGH: Count(3)}), {"a": "b", "high": 3}),
        ([Count(3), Share(0.5), Level.HIGH], '[3,0.5,"high"]'),
        (ToolResult(Markup("x"), summary=Markup("y"), gist=Level.HIGH), "x"),
    ],
)
async def test_subclasses_of_plain_types_are_taken_by_value(value: Any, content: Any) -> None:
    answer = await result_of(value)
    assert answer.status == "success"
    assert answer.content == content
    texts = [answer.content, answer.summary, answer.gist]
    if isinstance(answer.content, dict):
        assert type(answer.content) is dict
        texts += [*answer.content, *answer.content.values()]
    assert all(type(text) in (str, int, dict, type(None)) for text in texts)


async def test_a_deferred_answer_says_what_it_waits_for() -> None:
    guard("sk-canary-results-1")
    schema = {"type": "object", "properties": {"day": {"type": "string"}}}
    answer = await result_of(
        ToolResult.deferred(
            "asked sk-canary-results-1", question="Which day?", answer_schema=schema, by="ann"
        )
    )
    assert (answer.status, answer.is_error, answer.error_code) == ("deferred", False, None)
    assert answer.deferral == Deferral(
        reason="asked [secret]", question="Which day?", answer_schema=schema, by="ann"
    )
    odd = await result_of(ToolResult.deferred("x", answer_schema="object"))  # pyright: ignore
    assert (odd.status, "answer_schema is a str" in odd.text) == ("failed", True)


async def test_what_a_tool_spent_on_models_of_its_own_is_counted() -> None:
    usage = TokenUsage(input_tokens=5, output_tokens=2, total_tokens=7)
    assert (await result_of(ToolResult("done", usage=usage))).usage == usage


async def test_images_files_and_parts() -> None:
    data = base64.b64encode(PNG).decode()
    shown = ImagePart(payload=Image(mime_type="image/png", data=data))
    for value in (PNG, ImageContent(PNG), Drawn(), [Drawn()], shown):
        assert (await result_of(value)).content == [shown]
    file = FileRefPart(payload=FileRef(path="/f\ud800"))
    mixed = await result_of(["look:", ImageContent(b"?", "image/x-own"), text_part("a\x00"), {"n": 1}, file])
    assert mixed.content == [
        text_part("look:"),
        ImagePart(payload=Image(mime_type="image/x-own", data="Pw==")),
        text_part("a\u2400"),
        text_part('{"n":1}'),
        FileRefPart(payload=FileRef(path="/f\ufffd")),
    ]
    assert mixed.text == 'look:\n[image image/x-own]\na\u2400\n{"n":1}\n[file /f\ufffd]'
    for data in (b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\x00\x00\x00\x00WEBP"):
        assert isinstance((await result_of(data)).content, list)


async def test_grains_of_the_author() -> None:
    answer = await result_of(ToolResult("long text", summary="shorter", gist="s\x00"))
    assert (answer.content, answer.summary, answer.gist) == ("long text", "shorter", "s\u2400")
    bad = await result_of(ToolResult({"exit": 1}, is_error=True, artifact=b"log"))
    assert (bad.status, bad.error_code, bad.content, bad.artifact) == (
        "failed",
        "ToolExecutionError",
        {"exit": 1},
        b"log",
    )


class Circular:
    pass


def circular() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "'give' ran, but result is a object, which JSON cannot hold"),
        ({"a": [1, Circular()]}, "result['a'][1] is a Circular"),
        (Circular, "result is the class Circular, not a value"),
        ({Circular(): 1}, "use text as keys"),
        (circular(), "holds itself"),
        (lambda: 1, "result is a function"),
        (ImageContent(b"no image"), "an image of no known kind"),
        (ImageContent(b"x" * 20_000_001, "image/png"), "the limit is 20,000,000"),
    ],
)
async def test_what_cannot_be_shown_says_so(value: Any, words: str) -> None:
    answer = await result_of(value)
    assert (answer.status, answer.error_code) == ("failed", "ToolExecutionError")
    assert words in answer.text


async def test_fifty_megabytes_are_cut_and_kept() -> None:
    whole = "".join(f"line {number:08d}\n" for number in range(3_500_000))
    answer = await result_of(whole)
    assert answer.artifact == whole.encode()
    assert isinstance(answer.content, str)
    assert len(answer.content.encode()) < 100_100
    head, tail = answer.content.split("\n\n[…", 1)
    assert head.startswith("line 00000000\n")
    assert head.endswith("\n") or head.rsplit("\n", 1)[-1].startswith("line ")
    note, tail = tail.split("…]\n\n", 1)
    assert note == f" {len(whole) - len(head.encode()) - len(tail):,} of {len(whole):,} bytes left out here "
    assert tail.startswith("line ")
    assert tail.endswith("line 03499999\n")


async def test_output_is_cut_between_characters_and_at_the_tools_own_limit() -> None:
    @tool(max_output=1000)
    async def euro() -> str:
        return "€" * 10_000

    call = ToolCallRequest(tool_name="euro", tool_call_id="c", raw_arguments="")
    answer = await ToolExecutor(ToolRegistry([euro])).execute(call, ToolContext())
    assert isinstance(answer.content, str)
    assert set(answer.content.replace("[…", "").replace("…]", "")) <= set("€ \n0123456789,ofbytesleftouthere")
    assert len(answer.content.encode()) < 1100
    assert answer.artifact == ("€" * 10_000).encode()


async def test_large_objects_and_parts_become_text_with_the_rest_kept() -> None:
    value = {"rows": [{"id": number} for number in range(10_000)]}
    answer = await result_of(value, max_output=2000)
    assert isinstance(answer.content, str)
    assert answer.content.startswith('{"rows":[{"id":0}')
    assert answer.artifact == msgspec.json.encode(value)
    parts = await result_of(["a" * 5000, ImageContent(PNG), "b" * 5000], max_output=2000)
    assert isinstance(parts.content, list)
    assert [part.kind for part in parts.content] == ["text", "image", "text"]
    assert parts.artifact == b"a" * 5000 + b"\n" + b"b" * 5000
    assert len(parts.text) < 3000


async def test_binary_data_is_kept_apart() -> None:
    answer = await result_of(b"\xff\xfe\x00\x01" * 100)
    assert (answer.content, answer.artifact) == ("(400 bytes of binary data)", b"\xff\xfe\x00\x01" * 100)


async def test_a_note_is_added_to_any_content() -> None:
    assert (await result_of("text")).noted("more at X").content == "text\n\nmore at X"
    assert (await result_of({"a": 1})).noted("more").content == [text_part('{"a":1}'), text_part("more")]
    assert (await result_of([text_part("a")])).noted("more").content == [text_part("a"), text_part("more")]


async def test_secrets_are_scrubbed_everywhere() -> None:
    guard("sk-canary-results-1")
    values: list[Any] = [
        "key sk-canary-results-1",
        {"sk-canary-results-1": ["sk-canary-results-1"]},
        [text_part("sk-canary-results-1")],
        ToolResult("x", summary="sk-canary-results-1", gist="sk-canary-results-1"),
        b"sk-canary-results-1",
        "sk-canary-results-1" * 10_000,
        b"\xff\x00sk-canary-results-1\xfe",
        ToolResult("x", artifact=b"\xffsk-canary-results-1"),
    ]
    for value in values:
        answer = await result_of(value)
        shown = f"{answer.text}{answer.summary}{answer.gist}{answer.artifact!r}"
        assert "canary" not in shown
        assert "[secret]" in shown


async def test_generators_collect_text_and_end_in_a_result() -> None:
    @tool
    async def stream() -> AsyncIterator[Any]:
        yield "a"
        yield {"percent": 50}
        yield 7
        yield "b"

    @tool
    async def ended() -> AsyncIterator[Any]:
        yield "working"
        yield ToolResult("the result", gist="r")

    @tool
    async def endless() -> AsyncIterator[str]:
        while True:
            yield "x" * 1_000_000

    runner = ToolExecutor(ToolRegistry([stream, ended, endless]))

    async def run(name: str) -> ToolAnswer:
        call = ToolCallRequest(tool_name=name, tool_call_id="c", raw_arguments="")
        return await runner.execute(call, ToolContext())

    assert (await run("stream")).content == "a7b"
    found = await run("ended")
    assert (found.content, found.gist) == ("the result", "r")
    flood = await run("endless")
    assert flood.text.endswith("[stopped: more than 64,000,000 characters of output]")


any_text = st.text(st.characters(exclude_categories=()), max_size=5)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=5) | st.dates() | st.uuids()
    | any_text | st.decimals() | st.timedeltas(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(any_text | st.integers() | st.none(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(anything)
def test_any_mixture_of_plain_values_can_be_logged(value: Any) -> None:
    answer = asyncio.run(result_of(value))
    assert answer.status == "success"
    assert not isinstance(answer.content, dict) or find_unjson(answer.content) is None
