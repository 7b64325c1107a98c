"""What goes into a run, what bounds it, what comes out of it, the states it goes through, and the tools it
is offered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast, get_args

from msgspec import UNSET, UnsetType, ValidationError, convert, field

from ._base import JsonObject, Value
from .errors import AgentError, ErrorInfo
from .messages import Message, TextPart

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
from typing import Any

from msgspec.structs import force_setattr

from ._base import FILLED_IN, thaw
from .messages import ToolCall

OutcomeUnknownPolicy: TypeAlias = Literal["model", "human"]

OutputMode: TypeAlias = Literal["schema", "tool", "text"]
"""How a run gets its structured output: the provider holds the answer to the schema, the model calls a tool
with it, or it is asked in words."""


class ToolPolicy(Value, frozen=True, kw_only=True):
    """Which tools a run may use and how. Absent fields mean no restriction.

    ``max_parallel`` bounds the calls that run at once; only those of tools that are ``concurrent`` ever do.
    ``outcome_unknown`` names who decides on a call that started before a crash and left no result.
    """

    enabled: bool = True
    allow_list: list[str] | None = None
    max_parallel: int = 8
    max_calls_per_run: int | None = None
    require_approval_by_default: bool = False
    outcome_unknown: OutcomeUnknownPolicy = "model"


class LoopLimits(Value, frozen=True, kw_only=True):
    """Bounds of one run. Reaching one ends the run with a named error and a well-formed history.

    ``max_iterations`` counts model calls, ``max_tool_rounds`` answers whose calls are run; there is always
    room for the answer to the last of these. ``max_cost`` is in US dollars; a run whose cost is not known
    ends before its second call. When one call fails again and again in the same way, the model is told so
    after ``warn_repeated_failures`` of them (0: never), and the run ends as ``RunStalled`` after
    ``max_repeated_failures`` (None: never). An answer that does not fit the output type is corrected by the
    model at most ``max_corrections`` times. The conversation is handed over at most ``max_handoffs`` times in
    a run.
    """

    max_iterations: int = 100
    max_tool_rounds: int | None = None
    max_run_duration_ms: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_repeated_failures: int | None = 5
    warn_repeated_failures: int = 3
    max_corrections: int = 3
    max_handoffs: int = 10


Limits: TypeAlias = LoopLimits
"""The same, under the short name that users give it."""


class RetryPolicy(Value, frozen=True, kw_only=True):
    """How often and how patiently a failed model call is tried again.

    A provider that asks for a longer wait than ``max_retry_after_ms`` is not asked again.
    """

    max_attempts: int = 4
    base_delay_ms: int = 500
    max_delay_ms: int = 30_000
    max_retry_after_ms: int = 120_000
    jitter: float = 0.25


class Rerun(Value, frozen=True, kw_only=True):
    """What a run in a branch changes of the run that it repeats: its session, the entry, and one thing.
    ``tools`` is what happens to calls that the recording does not answer: ``recorded`` ends the run there,
    ``ask`` asks, ``live`` runs them. A run with one needs no input: it answers what the branch ends with."""

    source: str
    at: int
    tools: Literal["recorded", "ask", "live"] = "recorded"
    model: str | None = None
    instructions: str | None = None
    text: str | None = None
    result: str | None = None
    arguments: JsonObject | None = None


class RunInput(Value, frozen=True, kw_only=True):
    """Everything one run needs, prepared by the agent. The loop sees this and never the configuration.

    An id that is not given is made when the run starts.
    """

    session_id: str = ""
    run_id: str = ""
    input_messages: list[Message] = []
    system_prompt_override: str | None = None
    allowed_tools: list[str] | None = None
    tool_order: list[str] | None = None
    tool_policy: ToolPolicy = ToolPolicy()
    loop_limits: LoopLimits = LoopLimits()
    retry: RetryPolicy = RetryPolicy()
    tool_choice: ToolChoice | None = None
    auto_create_session: bool = True
    runtime_init_data: JsonObject | None = None
    runtime_hints: JsonObject | None = None
    model_params: JsonObject | None = None
    agent_name: str | None = None
    output_schema: JsonObject | None = None
    output_mode: OutputMode | None = None
    output_field: str | None = None
    title: str | None = None
    session_metadata: JsonObject | None = None
    trace_id: str | None = None
    role: str | None = None
    parent_session_id: str | None = None
    parent_tool_call_id: str | None = None
    invocation_state: JsonObject | None = None
    system_prompt_content: list[TextPart] | None = None
    rerun: Rerun | None = None


class RunResult(Value, Generic[T], frozen=True, kw_only=True):
    """What came of a run. ``output_value`` is the structured output where one was asked for, or what a tool
    returned that ended the run; read it as ``output``, which is never the absence of one. Read
    back from a log it is plain JSON. ``agent_name`` is the agent that spoke last."""

    session_id: str
    run_id: str
    status: Literal["completed", "failed", "aborted", "awaiting_human", "paused"]
    final_assistant_message: Message | None = None
    last_error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    agent_name: str | None = None
    output_value: T | UnsetType = field(default=UNSET, name="output")

    @property
    def text(self) -> str:
        """The final answer's text. Raises ``AgentError`` when the run did not complete."""
        self.check()
        return self.final_assistant_message.text if self.final_assistant_message else ""

    @property
    def output(self) -> T:
        """The structured output; of a run without an output type, its text. Raises ``AgentError`` when the
        run did not complete."""
        self.check()
        return cast("T", self.text if self.output_value is UNSET else self.output_value)

    def check(self) -> None:
        """Raises the run's own error, or one that says what to do, unless the run completed."""
        if self.status == "completed":
            return
        code, message, retryable, meta = "IllegalTransition", _NO_ANSWER[self.status], None, None
        if self.last_error is not None:
            known = AgentError.from_info(self.last_error)
            code, retryable, meta = known.code, known.retryable, known.meta
            message = f"{known.message} (this ended the run)"
        elif self.status == "aborted":
            code = "RunAborted"
        where = f"run {self.run_id} in session {self.session_id}"
        raise AgentError(code, f"{where}: {message}", retryable=retryable, meta=meta, result=self)


