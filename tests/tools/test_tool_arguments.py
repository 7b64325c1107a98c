"""Arguments: strict, every problem at once, in words; coercion only where JSON has no such type."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import pathlib
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from pydantic import AfterValidator, BaseModel, Field

from turnlog.contract import ToolCallRequest, guard, parse_arguments
from turnlog.tools import Tool, ToolAnswer, ToolContext, ToolExecutor, ToolRegistry, tool


def request(name: str, raw: str) -> ToolCallRequest:
    parsed = parse_arguments(raw)
    return ToolCallRequest(
        tool_name=name,
        tool_call_id="call_1",
        raw_arguments=raw,
        arguments=parsed.arguments,
        parse_error=parsed.error,
        parse_warning=parsed.warning,
    )


def told(item: Tool, arguments: dict[str, Any] | str) -> str:
    """What the model is told of bad arguments."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    answer = ToolExecutor(ToolRegistry([item])).validate(request(item.name, raw))
    assert isinstance(answer, ToolAnswer), answer
    assert (answer.status, answer.error_code) == ("failed", "ToolInvalidArgs")
    return answer.text


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Place(BaseModel):
    name: str
    lat: float = 0.0


@tool
def weather(
    place: Place,
    days: Annotated[int, Field(ge=1, le=10)] = 1,
    unit: Unit = Unit.C,
    tags: list[str] | None = None,
    mode: Literal["short", "long"] = "short",
    near: list[Place] = [],  # noqa: B006
) -> str:
    return place.name


@pytest.mark.spec("T-2")
def test_every_problem_at_once_in_words_to_act_on() -> None:
    text = told(
        weather,
        {
            "place": {"nam": "Rome", "lat": "north"},
            "days": 11,
            "unit": "kelvin",
            "tags": ["a", 2],
            "mode": None,
            "near": [{"name": "x"}, {"name": 3}],
            "colour": "red",
        },
    )
    assert text.splitlines() == [
        "The arguments of 'weather' are not valid (9 problems); nothing was run.",
        "- place.name: is required but missing",
        '- place.lat: should be a valid number, found "north" (text)',
        "- place.nam: there is no such field; did you mean 'name'? (fields: name, lat)",
        "- days: should be less than or equal to 10, found 11 (an integer)",
        "- unit: should be 'celsius' or 'fahrenheit', found \"kelvin\" (text)",
        "- tags[1]: should be a valid string, found 2 (an integer)",
        "- mode: should be 'short' or 'long', found null",
        "- near[1].name: should be a valid string, found 3 (an integer)",
        "- colour: there is no such field (fields: place, days, unit, tags, mode, near)",
        "Correct them and call the tool again.",
    ]


@pytest.mark.spec("T-2")
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"a": 1', "could not be read"),
        ("[1]", "expected a JSON object, found an array"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": "\\ud800"}', "unpaired surrogate"),
        ("Rome", "could not be read"),
    ],
)
def test_arguments_that_do_not_parse_are_an_answer(raw: str, words: str) -> None:
    @tool
    def f(a: int) -> None: ...

    text = told(f, raw)
    assert words in text
    assert "Nothing was run" in text


@pytest.mark.spec("T-2")
@pytest.mark.parametrize(
    ("annotation", "sent", "received"),
    [
        (float, 1, 1.0),
        (int, 2.0, 2),
        (
            datetime.datetime,
            "2026-01-02T03:04:05Z",
            datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        ),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
        (datetime.timedelta, "PT90S", datetime.timedelta(seconds=90)),
        (uuid.UUID, "00000000-0000-0000-0000-000000000001", uuid.UUID(int=1)),
        (Unit, "celsius", Unit.C),
        (pathlib.Path, "/tmp/x", pathlib.Path("/tmp/x")),
        (bytes, base64.b64encode(b"\xff\x00").decode(), b"\xff\x00"),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 2], {1, 2}),
        (frozenset[str], ["a"], frozenset({"a"})),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (int | str, "5", "5"),
        (list[float], [1, 2.5], [1.0, 2.5]),
    ],
)
def test_what_json_forces_is_converted(annotation: Any, sent: Any, received: Any) -> None:
    def f(a: Any) -> None: ...

    f.__annotations__["a"] = annotation
    value, problems = tool(f).bind({"a": sent})
    assert problems == []
    assert value == {"a": received}
    assert type(value["a"]) is type(received)


@pytest.mark.spec("T-2")
@pytest.mark.parametrize(
    ("annotation", "sent"),
    [
        (int, "5"), (int, 5.5), (int, True), (int, None), (float, "1.5"), (float, False), (str, 5),
        (str, None),
        (bool, 1), (bool, "true"), (list[int], "1,2"), (list[int], {"0": 1}), (dict[str, int], []),
        (datetime.datetime, 0), (datetime.date, "2026-01-02T03:04:05Z"), (uuid.UUID, "1"), (Unit, "C"),
        (bytes, "not base64!"), (Literal["a"], "A"), (Literal[1], 2), (None, 0), (tuple[int, int], [1]),
        (int | None, "null"),
    ],
)  # fmt: skip
def test_nothing_else_is(annotation: Any, sent: Any) -> None:
    def f(a: Any) -> None: ...

    f.__annotations__["a"] = annotation
    assert tool(f).bind({"a": sent}).problems


@dataclass
class Box:
    width: int


class Leaf(msgspec.Struct):
    size: int
    name: str = ""


