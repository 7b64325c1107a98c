"""What a tool is given, and how it speaks while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypedDict

import pytest

from turnlog.contract import AgentError, JsonObject, Runtime, ToolCallRequest, guard
from turnlog.testing import FakeRuntime, VirtualClock
from turnlog.tools import AgentInfo, ToolAnswer, ToolContext, ToolExecutor, ToolRegistry, check_deps, tool


async def run(function: Any, ctx: ToolContext, **arguments: Any) -> ToolAnswer:
    registry = ToolRegistry([function])
    call = ToolCallRequest(
        tool_name=registry.names[0], tool_call_id="call_1", raw_arguments="", arguments=arguments
    )
    return await ToolExecutor(registry, VirtualClock()).execute(call, ctx)


@pytest.mark.spec("T-5")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_context_is_given_to_who_declares_it(kind: str) -> None:
    def describe(ctx: ToolContext) -> str:
        assert ctx.agent is not None
        return (
            f"{ctx.session_id} {ctx.run_id} {ctx.agent.name} {ctx.tool_name} {ctx.tool_call_id} {ctx.attempt}"
        )

    @tool(name="look")
    async def later(note: str, given: ToolContext) -> str:
        given.progress("seen")
        return f"{note} {describe(given)} {given.idempotency_key} {given.deps}"

    @tool(name="look")
    def now(note: str, *, given: ToolContext | None = None) -> str:
        assert given is not None
        given.progress("seen")
        return f"{note} {describe(given)} {given.idempotency_key} {given.deps}"

    heard: list[Any] = []
    ctx = ToolContext(
        session_id="s",
        run_id="r",
        agent=AgentInfo("me"),
        idempotency_key="key",
        attempt=2,
        deps="shared",
        on_progress=lambda text, data: heard.append((text, data)),
    )
    answer = await run(later if kind == "async" else now, ctx, note="hi")
    assert answer.content == "hi s r me look call_1 2 key shared"
    assert heard == [("seen", None)]


class Bank:
    def __init__(self, money: int = 0) -> None:
        self.money = money


if TYPE_CHECKING:
    from somewhere import Unloaded  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


def bare(ctx: ToolContext, account: str) -> str:
    return f"{account} {ctx.deps.money}"


def typed(ctx: ToolContext[Bank], account: str) -> str:
    return f"{account} {ctx.deps.money}"


def optional(account: str, ctx: ToolContext[Bank] | None = None) -> str:
    return f"{account} {ctx and ctx.deps.money}"


def unloaded(ctx: ToolContext[Unloaded], account: str) -> str:  # pyright: ignore
    return f"{account} {ctx.deps.money}"  # pyright: ignore


def annotated(ctx: Annotated[ToolContext[Bank], "the bank"], account: str) -> str:
    return f"{account} {ctx.deps.money}"


@pytest.mark.parametrize("function", [bare, typed, optional, unloaded, annotated])
async def test_deps_reach_a_tool_and_never_its_schema(function: Any) -> None:
    assert list(tool(function).spec.parameter_schema["properties"]) == ["account"]
    answer = await run(function, ToolContext(deps=Bank(7)), account="17")
    assert answer.content == "17 7"


def test_a_tool_says_which_deps_it_wants() -> None:
    assert [tool(each).deps_types for each in (bare, typed, optional, annotated)] == [
        (),
        (Bank,),
        (Bank,),
        (Bank,),
    ]


class Vault(Bank): ...


class Shape(Protocol):
    money: int


class Row(TypedDict):
    money: int


@pytest.mark.parametrize(
    ("wanted", "deps"),
    [
        (Bank, Bank()),
        (Bank, Vault()),
        (Bank | None, None),
        (Shape, "a protocol that Python cannot test"),
        (Any, 5),
        (Row, {"money": 1}),
        (dict[str, int], {"a": 1}),
        (Callable[[], int], len),
    ],
)
def test_deps_of_the_right_type_are_taken(wanted: Any, deps: Any) -> None:
    check_deps(deps, wanted)


@pytest.mark.parametrize(
    ("wanted", "deps", "words"),
    [
        (Bank, "the bank", "needs deps of type Bank, and deps of type str were given; pass deps=Bank"),
        (Bank, None, "needs deps of type Bank, and none were given"),
        (Vault, Bank(), "deps of type Bank were given"),
        (Row, 5, "needs deps of type Row"),
        (Bank | str, 5, "deps of type int were given"),
    ],
)
def test_deps_of_another_type_are_refused(wanted: Any, deps: Any, words: str) -> None:
    with pytest.raises(AgentError) as caught:
        check_deps(deps, wanted)
    assert caught.value.code == "ConfigInvalid"
    assert words in caught.value.message


async def test_a_context_hands_out_nothing_internal() -> None:
    seen: list[str] = []

    @tool
    def look(ctx: ToolContext) -> str:
        seen.extend(name for name in dir(ctx) if not name.startswith("_"))
        return "done"

    await run(look, ToolContext(on_progress=lambda text, data: None))
    facts = "agent answers attempt clock deps idempotency_key journal run_id runtime session_id"
    named = "tool_call_id tool_name"
    ways = "cancelled emit on_progress progress require_journal require_runtime"
    assert seen == sorted(f"{facts} {named} {ways}".split())
    assert ToolContext(on_progress=lambda text, data: None).on_progress is None, "no way to the listener"


@pytest.mark.spec("T-5")
async def test_the_runtime_is_given_and_its_absence_is_the_standard_error() -> None:
    @tool
    async def shell(command: str, runtime: Runtime) -> str:
        return (await runtime.execute(command)).stdout

    @tool(requires_runtime=True)
    async def declared(ctx: ToolContext) -> str:
        return ctx.require_runtime().status

    @tool
    async def asks(ctx: ToolContext) -> str:
        return ctx.require_runtime().status

    async with FakeRuntime(commands={"ls": "a.txt\n"}) as runtime:
        ready = ToolContext(runtime=runtime)
        assert (await run(shell, ready, command="ls")).content == "a.txt\n"
        assert (await run(declared, ready)).content == "ready"
    assert (await run(shell, ready, command="ls")).error_code == "RuntimeNotReady", "it is closed"
    for function, arguments in ((shell, {"command": "ls"}), (declared, {}), (asks, {})):
        answer = await run(function, ToolContext(), **arguments)
        assert (answer.status, answer.error_code) == ("failed", "RuntimeUnavailable")
        assert "needs a runtime" in answer.text
    broken = FakeRuntime(broken=True)
    with pytest.raises(AgentError):
        await broken.connect()
    answer = await run(shell, ToolContext(runtime=broken), command="ls")
    assert (answer.error_code, "failed" in answer.text) == ("RuntimeNotReady", True)


@pytest.mark.parametrize("kind", ["async", "stream", "sync", "sync_stream"])
async def test_progress_comes_in_order_and_before_the_result(kind: str) -> None:
    heard: list[Any] = []

    @tool(name="work")
    async def as_async(ctx: ToolContext) -> str:
        for step in range(3):
            ctx.progress(f"{step}", percent=step * 50)
            await asyncio.sleep(0)
        return "012"

    @tool(name="work")
    async def as_stream() -> AsyncIterator[Any]:
        for step in range(3):
            yield f"{step}"
            yield {"percent": step * 50}

    @tool(name="work")
    def as_sync(ctx: ToolContext) -> str:
        for step in range(3):
            ctx.progress(f"{step}", percent=step * 50)
        return "012"

    @tool(name="work")
    def as_sync_stream() -> Iterator[Any]:
        for step in range(3):
            yield f"{step}"
            yield {"percent": step * 50}

    kinds = {"async": as_async, "stream": as_stream, "sync": as_sync, "sync_stream": as_sync_stream}
    ctx = ToolContext(on_progress=lambda text, data: heard.append((text, data)))
    answer = await run(kinds[kind], ctx)
    assert answer.content == "012"
    texts = [text for text, _ in heard if text is not None]
    numbers = [data["percent"] for _, data in heard if data is not None]
    assert (texts, numbers) == (["0", "1", "2"], [0, 50, 100])


async def test_progress_is_clean_bounded_and_never_fails_a_tool() -> None:
    guard("sk-canary-progress")
    heard: list[Any] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        ctx.progress("sk-canary-progress \x00\ud800")
        ctx.progress("x" * 1_000_000)
        ctx.progress(odd=object, number=float("nan"))
        return "done"

    ctx = ToolContext(on_progress=lambda text, data: heard.append((text, data)))
    assert (await run(work, ctx)).content == "done"
    assert heard[0] == ("[secret] \u2400\ufffd", None)
    assert len(heard[1][0]) == 64_000
    assert heard[2] == (None, {"odd": "<class 'object'>", "number": "nan"})

    def deaf(text: str | None, data: JsonObject | None) -> None:
        raise RuntimeError("the listener broke")

    assert (await run(work, ToolContext(on_progress=deaf))).content == "done"
    assert (await run(work, ToolContext())).content == "done"


async def test_events_go_with_a_success_and_only_with_one() -> None:
    @tool
    async def note(text: str, ctx: ToolContext) -> str:
        ctx.emit("notebook", "added", {"text": text})
        ctx.emit("notebook", "closed")
        if text == "bad":
            raise ValueError("changed my mind")
        return "noted"

    answer = await run(note, ToolContext(), text="fine")
    assert [(event.widget, event.event, event.data, event.tool_call_id) for event in answer.events] == [
        ("notebook", "added", {"text": "fine"}, "call_1"),
        ("notebook", "closed", {}, "call_1"),
    ]
    assert (await run(note, ToolContext(), text="bad")).events == []

    @tool
    async def odd(ctx: ToolContext) -> None:
        ctx.emit("notebook", "added", {"text": object()})

    answer = await run(odd, ToolContext())
    assert answer.error_code == "InvalidEntry"
    assert "'added' of widget 'notebook'" in answer.text


async def test_a_context_outside_of_a_call_is_quiet() -> None:
    ctx = ToolContext(on_progress=lambda text, data: pytest.fail("nobody runs"))
    ctx.progress("x")
    ctx.emit("w", "e")
    assert not ctx.cancelled
