"""``@tool``: names, descriptions, schemas, what is refused, and when types are looked at."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from typing import Any

import pytest

from turnlog.contract import AgentError, Runtime, ToolSpec, encode
from turnlog.tools import Tool, ToolContext, ToolDefinition, ToolRegistry, as_tool, tool


def refuse(function: Any) -> str:
    with pytest.raises(AgentError) as caught:
        _ = as_tool(function).spec
    assert caught.value.code == "ConfigInvalid"
    return caught.value.message


@pytest.mark.spec("T-1")
def test_a_typed_function_becomes_a_tool() -> None:
    @tool
    def get_weather(city: str, days: int = 3) -> str:
        """Tell the weather of a city.

        Looks at three stations.

        Args:
            city: Name of the city.
            days: How many days ahead.

        Returns:
            One line per day.
        """
        return f"{city} {days}"

    assert get_weather.spec == ToolSpec(
        name="get_weather",
        description="Tell the weather of a city.\n\nLooks at three stations.\n\nReturns: One line per day.",
        parameter_schema={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "days": {"type": "integer", "description": "How many days ahead.", "default": 3},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    )
    assert get_weather("Rome", days=1) == "Rome 1", "calling the object calls the function"
    assert get_weather.__name__ == "get_weather"


@pytest.mark.spec("T-1")
async def test_an_async_function_becomes_a_tool_with_options() -> None:
    @tool(name="fetch-it", description="Fetch.", timeout=2.5, requires_approval=True, idempotent=True)
    async def fetch(url: str) -> str:
        return url

    assert (fetch.name, fetch.description, fetch.is_async) == ("fetch-it", "Fetch.", True)
    assert await fetch("x") == "x"
    found = fetch.definition
    assert (found.name, found.timeout_ms, found.requires_approval) == ("fetch-it", 2500, True)
    assert (found.requires_runtime, found.requires_agent) == (False, False)
    assert await found.execute({"url": "y"}, ToolContext()) == "y"
    with pytest.raises(AgentError, match="url: is required"):
        await found.execute({}, ToolContext())


GOOGLE = """Add.

    Args:
        a (int): The first.
        b: The second,
            on two lines.
    """
NUMPY = """Add.

    Parameters
    ----------
    a : int
        The first.
    b : int
        The second,
        on two lines.
    """
SPHINX = """Add.

    :param a: The first.
    :param b: The second,
        on two lines.
    """


@pytest.mark.spec("T-1")
@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_styles(doc: str) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = doc
    spec = tool(add).spec
    properties = spec.parameter_schema["properties"]
    assert spec.description == "Add."
    assert properties["a"]["description"] == "The first."
    assert properties["b"]["description"] == "The second, on two lines."


def test_a_tool_without_docstring_is_described_by_its_name() -> None:
    @tool
    def list_files() -> None: ...

    assert list_files.spec.description == "list files"
    assert list_files.spec.parameter_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.total = 0

    def plain(self, by: int) -> int:
        """Count up."""
        self.total += by
        return self.total

    @tool(idempotent=True)
    def decorated(self, by: int) -> int:
        """Count up, decorated."""
        return self.plain(by)

    def __call__(self, by: int) -> int:
        """Count up when called."""
        return self.plain(by)


def test_methods_callables_and_partials() -> None:
    counter = Counter()
    bound = tool(counter.plain)
    assert (bound.name, bound.spec.description) == ("plain", "Count up.")
    assert list(bound.spec.parameter_schema["properties"]) == ["by"]

    inside = counter.decorated
    assert inside is counter.decorated, "the same tool each time, so that a registry knows it"
    assert (inside.name, inside.idempotent, inside(2), counter.total) == ("decorated", True, 2, 2)
    assert Counter().decorated is not inside
    assert list(inside.spec.parameter_schema["properties"]) == ["by"]

    called = tool(name="count")(counter)
    assert (called.spec.description, called(3)) == ("Count up when called.", 5)
    partial = tool(functools.partial(counter.plain, by=4))
    assert partial.name == "plain"
    assert partial.spec.parameter_schema["properties"]["by"]["default"] == 4

    assert "take it from an instance" in refuse(Counter.decorated)

    class Kit:
        held = inside
        made = tool(functools.partial(counter.plain), name="made")

    assert (Kit().held, Kit().made) == (inside, Kit.made), "no methods: tools that a class keeps"
    assert tool(inside) is inside
    assert tool(inside, name="again").name == "again"


@pytest.mark.spec("T-1")
def test_signatures_no_model_could_call_are_refused_by_name() -> None:
    def positional(a: int, /) -> None: ...
    def star(*names: str) -> None: ...
    def bare(a: int, b) -> None: ...  # type: ignore[no-untyped-def]  # pyright: ignore

    assert "'positional'" in refuse(positional)
    assert "'a' is positional-only" in refuse(positional)
    assert "names: list[...]" in refuse(star)
    assert "'b' has no type" in refuse(bare)


def test_bad_names_options_and_types_are_refused() -> None:
    def fine(a: int) -> None: ...

    assert "<lambda>" in refuse(lambda: None)
    with pytest.raises(AgentError, match="cannot be a tool's name"):
        tool(name="no spaces")(fine)
    with pytest.raises(AgentError, match="cannot be a tool's name"):
        tool(name="x" * 65)(fine)
    with pytest.raises(AgentError, match="timeout is 0"):
        tool(timeout=0)(fine)
    with pytest.raises(AgentError, match="idempotent=True"):
        tool(retries=2)(fine)
    with pytest.raises(AgentError, match="retries is -1"):
        tool(retries=-1, idempotent=True)(fine)
    with pytest.raises(AgentError, match="max_output"):
        tool(max_output=5)(fine)
    assert "is not a tool" in refuse(7)

    class Odd:
        pass

    def odd(a: Odd) -> None: ...
    def lost(a: NowhereToBeFound) -> None: ...  # noqa: F821  # pyright: ignore

    assert "no JSON schema can be made of that" in refuse(odd)
    assert "'NowhereToBeFound'" in refuse(lost)


def test_types_of_the_place_of_declaration_are_found() -> None:
    from enum import Enum

    class Colour(Enum):
        RED = "red"

    class Box:
        class Size(Enum):
            BIG = "big"

        @tool
        def paint(self, colour: Colour, size: Size) -> str:
            return colour.value

    @tool()
    def outside(colour: Colour) -> str:
        return colour.value

    assert outside.spec.parameter_schema["$defs"]["Colour"]["enum"] == ["red"]
    assert set(Box().paint.spec.parameter_schema["$defs"]) == {"Colour", "Size"}


@pytest.mark.spec("T-5")
def test_what_is_injected_is_no_part_of_the_schema() -> None:
    @tool
    def one(a: int, ctx: ToolContext) -> None: ...
    @tool
    def two(ctx: ToolContext | None, a: int) -> None: ...
    @tool
    def three(a: int, where: Runtime, *, context: ToolContext | None = None) -> None: ...

    for each in (one, two, three):
        assert list(each.spec.parameter_schema["properties"]) == ["a"]
    assert (one.requires_runtime, three.requires_runtime) == (False, True)


def test_tools_from_schemas_and_definitions() -> None:
    async def execute(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        return arguments

    schema = {"title": "Args", "properties": {"title": {"title": "T", "type": "string"}}, "type": "object"}
    made = Tool.from_schema("remote", "Far away.", schema, execute)
    assert made.spec.parameter_schema == {"type": "object", "properties": {"title": {"type": "string"}}}
    definition = ToolDefinition(
        name="d",
        description="D.",
        parameter_schema={},
        execute=execute,
        timeout_ms=1500,
        requires_runtime=True,
    )
    back = ToolRegistry([definition]).get("d")
    assert back is not None
    assert (back.timeout, back.requires_runtime) == (1.5, True)
    assert back.spec.parameter_schema == {"type": "object", "properties": {}}
    assert back.definition.timeout_ms == 1500


class Connection:
    """A class of a user's that no JSON describes."""


