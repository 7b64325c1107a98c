"""A page of user code for the type checker; ``test_tool_typing.py`` reads it and never runs it.

Each line that ends in ``# error: RULE`` must be found wrong for that reason, and no other line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from turnlog import Agent, RunResult, RunStream
from turnlog.tools import OutputType, Problems, Tool, ToolContext, ToolResult, tool


@dataclass
class Bank:
    name: str

    def balance(self, account: str) -> int:
        return len(account)


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=3, ends_run=True)
async def balance(ctx: ToolContext[Bank], account: str) -> str:
    """The balance of an account."""
    assert_type(ctx.deps, Bank)
    return f"{ctx.deps.balance(account)} at {ctx.deps.nmae}"  # error: reportAttributeAccessIssue


class Counter:
    @tool(idempotent=True)
    def count(self, by: int) -> int:
        return by


def plain(word: str) -> ToolResult:
    return ToolResult(word)


@tool(timout=3)  # error: reportCallIssue
def misspelt(a: int) -> int:
    return a


async def use(bank: Bank) -> None:
    assert_type(add(1, 2), int)
    assert_type(add(1), int)
    add("x")  # error: reportArgumentType
    add(1, nope=3)  # error: reportCallIssue
    assert_type(await balance(ToolContext(deps=bank), "17"), str)
    await balance(ToolContext(deps=17), "17")  # error: reportArgumentType
    assert_type(Counter().count(3), int)
    Counter().count("3")  # error: reportArgumentType
    assert_type(tool(plain)("x"), ToolResult)
    several: list[Tool] = [add, balance, Counter().count]
    print(several, add.name, add.spec)
    found = OutputType(Bank).validate("{}")
    assert_type(found, Bank | Problems)
    assert_type(OutputType(list[Bank]).partial("["), list[Bank] | None)
    OutputType(Bank, check=lambda bank: bank.nmae)  # error: reportAttributeAccessIssue
    print(add.nmae)  # error: reportAttributeAccessIssue


async def ask(model: str) -> None:
    plain = Agent(model)
    assert_type(await plain.run("Hello?"), RunResult[str])
    assert_type((await plain.run("Read it.", output_type=Bank)).output, Bank)
    assert_type((await plain.run("Read it.", output_type=list[Bank])).output, list[Bank])
    assert_type(plain.run_sync("Read it.", output_type=OutputType(Bank)), RunResult[Bank])
    bank = Agent(model, output_type=Bank)
    assert_type(bank, Agent[Bank])
    assert_type(await bank.run("Read it."), RunResult[Bank])
    assert_type(await bank.session("s").run("Read it.", output_type=str), RunResult[str])
    assert_type(await bank.resume("s"), RunResult[Bank] | None)
    assert_type((await (await bank.start("Read it.")).result()).output, Bank)
    print((await bank.run("Read it.")).output.nmae)  # error: reportAttributeAccessIssue
    async with plain.run_stream("Read it.", output_type=Bank) as run:
        assert_type(run, RunStream[Bank])
        async for partial in run.partial:
            assert_type(partial, Bank)
    async with plain.run_stream("Say it.") as run:
        async for text in run.partial:
            assert_type(text, str)
    await plain.run("Read it.", output_typ=Bank)  # error: reportCallIssue
    either = await plain.run("Read it.", output_type=Bank | Counter)
    print(either.output)
