"""The tools of a simulated session: each another way of having, or not having, an effect outside."""

from __future__ import annotations

import asyncio

from turnlog.tools import NOT_RUN, Tool, ToolContext, ToolError, tool

from ._simulation import SimulatedProcess, Simulation, current_process


async def _act(ctx: ToolContext) -> Simulation:
    """Something outside happens, some time into the call and some time before its end."""
    process = current_process()
    assert process is not None
    await process.simulation.pause(0.05)
    process.effect(ctx.idempotency_key)
    await process.simulation.pause(0.05)
    return process.simulation


@tool(timeout=0.2)
async def pay(text: str, ctx: ToolContext) -> str:
    """Must never happen twice."""
    if (await _act(ctx)).chance(0.1):
        raise ToolError("no money left")
    return "paid"


@tool(timeout=None, concurrent=True, idempotent=True, retries=1)
async def look(text: str, ctx: ToolContext) -> str:
    """Harmless."""
    if (await _act(ctx)).chance(0.1):
        raise ToolError("fog", retryable=True)
    return "all quiet"


@tool(timeout=None, concurrent=True, keyed=True)
async def post(text: str, ctx: ToolContext) -> str:
    """Passes its key on."""
    await _act(ctx)
    return "posted"


_under_way: dict[str, SimulatedProcess] = {}
"""Who is booking, by key."""


async def _find_booking(ctx: ToolContext, arguments: object) -> object:
    process = current_process()
    assert process is not None
    await process.simulation.pause(0.05)
    if process.simulation.effects[ctx.idempotency_key]:
        return "booked"
    holder = _under_way.get(ctx.idempotency_key)
    # One that lost its session and still lives may yet do it: then nobody can know.
    return NOT_RUN if holder is None or holder.dead else None


@tool(timeout=None, reconcile=_find_booking)
async def book(text: str, ctx: ToolContext) -> str:
    """Can be asked what became of it."""
    process = current_process()
    assert process is not None
    _under_way[ctx.idempotency_key] = process
    try:
        await _act(ctx)
    finally:
        _under_way.pop(ctx.idempotency_key, None)
    return "booked"


@tool(timeout=None, requires_approval=True)
async def send(text: str, ctx: ToolContext) -> str:
    """Somebody has to allow it."""
    await _act(ctx)
    return "sent"


@tool(timeout=0.1)
async def sulk(text: str) -> str:
    """Ends neither in time nor when it is told to."""
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue


@tool(timeout=None)
async def quit(text: str) -> str:
    """Tries to end the program."""
    raise SystemExit(3)


TOOLS: tuple[Tool, ...] = (pay, look, post, book, send, sulk, quit)
