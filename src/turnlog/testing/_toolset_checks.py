"""The promise of a toolset, checked on an implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnlog.contract import AgentError, JsonObject, ToolCallRequest, encode
from turnlog.tools import ToolContext, ToolExecutor, ToolRegistry, Toolset

T = TypeVar("T", bound=Toolset)


async def check_toolset(
    make: Callable[[], T],
    *,
    call: tuple[str, JsonObject] | None = None,
    change: Callable[[T], Awaitable[None]] | None = None,
    broken: Callable[[], Toolset] | None = None,
) -> None:
    """Raise ``AssertionError`` unless the toolsets that ``make`` makes keep the promise of ``Toolset``.

    ``call`` is a tool and arguments that must succeed. ``change`` changes the tools of an open one, for a
    source whose tools can change. ``broken`` makes one that cannot be opened.
    """
    await _check_life(make)
    await _check_tools(make)
    if call is not None:
        await _check_call(make, *call)
        await asyncio.to_thread(asyncio.run, _check_call(make, *call))
        await _check_two_loops(make, *call)
    if change is not None:
        await _check_change(make, change)
    if broken is not None:
        await _check_broken(broken())


async def _check_life(make: Callable[[], Toolset]) -> None:
    toolset = make()
    assert isinstance(toolset, Toolset), f"{toolset!r} lacks a part of Toolset"
    assert toolset.name, "a toolset has a name, for messages"
    await toolset.close()  # never opened
    await toolset.open()
    await toolset.close()
    await toolset.close()  # twice
    left = make()
    opening = asyncio.create_task(left.open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    await left.close()  # whatever was reached when it was cancelled


async def _check_tools(make: Callable[[], Toolset]) -> None:
    toolset = make()
    registry = ToolRegistry([toolset])
    try:
        await registry.refresh()
        version, specs = toolset.version, encode(registry.specs())
        assert len(registry), f"toolset {toolset.name!r} has no tools"
        found = await toolset.tools()
        again = encode(ToolRegistry(found).specs())
        assert again == specs, "tools() read twice gave other tools, or another order"
        assert toolset.version == version, "reading the tools changed their version"
    finally:
        await registry.close()
    assert not registry.names, "tools are left after close"


async def _check_call(make: Callable[[], Toolset], name: str, arguments: JsonObject) -> None:
    registry = ToolRegistry([make()])
    try:
        await registry.refresh()
        await _call(registry, name, arguments)
    finally:
        await registry.close()


async def _check_two_loops(make: Callable[[], Toolset], name: str, arguments: JsonObject) -> None:
    """Opened on one event loop, called and closed on others."""
    registry = ToolRegistry([make()])
    try:
        await asyncio.to_thread(asyncio.run, registry.refresh())
        await _call(registry, name, arguments)
        await asyncio.to_thread(asyncio.run, _call(registry, name, arguments))
    finally:
        await registry.close()


async def _call(registry: ToolRegistry, name: str, arguments: JsonObject) -> None:
    request = ToolCallRequest(tool_name=name, tool_call_id="call_1", raw_arguments="", arguments=arguments)
    answer = await ToolExecutor(registry).execute(request, ToolContext())
    assert not answer.is_error, f"calling {name!r} failed: {answer.text}"


async def _check_change(make: Callable[[], T], change: Callable[[T], Awaitable[None]]) -> None:
    toolset = make()
    registry = ToolRegistry([toolset])
    try:
        await registry.refresh()
        version, specs = toolset.version, encode(registry.specs())
        await change(toolset)
        assert toolset.version > version, "the tools changed, and the version did not grow"
        await registry.refresh()
        assert encode(registry.specs()) != specs, "the version grew, and the tools are the same"
    finally:
        await registry.close()


async def _check_broken(toolset: Toolset) -> None:
    try:
        await toolset.open()
    except AgentError:
        await toolset.close()
        return
    except Exception as error:
        raise AssertionError(f"open() raised {type(error).__name__}, not AgentError: {error}") from error
    raise AssertionError("open() of the broken toolset raised nothing")