@tool
def nested(box: Box, leaf: Leaf, leaves: list[Leaf] | None = None, **more: int) -> Any:
    return box, leaf, leaves, more


def test_dataclasses_structs_and_the_rest() -> None:
    sent = {"box": {"width": 1}, "leaf": {"size": 2}, "leaves": [{"size": 3, "name": "x"}], "extra": 4}
    value, problems = nested.bind(sent)
    assert problems == []
    assert value == {"box": Box(1), "leaf": Leaf(2), "leaves": [Leaf(3, "x")], "extra": 4}
    text = told(nested, {"box": {"width": 1, "z": 1}, "leaf": {"size": "2"}, "extra": "x"})
    assert "- box.z: there is no such field (fields: width)" in text
    assert '- leaf: size: should be an integer, found "2" (text)' in text
    assert "- extra: should be a valid integer" in text


def test_unions_say_what_each_arm_expects_once() -> None:
    @tool
    def f(a: int | list[str], b: Place | None = None) -> None: ...

    text = told(f, {"a": "x", "b": {"lat": 1}})
    assert '- a: should be a valid integer or should be a valid array, found "x" (text)' in text
    assert "- b.name: is required but missing" in text


def test_injected_names_cannot_be_sent() -> None:
    @tool
    def f(a: int, ctx: ToolContext, **rest: Any) -> None: ...

    assert "- ctx: there is no such field" in told(f, {"a": 1, "ctx": {"session_id": "other"}})


def test_validators_of_the_author_speak_and_may_break() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    def broken(value: int) -> int:
        raise KeyError("oops")

    @tool
    def f(
        a: Annotated[int, AfterValidator(even)] = 0, b: Annotated[int, AfterValidator(broken)] = 0
    ) -> None: ...

    assert "- a: must be even, found 3 (an integer)" in told(f, {"a": 3})
    assert "could not be checked: KeyError" in told(f, {"b": 3})


def test_long_values_and_many_problems_are_cut_and_secrets_hidden() -> None:
    guard("sk-test-arguments-secret")

    @tool
    def f(a: int, b: list[int]) -> None: ...

    text = told(f, {"a": "sk-test-arguments-secret", "b": ["x" * 1000] * 100})
    assert "sk-test" not in text
    assert "[secret]" in text
    assert len(text) < 6000
    assert "more" in text


def test_deep_arguments_are_refused_not_a_crash() -> None:
    @tool
    def f(a: int) -> None: ...

    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert f.bind({"a": deep}).problems


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@tool
def everything(
    text: str,
    number: int,
    share: float,
    flag: bool,
    when: datetime.datetime,
    colour: Unit,
    items: list[int],
    table: dict[str, float],
    pair: tuple[int, str],
    place: Place,
    box: Box,
    leaf: Leaf,
    maybe: int | None = None,
    anything: Any = None,
) -> None: ...


@pytest.mark.spec("T-2")
@given(
    st.fixed_dictionaries(
        {
            "text": st.text(),
            "number": st.integers(-(2**63), 2**63 - 1),
            "share": st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.booleans(),
            "when": st.datetimes(timezones=st.just(datetime.UTC)),
            "colour": st.sampled_from(Unit),
            "items": st.lists(st.integers(-1000, 1000), max_size=5),
            "table": st.dictionaries(st.text(max_size=5), st.floats(-1e9, 1e9), max_size=3),
            "pair": st.tuples(st.integers(0, 9), st.text(max_size=5)),
            "place": st.builds(Place, name=st.text(max_size=5), lat=st.floats(-90, 90)),
            "box": st.builds(Box, st.integers(0, 9)),
            "leaf": st.builds(Leaf, st.integers(0, 9), st.text(max_size=5)),
        },
        optional={"maybe": st.none() | st.integers(0, 9), "anything": plain},
    )
)
def test_values_come_back_as_they_were_written_to_json(values: dict[str, Any]) -> None:
    raw = msgspec.json.encode(
        {key: value.model_dump() if isinstance(value, Place) else value for key, value in values.items()}
    ).decode()
    arguments = parse_arguments(raw).arguments
    assert arguments is not None
    found, problems = everything.bind(arguments)
    assert problems == []
    assert {key: found[key] for key in values} == values
    for key in values:
        assert type(found[key]) is type(values[key])


@given(st.dictionaries(st.text(max_size=8), plain, max_size=5))
def test_any_object_gives_values_or_problems_and_never_raises(arguments: dict[str, Any]) -> None:
    value, problems = weather.bind(arguments)
    assert bool(problems) or isinstance(value["place"], Place)
    foreign = Tool.from_schema("foreign", "", weather.spec.parameter_schema, lambda a, ctx: a)
    # The same schema read by the other checker: what the types accept, the schema must accept too.
    if not problems:
        assert foreign.bind(arguments).problems == []


class Markup(str):
    def __str__(self) -> str:
        return "another text"


class Count(int):
    pass


async def test_arguments_of_odd_classes_are_taken_by_value() -> None:
    """Arguments that a human's form gave in place of a model's JSON."""

    @tool
    def note(text: str, times: int, share: float) -> str:
        return f"{text}{times}{share}{type(text).__name__}{type(times).__name__}"

    bound = note.bind({Markup("text"): Markup("x"), "times": Count(3), "share": Count(2)})
    assert bound.problems == []
    assert note.call(bound.kwargs, ToolContext()) == "x32.0strint"
