"""What ``check_model`` asks an adapter's author to act out, as data."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from turnlog.contract import AgentError
from turnlog.models import Model, ScriptedCall, Turn

Ending: TypeAlias = Literal["stop", "tool_calls", "length", "cut", "hang", "error"]


@dataclass(frozen=True, slots=True)
class CaseCall:
    """A tool call the provider makes. ``args_text`` goes out to the letter, parsable or not."""

    name: str
    args_text: str
    id: str


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One answer for the provider to give: ``thinking``, then ``text``, then ``calls``, then ``ending``.

    Text and arguments go out in several pieces wherever the protocol has pieces. ``cut`` means that the
    source ends without the protocol's end mark, a last call in the middle of its arguments; ``hang`` that
    it stays open and silent after the text; ``error`` that it refuses the request so that ``error_code``
    is what an adapter should make of it (with ``retry_after`` in the protocol's way of saying so).
    """

    name: str
    about: str
    text: str = ""
    thinking: str = ""
    calls: tuple[CaseCall, ...] = ()
    ending: Ending = "stop"
    error_code: str = ""
    retry_after: float | None = None
    required: bool = False

    def as_turn(self) -> Turn:
        """The same for a scripted model, as an example of how to play a case. ``hang`` is not in it."""
        error = None
        if self.ending == "error":
            meta = None if self.retry_after is None else {"retry_after": self.retry_after}
            error = AgentError(self.error_code, self.about, meta=meta)
        return Turn(
            text=self.text or None,
            thinking=self.thinking or None,
            tool_calls=[ScriptedCall(name=c.name, raw_args=c.args_text, id=c.id) for c in self.calls],
            cut=self.ending == "cut",
            error=error,
            finish_reason=self.ending if self.ending in ("stop", "tool_calls", "length") else None,
        )


TEXT = "The sum of one and two is three."
_ADD = CaseCall("add", '{"a": 1, "b": 2}', "provider_call_1")

CASES: tuple[ModelCase, ...] = (
    ModelCase("text", "answers with text in more than one piece", text=TEXT, required=True),
    ModelCase("thinking", "thinks first, then answers", text=TEXT, thinking="One and two. Easy."),
    ModelCase("tool_call", "calls add", calls=(_ADD,), ending="tool_calls", required=True),
    ModelCase(
        "text_and_call", "says something, then calls add", text=TEXT, calls=(_ADD,), ending="tool_calls"
    ),
    ModelCase(
        "parallel_calls",
        "calls add twice in one answer",
        calls=(_ADD, CaseCall("add", '{"a": 3, "b": 4}', "provider_call_2")),
        ending="tool_calls",
    ),
    ModelCase(
        "same_id",
        "makes two different calls under one id",
        calls=(_ADD, CaseCall("add", '{"a": 3, "b": 4}', "provider_call_1")),
        ending="tool_calls",
    ),
    ModelCase(
        "bad_arguments",
        "calls add with arguments that are not JSON, and ends as if all were well",
        calls=(CaseCall("add", '{"a": 1, "b": two', "provider_call_1"),),
        ending="tool_calls",
    ),
    ModelCase(
        "no_arguments",
        "calls a tool that takes nothing",
        calls=(CaseCall("now", "{}", "provider_call_1"),),
        ending="tool_calls",
    ),
    ModelCase("length", "stops at the length limit", text=TEXT, ending="length"),
    ModelCase("length_call", "stops at the length limit inside a call", calls=(_ADD,), ending="length"),
    ModelCase("cut", "stops in the middle of its text", text=TEXT, ending="cut", required=True),
    ModelCase("cut_call", "stops in the middle of a call", calls=(_ADD,), ending="cut"),
    ModelCase("hang", "says something and then nothing more", text=TEXT, ending="hang", required=True),
    ModelCase(
        "rate_limited",
        "refuses: too many requests, try again in 7 seconds",
        ending="error",
        error_code="ModelRateLimited",
        retry_after=7,
    ),
    ModelCase("overloaded", "refuses: overloaded", ending="error", error_code="ModelOverloaded"),
    ModelCase("server_error", "refuses: internal error", ending="error", error_code="ModelServerError"),
    ModelCase("auth_error", "refuses: the key is wrong", ending="error", error_code="ModelAuthError"),
    ModelCase("not_found", "refuses: no such model", ending="error", error_code="ModelNotFound"),
    ModelCase(
        "overflow", "refuses: the prompt is too long", ending="error", error_code="ModelContextOverflow"
    ),
    ModelCase("bad_request", "refuses: a field is wrong", ending="error", error_code="ModelBadRequest"),
)


@dataclass(frozen=True, slots=True)
class Wired:
    """A model and a way to see what became of its source.

    ``closed`` returns once the source is closed: a server that waits for its client to hang up, say.
    ``finish`` is called when the check is over. ``sent`` gives the bodies of all requests so far, JSON in
    bytes or as values, so that the kit can look at them.
    """

    model: Model
    closed: Callable[[], Awaitable[object]] | None = None
    finish: Callable[[], Awaitable[object]] | None = None
    sent: Callable[[], Sequence[bytes | object]] | None = None


MakeModel: TypeAlias = Callable[[ModelCase], "Model | Wired | Awaitable[Model | Wired | None] | None"]
"""Makes the model that plays a case, every time it is asked; None where the protocol has no such case."""


@dataclass(slots=True)
class ModelReport:
    """What was checked. ``skipped`` says why something could not be."""

    passed: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} checks passed"]
        lines += [f"skipped {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


async def build(make_model: MakeModel, case: ModelCase) -> Wired | None:
    made = make_model(case)
    if inspect.isawaitable(made):
        made = await made
    if made is None or isinstance(made, Wired):
        return made
    if not isinstance(made, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AssertionError(f"make_model gave a {type(made).__name__} for {case.name!r}, not a Model")
    return Wired(made)