def test_a_parameter_no_model_could_send_is_refused_where_the_tool_is_declared() -> None:
    with pytest.raises(AgentError) as caught:

        @tool
        def query(sql: str, connection: Connection) -> str:  # pyright: ignore[reportUnusedFunction]
            return sql

    assert caught.value.code == "ConfigInvalid"
    message = caught.value.message
    assert message.startswith(
        "tool 'query': parameter 'connection' is of type Connection, and no JSON schema"
    )
    assert "ctx.deps (ctx: ToolContext[Connection])" in message
    assert "arbitrary_types_allowed" not in message

    def several(text: str, connections: list[Connection] | None = None) -> str:
        return text

    with pytest.raises(AgentError, match=r"tool 'several': parameter 'connections' is of type .*Connection"):
        ToolRegistry([several])
    with pytest.raises(AgentError, match="parameter 'gate'"):
        tool(_gated)


def _gated(gate: threading.Event) -> None: ...


def test_a_class_declared_after_its_tool_is_refused_by_the_registry() -> None:
    room: dict[str, Any] = {}
    code = """
from __future__ import annotations
from turnlog.tools import tool

@tool
def query(connection: Later) -> str:
    return ""

class Later: ...
"""
    exec(compile(code, "page", "exec"), room)
    with pytest.raises(AgentError, match="parameter 'connection' is of type Later"):
        ToolRegistry([room["query"]])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timout": 3}, "there is no option 'timout' (did you mean 'timeout'?); the options are name,"),
        ({"timeout": "1d"}, "timeout is '1d'; it is in seconds and more than 0, or None"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": True}, "timeout is True"),
        ({"idempotent": "yes"}, "idempotent is 'yes'; it is True or False"),
        ({"retry_on": ValueError}, "retry_on is <class 'ValueError'>; it is a tuple of exception classes"),
        ({"retry_on": (KeyboardInterrupt,)}, "retry_on"),
        ({"max_output": 1.5}, "max_output is 1.5"),
        ({"reconcile": 5}, "reconcile is 5"),
        ({"annotations": ["read_only"]}, "annotations is ['read_only']; it is a mapping"),
        ({"ends_run": 1}, "ends_run is 1"),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    def fine(a: int) -> int:
        return a

    for make in (lambda: tool(fine, **options), lambda: tool(**options)(fine)):
        with pytest.raises(AgentError) as caught:
            make()
        assert caught.value.code == "ConfigInvalid"
        assert words in caught.value.message
    with pytest.raises(AgentError):
        Tool.from_schema("fine", "", {}, lambda arguments, ctx: None, **options)


def test_the_same_bytes_every_time() -> None:
    def search(query: str, limit: int | None = None, tags: set[str] = frozenset()) -> None:  # type: ignore[assignment]  # pyright: ignore
        """Search."""

    first, second = tool(search), tool(search)
    assert encode(first.spec) == encode(second.spec) == encode(first.spec)
    assert first.spec is first.spec


def test_nothing_heavy_is_loaded_before_a_schema_is_needed() -> None:
    script = """
import sys
from turnlog.tools import tool, ToolRegistry, ToolExecutor, ToolContext

@tool(timeout=3)
def add(a: int, b: int = 2, *, ctx: ToolContext) -> int:
    "Add."
    return a + b

ToolExecutor(ToolRegistry([add]))
heavy = {"pydantic", "pydantic_core", "docstring_parser"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
add.spec
assert "pydantic" in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