_NO_ANSWER = {
    "failed": "it failed and left no error; read its log",
    "aborted": "it was aborted and has no answer; start another run",
    "awaiting_human": "it has no answer yet: a person must decide or answer a call first, then resume it",
    "paused": "it was paused and has no answer yet: resume it",
}


class ModelInvocationDescriptor(Value, frozen=True, kw_only=True):
    """Who answered: provider (``openai``), protocol (``openai-chat``), model."""

    provider_id: str
    specification: str
    model: str


class RequestMetadata(Value, frozen=True, kw_only=True):
    """Where a model call comes from; reaches the adapter, never the provider's prompt."""

    session_id: str
    run_id: str
    model_call_index: int = 1
    attempt: int = 1
    trace_id: str | None = None
    role: str | None = None


RunStatus: TypeAlias = Literal[
    "idle",
    "preparing",
    "model_running",
    "tool_running",
    "awaiting_human",
    "paused",
    "completed",
    "failed",
    "aborted",
]

STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)

TRANSITIONS: dict[tuple[RunStatus, RunStatus], str] = {
    ("idle", "preparing"): "a run starts",
    ("idle", "awaiting_human"): "a run that waits for a decision is resumed",
    ("preparing", "model_running"): "the context is built",
    ("preparing", "tool_running"): "a resumed run has calls left to run",
    ("preparing", "awaiting_human"): "a resumed run waits for a decision",
    ("preparing", "completed"): "a resumed run owes nothing more",
    ("preparing", "failed"): "an error ends the run",
    ("preparing", "aborted"): "the run is aborted",
    ("model_running", "completed"): "the answer holds no call",
    ("model_running", "tool_running"): "the answer holds calls",
    ("model_running", "failed"): "an error ends the run",
    ("model_running", "aborted"): "the run is aborted",
    ("tool_running", "model_running"): "all results are appended",
    ("tool_running", "awaiting_human"): "a call needs approval",
    ("tool_running", "completed"): "a tool gave the final output",
    ("tool_running", "failed"): "an error ends the run",
    ("tool_running", "aborted"): "the run is aborted",
    ("preparing", "paused"): "the run is paused",
    ("model_running", "paused"): "the run is paused",
    ("tool_running", "paused"): "the run is paused",
    ("awaiting_human", "paused"): "the run is paused",
    ("paused", "preparing"): "a paused run is resumed",
    ("paused", "awaiting_human"): "a paused run that waits for a decision is resumed",
    ("paused", "failed"): "an error ends the run",
    ("paused", "aborted"): "the run is aborted",
    ("awaiting_human", "tool_running"): "decided, with calls left to run",
    ("awaiting_human", "model_running"): "denied, with no call left",
    ("awaiting_human", "failed"): "an error ends the run",
    ("awaiting_human", "aborted"): "the run is aborted",
    ("completed", "preparing"): "the next run starts",
    ("failed", "preparing"): "the next run starts",
    ("aborted", "preparing"): "the next run starts",
}
"""(from, to) → what makes it happen. A pair that is not here is a bug that fails loudly."""


