"""Logs as traces: live through OpenTelemetry, and afterwards from the log, the same spans."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from turnlog import Agent, AgentError, tool
from turnlog.contract import TokenUsage
from turnlog.history import MemoryStore
from turnlog.loop import Span, trace_of
from turnlog.testing import Loopback, LoopbackAnswer, ScriptedModel, Turn

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra 'otel'")

from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF  # noqa: E402

from turnlog.observe import OpenTelemetry  # noqa: E402

CALL = Turn(
    tool_calls=[{"name": "look_up", "arguments": {"order": "42"}}],
    usage=TokenUsage(input_tokens=100, output_tokens=5, total_tokens=105, cached_input_tokens=80, cost=0.01),
)


@tool
def look_up(order: str) -> str:
    """Find an order."""
    if order == "0":
        raise ValueError("there is no order 0")
    return f"order {order} was paid"


class Traced:
    """A provider that keeps its spans in memory, and an observer on it."""

    def __init__(self, **options: Any) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.reader = InMemoryMetricReader()
        self.observer = OpenTelemetry(
            tracer_provider=self.provider, meter_provider=MeterProvider([self.reader]), content=True
        )

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.memory.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        return next(span for span in self.spans if span.name == name)

    def metrics(self) -> dict[str, list[Any]]:
        data: Any = self.reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in found}


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        f"{parent.span_id:016x}" if parent is not None else None,
    )


@pytest.mark.spec("O-1")
async def test_a_run_its_model_calls_and_its_tools_are_spans_of_one_trace() -> None:
    traced = Traced()
    agent = Agent(
        ScriptedModel([CALL, "Paid."]),
        tools=[look_up],
        name="clerk",
        store=MemoryStore(),
        observers=[traced.observer],
    )
    result = await agent.run("Is order 42 paid?", session="s1")
    assert [span.name for span in traced.spans] == [
        "chat scripted",
        "execute_tool look_up",
        "chat scripted",
        "invoke_agent clerk",
    ]
    run = traced.named("invoke_agent clerk")
    for span in traced.spans[:-1]:
        assert ids(span)[0] == ids(run)[0] and ids(span)[2] == ids(run)[1]
    first, given = traced.spans[0].attributes or {}, run.attributes or {}
    assert first["gen_ai.request.model"] == "scripted" and first["gen_ai.usage.input_tokens"] == 100
    assert first["gen_ai.usage.cache_read.input_tokens"] == 80 and first["turnlog.cost"] == 0.01
    assert (
        first["gen_ai.response.finish_reasons"] == ("tool_calls",) or first["gen_ai.response.finish_reasons"]
    )
    assert given["gen_ai.conversation.id"] == "s1" and given["turnlog.run.id"] == result.run_id
    assert given["turnlog.run.status"] == "completed" and run.status.is_ok is True
    entries = {entry.id for entry in await agent.store.load("s1")}
    assert all((span.attributes or {})["turnlog.entry.id"] in entries for span in traced.spans)
    assert (traced.spans[1].attributes or {})["gen_ai.tool.call.result"] == "order 42 was paid"
    assert "Is order 42 paid?" in str(first["gen_ai.input.messages"])


@pytest.mark.spec("O-1")
async def test_the_log_makes_the_same_spans_afterwards() -> None:
    traced, store = Traced(), MemoryStore()
    helper = Agent(ScriptedModel(["Done."]), name="helper", store=store, observers=[traced.observer])
    boss = Agent(
        ScriptedModel([Turn(tool_calls=[{"name": "helper", "arguments": {"input": "help"}}]), "All done."]),
        tools=[helper.as_tool("Helps.")],
        name="boss",
        store=store,
        observers=[traced.observer],
    )
    await boss.run("Do it.", session="s1")
    await boss.run("Again.", session="s1", check=False)
    later = await trace_of(store, "s1", content=True)

    def told(span: Span) -> Any:
        return (
            span.name,
            (span.trace_id, span.span_id, span.parent_id),
            span.start,
            span.end,
            span.attributes,
        )

    live = [
        (span.name, ids(span), span.start_time, span.end_time, dict(span.attributes or {}))
        for span in traced.spans
    ]
    by_id = {"key": lambda each: each[1][1]}
    assert sorted(live, **by_id) == sorted(map(told, later), **by_id)
    child, call = traced.named("invoke_agent helper"), traced.named("execute_tool helper")
    assert ids(child)[0] == ids(call)[0] and ids(child)[2] == ids(call)[1]
    second = [span for span in traced.spans if span.name == "invoke_agent boss"][1]
    linked = second.links[0].context
    assert f"{linked.span_id:016x}" == ids(traced.named("invoke_agent boss"))[1]


async def test_failures_are_marked_and_counted() -> None:
    traced = Traced()
    bad = Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "0"}}])
    agent = Agent(
        ScriptedModel([AgentError("ModelOverloaded", "busy"), bad, Turn(error={"code": "ModelRefused"})]),
        tools=[look_up],
        store=MemoryStore(),
        observers=[traced.observer],
    )
    await agent.run("Is it paid?", check=False)
    errors = [(span.name, (span.attributes or {}).get("error.type")) for span in traced.spans]
    assert ("chat scripted", "ModelOverloaded") in errors and ("chat scripted", "ModelRefused") in errors
    assert traced.named("execute_tool look_up").status.is_ok is False
    assert traced.named("invoke_agent agent").status.is_ok is False
    metrics = traced.metrics()
    assert [point.value for point in metrics["turnlog.model.retries"]] == [1]
    assert [point.value for point in metrics["turnlog.tool.errors"]] == [1]
    assert sum(point.sum for point in metrics["turnlog.run.turns"]) == 3


async def test_metrics_tell_tokens_cost_cache_and_times() -> None:
    traced = Traced()
    agent = Agent(
        ScriptedModel([CALL, "Paid."]), tools=[look_up], store=MemoryStore(), observers=[traced.observer]
    )
    await agent.run("Is order 42 paid?")
    metrics = traced.metrics()
    assert sum(point.count for point in metrics["gen_ai.client.operation.duration"]) == 4
    assert sum(point.value for point in metrics["turnlog.cost"]) == pytest.approx(0.01)
    assert next(point.max for point in metrics["turnlog.cache.reuse"]) == pytest.approx(0.8)
    kinds = Counter(point.attributes["gen_ai.token.type"] for point in metrics["gen_ai.client.token.usage"])
    assert set(kinds) == {"input", "output"}


@pytest.mark.parametrize(
    "given", ["0af7651916cd43dd8448eb211c80319c", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
)
async def test_a_trace_that_is_handed_in_goes_on(given: str) -> None:
    traced = Traced()
    agent = Agent(ScriptedModel(["Hi."]), store=MemoryStore(), observers=[traced.observer])
    await agent.run("Hello.", trace_id=given)
    run = traced.named("invoke_agent agent")
    assert ids(run)[0] == "0af7651916cd43dd8448eb211c80319c"
    assert ids(run)[2] == ("b7ad6b7169203331" if "-" in given else None)


async def test_a_provider_is_told_the_span_that_the_trace_shows() -> None:
    answer = {"choices": [{"delta": {"content": "Hi."}, "finish_reason": "stop", "index": 0}]}
    traced = Traced()
    async with Loopback(LoopbackAnswer.sse(f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n")) as server:
        agent = Agent(
            "openai-chat:any",
            model_options={"base_url": f"{server.url}/v1", "api_key": "none"},
            store=MemoryStore(),
            observers=[traced.observer],
        )
        async with agent:
            await agent.run("Hello.", trace_id="0af7651916cd43dd8448eb211c80319c")
        header = server.requests[0].headers["traceparent"]
    trace, span, _ = ids(traced.named("chat any"))
    assert header == f"00-{trace}-{span}-01"


async def test_what_a_sampler_drops_is_not_sent_and_content_is_opt_in() -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    agent = Agent(ScriptedModel(["Hi."]), store=MemoryStore(), observers=[traced.observer])
    await agent.run("Hello.")
    assert traced.spans == ()
    memory = InMemorySpanExporter()
    observer = OpenTelemetry(exporter=memory)
    agent = Agent(ScriptedModel(["Hi."]), store=MemoryStore(), observers=[observer])
    await agent.run("a secret wish")
    await asyncio.to_thread(observer.close)
    assert len(memory.get_finished_spans()) == 2
    assert not any("secret wish" in str(span.attributes) for span in memory.get_finished_spans())


class Down(SpanExporter):
    """A collector that is down."""

    def export(self, spans: Any) -> SpanExportResult:
        raise ConnectionError("down")

    def shutdown(self) -> None:
        pass


async def test_a_collector_that_is_down_hurts_no_run() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Down()))
    agent = Agent(
        ScriptedModel(["Hi."]), store=MemoryStore(), observers=[OpenTelemetry(tracer_provider=provider)]
    )
    assert (await agent.run("Hello.")).text == "Hi."


def test_without_an_sdk_the_error_says_what_to_do() -> None:
    code = "from turnlog.observe import OpenTelemetry; OpenTelemetry()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert "ConfigInvalid: no OpenTelemetry SDK takes spans here" in done.stderr


def test_nothing_of_it_is_loaded_when_it_is_not_used() -> None:
    code = (
        "import sys; from turnlog import Agent; from turnlog.testing import ScriptedModel\n"
        "Agent(ScriptedModel(['Hi.']), store='memory:').run_sync('Hello.')\n"
        "print([n for n in sys.modules if 'opentelemetry' in n or n.endswith(('._spans', '._otel'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "[]\n"
