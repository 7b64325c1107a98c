"""Traces and metrics through OpenTelemetry, made of a log's entries as they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnlog.contract import AgentError, Entry, FoldEntry, SessionHeaderEntry

from ._spans import Span, SpanReader

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_MOST_READERS = 10_000


class OpenTelemetry:
    """An observer: ``Agent(…, observers=[OpenTelemetry()])``.

    Spans go to the processors of ``tracer_provider``, by default the global one, or to an ``exporter`` of
    their own; metrics to ``meter_provider``, by default the global one. ``content`` adds what was said to the
    spans. Needs the extra ``otel``. Raises ``ConfigInvalid`` where no SDK is set up to take the spans.
    """

    def __init__(
        self,
        *,
        exporter: SpanExporter | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            words = "OpenTelemetry needs a package that is not installed: pip install 'turnlog[otel]'"
            raise AgentError("ConfigInvalid", words, cause=error) from error
        provider: Any = tracer_provider or trace.get_tracer_provider()
        self._own: SpanProcessor | None = None
        if exporter is not None:
            self._own = BatchSpanProcessor(exporter)
        processor: Any = self._own or getattr(provider, "_active_span_processor", None)
        if processor is None:
            raise AgentError(
                "ConfigInvalid",
                "no OpenTelemetry SDK takes spans here: call trace.set_tracer_provider(TracerProvider(…)) "
                "first, or pass exporter=…",
            )
        self._processor: SpanProcessor = processor
        self._sampler: Any = getattr(provider, "sampler", None) if exporter is None else None
        self._resource: Resource = getattr(provider, "resource", None) or Resource.create(
            {"service.name": "turnlog"}
        )
        self._content = content
        self._readers: dict[str, SpanReader] = {}
        self._meters = _Meters((meter_provider or metrics.get_meter_provider()).get_meter("turnlog"))

    def on_entry(self, entry: Entry) -> None:
        reader = self._readers.get(entry.session_id)
        if reader is None:
            reader = self._readers[entry.session_id] = SpanReader(
                content=self._content, under=self._parent(entry)
            )
            if len(self._readers) > _MOST_READERS:
                del self._readers[next(iter(self._readers))]
        if isinstance(entry, FoldEntry):
            self._meters.folds.add(1)
        for span in reader.step(entry):
            self._meters.count(span)
            self._send(span)

    def _parent(self, entry: Entry) -> Span | None:
        if not isinstance(entry, SessionHeaderEntry) or entry.payload.parent_session_id is None:
            return None
        parent = self._readers.get(entry.payload.parent_session_id)
        return None if parent is None else parent.tools.get(entry.payload.parent_tool_call_id or "")

    def _send(self, span: Span) -> None:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        trace_id = int(span.trace_id, 16)
        if self._sampler is not None:
            found = self._sampler.should_sample(None, trace_id, span.name)
            if not found.decision.is_sampled():
                return

        def context(trace: int, span_id: str) -> SpanContext:
            return SpanContext(trace, int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1))

        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context(trace_id, span.span_id),
                parent=context(trace_id, span.parent_id) if span.parent_id else None,
                resource=self._resource,
                attributes=span.attributes,
                events=[Event(each.name, each.attributes, each.time) for each in span.events],
                links=[Link(context(int(trace, 16), linked)) for trace, linked in span.links],
                kind=SpanKind.CLIENT if span.kind == "chat" else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=span.start,
                end_time=span.end,
                instrumentation_scope=InstrumentationScope("turnlog"),
            )
        )

    def flush(self) -> None:
        """Send what is waiting, and return when it is sent."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send what is waiting, and stop an exporter that was given here."""
        if self._own is not None:
            self._own.shutdown()
        else:
            self.flush()


class _Meters:
    """What is counted of spans."""

    def __init__(self, meter: Any) -> None:
        def seconds(name: str, what: str) -> Any:
            return meter.create_histogram(name, unit="s", description=what)

        self.operations = seconds("gen_ai.client.operation.duration", "Time of model calls, tools and runs")
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of model calls"
        )
        self.turns = meter.create_histogram(
            "turnlog.run.turns", unit="{call}", description="Model calls of a run"
        )
        self.tool_errors = meter.create_counter("turnlog.tool.errors", description="Tool calls that failed")
        self.retries = meter.create_counter("turnlog.model.retries", description="Model calls tried again")
        self.folds = meter.create_counter("turnlog.folds", description="Times a context was folded")
        self.cost = meter.create_counter("turnlog.cost", unit="USD", description="Cost of model calls")
        self.reuse = meter.create_histogram(
            "turnlog.cache.reuse",
            unit="1",
            description="Share of a call's input that the provider had cached",
        )
        self._calls: dict[str, int] = {}

    def count(self, span: Span) -> None:
        given = span.attributes
        names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.tool.name")
        labels: dict[str, Any] = {name: given[name] for name in (*names, "error.type") if name in given}
        self.operations.record((span.end - span.start) / 1e9, labels)
        match span.kind:
            case "chat":
                self._count_call(span, labels)
            case "execute_tool":
                if span.error is not None:
                    self.tool_errors.add(1, labels)
            case "invoke_agent":
                self.turns.record(self._calls.pop(span.span_id, 0), labels)

    def _count_call(self, span: Span, labels: dict[str, Any]) -> None:
        given: dict[str, Any] = dict(span.attributes)
        if span.parent_id is not None:
            self._calls[span.parent_id] = self._calls.get(span.parent_id, 0) + 1
        if "turnlog.call.retry_in_ms" in given:
            self.retries.add(1, labels)
        for kind in ("input", "output"):
            if (number := given.get(f"gen_ai.usage.{kind}_tokens")) is not None:
                self.tokens.record(number, {**labels, "gen_ai.token.type": kind})
        if (cost := given.get("turnlog.cost")) is not None:
            self.cost.add(cost, labels)
        cached, read = (
            given.get("gen_ai.usage.cache_read.input_tokens"),
            given.get("gen_ai.usage.input_tokens"),
        )
        if cached is not None and read:
            self.reuse.record(cached / read, labels)
