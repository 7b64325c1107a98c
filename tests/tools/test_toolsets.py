"""Tools that open, close and change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from turnlog.contract import AgentError, ToolCallRequest, ToolPolicy
from turnlog.testing import check_toolset
from turnlog.tools import Executor, Registry, Tool, ToolContext, ToolExecutor, ToolLike, ToolRegistry, tool


class Shelf:
    """A toolset in memory: one tool for each word on it."""

    def __init__(self, *words: str, name: str = "shelf", fails: Exception | None = None) -> None:
        self.name = name
        self.version = 1
        self.words = list(words)
        self.fails = fails
        self.log: list[str] = []

    async def open(self) -> None:
        self.log.append("open")
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails

    async def tools(self) -> Sequence[ToolLike]:
        self.log.append("tools")
        return [Tool.from_schema(word, f"Say {word}.", {}, self._said(word)) for word in self.words]

    def _said(self, word: str) -> Any:
        return lambda arguments, ctx: word

    async def close(self) -> None:
        self.log.append("close")

    async def put(self, word: str) -> None:
        self.words.append(word)
        self.version += 1


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.mark.spec("T-11")
async def test_a_toolset_stands_among_tools_and_is_opened_once() -> None:
    shelf = Shelf("red", "blue")
    registry = ToolRegistry([shelf, add])
    assert registry.names == ["add"], "nothing is opened before its use"
    await registry.refresh()
    await registry.refresh()
    assert registry.names == ["red", "blue", "add"]
    assert shelf.log == ["open", "tools"]
    executor = ToolExecutor(registry)
    call = ToolCallRequest(tool_name="red", tool_call_id="c", raw_arguments="{}")
    assert (await executor.execute(call, ToolContext())).content == "red"
    await registry.close()
    await registry.close()
    assert (shelf.log, registry.names) == (["open", "tools", "close"], ["add"])


@pytest.mark.spec("T-11", "T-9")
async def test_tools_that_change_are_read_again() -> None:
    shelf = Shelf("red")
    registry = ToolRegistry([add, shelf])
    await registry.refresh()
    await shelf.put("green")
    assert registry.get("green") is None, "the same until the next refresh"
    await registry.refresh()
    assert [spec.name for spec in registry.offered(ToolPolicy())] == ["add", "red", "green"]
    assert shelf.log == ["open", "tools", "tools"]


async def test_many_runs_on_one_registry_open_a_toolset_once() -> None:
    shelf = Shelf("red")
    registry = ToolRegistry([shelf])
    await asyncio.gather(
        *(registry.refresh() for _ in range(5)),
        *(asyncio.to_thread(asyncio.run, registry.refresh()) for _ in range(5)),
    )
    assert (shelf.log, registry.names) == (["open", "tools"], ["red"])


async def test_two_tools_of_one_name_are_a_clear_error_wherever_they_come_from() -> None:
    registry = ToolRegistry([add, Shelf("add", name="calculator")])
    for _ in range(2):  # and stays one
        with pytest.raises(AgentError) as caught:
            await registry.refresh()
        assert caught.value.code == "ConfigInvalid"
        assert ".add and toolset 'calculator'; give one of them another" in caught.value.message
        assert registry.get("add") is add, "what was there stays"
    changing = Shelf("red", name="second")
    registry = ToolRegistry([Shelf("blue", name="first"), changing])
    await registry.refresh()
    await changing.put("blue")
    with pytest.raises(AgentError, match="named 'blue': toolset 'first' and toolset 'second'"):
        await registry.refresh()
    changing.words.remove("blue")
    await registry.refresh()
    assert registry.names == ["blue", "red"]


@pytest.mark.parametrize(
    "error", [AgentError("PluginMissing", "install it"), OSError("no such server")], ids=["ours", "other"]
)
async def test_a_toolset_that_cannot_be_opened_says_which_it_is(error: Exception) -> None:
    good, bad = Shelf("red"), Shelf("blue", name="bad", fails=error)
    registry = ToolRegistry([good, bad])
    with pytest.raises(AgentError) as caught:
        await registry.refresh()
    other = "toolset 'bad' could not be opened: OSError"
    assert (error.message if isinstance(error, AgentError) else other) in caught.value.message
    bad.fails = None
    await registry.refresh()
    assert good.log.count("open") == 1 and registry.names == ["red", "blue"]
    await registry.close()
    assert good.log[-1] == bad.log[-1] == "close"


def test_half_a_toolset_is_refused_with_what_it_lacks() -> None:
    class Half:
        name = "half"

        async def open(self) -> None: ...

    with pytest.raises(AgentError, match="for a toolset it lacks version, tools, close"):
        ToolRegistry([Half()])  # pyright: ignore[reportArgumentType]


async def test_the_kit_passes_a_good_toolset() -> None:
    async def change(shelf: Shelf) -> None:
        await shelf.put("more")

    await check_toolset(
        lambda: Shelf("red"),
        call=("red", {}),
        change=change,
        broken=lambda: Shelf(fails=AgentError("PluginMissing", "install it")),
    )


class Silent(Shelf):
    async def put(self, word: str) -> None:
        self.words.append(word)


class Shuffled(Shelf):
    async def tools(self) -> Sequence[ToolLike]:
        self.words.reverse()
        return await super().tools()


class Once(Shelf):
    async def close(self) -> None:
        if "close" in self.log:
            raise RuntimeError("closed already")
        await super().close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Silent("red"), "the version did not grow"),
        (lambda: Shuffled("red", "blue"), "another order"),
        (Shelf, "has no tools"),
        (lambda: Once("red"), "closed already"),
    ],
)
async def test_the_kit_finds_what_is_wrong(make: Any, words: str) -> None:
    async def change(shelf: Shelf) -> None:
        await shelf.put("more")

    with pytest.raises((AssertionError, RuntimeError), match=words):
        await check_toolset(make, change=change)
    with pytest.raises(AssertionError, match="raised OSError, not AgentError"):
        await check_toolset(lambda: Shelf("red"), broken=lambda: Shelf(fails=OSError("gone")))


def test_registry_and_executor_keep_their_protocols() -> None:
    registry: Registry = ToolRegistry([add])
    executor: Executor = ToolExecutor(registry)
    call = ToolCallRequest(tool_name="add", tool_call_id="c", raw_arguments='{"a": 1, "b": 2}')
    assert executor.validate(call) == {"a": 1, "b": 2}


class Bank: ...


class Shop: ...


@tool
def balance(ctx: ToolContext[Bank]) -> str:
    """Look."""
    return str(ctx.deps)


def test_deps_are_checked_against_every_tool() -> None:
    registry = ToolRegistry([add, balance])
    registry.check_deps(Bank())
    registry.check_deps_type(Bank)
    with pytest.raises(AgentError, match="tool 'balance' needs deps of type Bank, and none were given"):
        registry.check_deps(None)
    with pytest.raises(AgentError, match="deps_type is Shop; give it deps_type=Bank"):
        registry.check_deps_type(Shop)