def check_transition(current: RunStatus, following: RunStatus) -> None:
    if (current, following) not in TRANSITIONS:
        raise AgentError(
            "IllegalTransition",
            f"a run cannot go from {current} to {following}; this is a bug in the loop, please report it",
            meta={"from": current, "to": following},
        )


# ── tools in a run: specifications, and typed views of calls, results and usage ──

ToolStatus: TypeAlias = Literal["success", "failed", "skipped", "denied", "unknown"]

RECALL = "recall"
"""Name of the built-in tool that brings back what was folded: ``entry`` by its number, ``query`` by words."""

READ_ARTIFACT = "read_artifact"
"""Name of the built-in tool that reads an output that was kept apart."""


FINAL_ANSWER = "final_answer"
"""Name of the tool that a model gives its structured output with, where its provider takes no schema."""


class ToolSpec(Value, frozen=True, kw_only=True):
    """What a model is told of a tool. Never carries anything needed to run it."""

    name: str
    description: str = FILLED_IN
    parameter_schema: JsonObject
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.description is FILLED_IN:
            force_setattr(self, "description", "")


class SpecificTool(Value, frozen=True, kw_only=True):
    name: str


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | SpecificTool
"""How free the model is: ``auto``, ``required`` (some tool), ``none``, or one named tool."""


class ToolCallRequest(Value, frozen=True, kw_only=True):
    """A call as code that runs it sees it."""

    tool_name: str
    tool_call_id: str
    raw_arguments: str
    arguments: JsonObject | None = None
    parse_error: str | None = None
    parse_warning: str | None = None


class ToolCallResult(Value, frozen=True, kw_only=True):
    """What came of a call. ``result`` is the ordered sections of its live grain."""

    tool_name: str
    tool_call_id: str
    status: ToolStatus
    result: list[tuple[str, str]]
    elapsed: float | None = None


class TokenUsage(Value, frozen=True, kw_only=True):
    """Cumulative counts of one model call, or sums over several. ``cost`` is in US dollars, when known.

    ``input_tokens`` counts all input, cached or not; ``cached_input_tokens`` and ``cache_write_tokens``
    are shares of it.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None

    @classmethod
    def read(cls, found: object) -> TokenUsage | None:
        """The usage that an assembled answer carries in its meta; None where it has none that can be read."""
        if found is None or isinstance(found, TokenUsage):
            return found
        try:
            return convert(found, cls)
        except ValidationError:
            return None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=_sum(self.cached_input_tokens, other.cached_input_tokens),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens=_sum(self.reasoning_tokens, other.reasoning_tokens),
            cost=_sum(self.cost, other.cost),
        )


def _sum(left: Any, right: Any) -> Any:
    if left is None:
        return right
    return left if right is None else left + right


def request_of(call: ToolCall, parse_error: str | None = None) -> ToolCallRequest:
    """The typed view of a recorded call. Its arguments are a copy, which a tool may change."""
    return ToolCallRequest(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        raw_arguments=call.raw_args_text,
        arguments=thaw(call.arguments),
        parse_error=parse_error or ("the arguments did not parse" if call.arguments is None else None),
    )
