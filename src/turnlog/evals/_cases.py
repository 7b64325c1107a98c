"""Cases: what is asked and what must come of it, written by hand, in a file, or taken from a session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from turnlog.contract import (
    AgentError,
    JsonObject,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    Store,
    Value,
    digest,
    encode,
)
from turnlog.history import export_jsonl, visible_entries
from turnlog.loop import AnyInput, said_by

from ._checks import (
    Check,
    called,
    contains,
    equals,
    fits,
    judge,
    matches,
    name_of,
    not_called,
    similar,
)

ToolMode: TypeAlias = Literal["recorded", "live"]
_LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to try. ``input`` is what the agent is asked; a case from a session has ``log`` and ``entry``
    instead: the export of the session, and the entry with the question, whose past goes along with it.

    ``checks`` look at every attempt. ``reference`` is an answer that was good, for judges and people.
    ``tools`` is for cases with a log: ``recorded`` ends an attempt at a call that the log does not answer,
    ``live`` runs it.
    """

    name: str
    input: AnyInput | None = None
    checks: Sequence[Check] = ()
    reference: str | None = None
    log: Path | None = None
    entry: int | None = None
    tools: ToolMode = "recorded"
    deps: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        problem = None
        if not self.name or len(self.name) > _LONGEST_NAME or not self.name.isprintable():
            problem = f"is no name; it takes 1 to {_LONGEST_NAME} printable characters"
        elif (self.input is None) == (self.log is None):
            problem = "needs an input or a log, and not both"
        elif (self.log is None) != (self.entry is None):
            problem = "has a log without an entry, or an entry without a log"
        elif self.tools not in ("recorded", "live"):
            problem = f"has tools={self.tools!r}; it may be 'recorded' or 'live'"
        elif wrong := [check for check in self.checks if not callable(check)]:
            problem = f"has a check that is no function: {wrong[0]!r}"
        if problem is not None:
            raise AgentError("ConfigInvalid", f"case {self.name!r} {problem}")

    @property
    def data(self) -> bytes:
        """The export that ``log`` names."""
        assert self.log is not None
        try:
            return self.log.read_bytes()
        except OSError as error:
            raise AgentError(
                "ConfigInvalid", f"case {self.name!r}: cannot read {self.log}: {error.strerror}"
            ) from error

    @property
    def mark(self) -> str:
        """Changes when the case does."""
        asked = encode(said_by(self.input).message.parts) if self.input is not None else self.data
        told = [self.name, self.entry, self.tools, [name_of(check) for check in self.checks]]
        return digest(asked + msgspec.json.encode(told))


# ── files ──


class _Line(Value, frozen=True, kw_only=True):
    """A line of a file of cases."""

    name: str | None = None
    input: str | None = None
    checks: list[dict[str, Any]] = []
    reference: str | None = None
    log: str | None = None
    entry: int | None = None
    tools: ToolMode = "recorded"


def _contains(found: str | list[str]) -> Check:
    return contains(*([found] if isinstance(found, str) else found))


_CHECKS: dict[str, Any] = {
    "equals": equals,
    "contains": _contains,
    "matches": matches,
    "similar": similar,
    "fits": fits,
    "called": called,
    "notCalled": not_called,
    "judge": judge,
}
_OPTIONS = {"atLeast": "at_least", "arguments": "arguments", "times": "times", "model": "model"}


def read_cases(path: str | Path) -> list[Case]:
    """The cases of a file of JSON lines. Raises ``ConfigInvalid``, with the line, for one that is wrong."""
    file = Path(path)
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError("ConfigInvalid", f"cannot read {file}: {error}") from error
    found: list[Case] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = msgspec.json.decode(line.encode(), type=_Line)
            log = None if given.log is None else file.parent / given.log
            found.append(
                Case(
                    name=given.name or f"line {number}",
                    input=given.input,
                    checks=[_read_check(each) for each in given.checks],
                    reference=given.reference,
                    log=log,
                    entry=given.entry,
                    tools=given.tools,
                )
            )
        except (msgspec.DecodeError, AgentError, TypeError, ValueError, re.error) as error:
            raise AgentError("ConfigInvalid", f"{file}, line {number}: {error}") from error
    if not found:
        raise AgentError(
            "ConfigInvalid", f"{file} has no case; write one as a line of JSON with input and checks"
        )
    return found


def _read_check(given: dict[str, Any]) -> Check:
    kinds = [key for key in given if key in _CHECKS]
    unknown = [key for key in given if key not in _CHECKS and key not in _OPTIONS]
    if len(kinds) != 1 or unknown:
        raise ValueError(
            f"a check names one of {', '.join(_CHECKS)}, found {', '.join(map(repr, given)) or 'nothing'}"
        )
    options = {_OPTIONS[key]: value for key, value in given.items() if key in _OPTIONS}
    return cast("Check", _CHECKS[kinds[0]](given[kinds[0]], **options))


async def add_case(
    path: str | Path, store: Store, session_id: str, *, entry: int | None = None, name: str | None = None
) -> Case:
    """Make a run of a session a case: its log is exported into a folder beside the file, and a line is added
    that asks for the same tool calls and keeps the answer as reference. ``entry`` is the question, by default
    the last one."""
    file = Path(path)
    entries = visible_entries(await store.load(session_id))
    asked = [
        each
        for each in entries
        if isinstance(each, ModelInputEntry) and each.payload.source == "user" and entry in (None, each.seq)
    ]
    if not asked:
        where = "has no question" if entry is None else f"has no question at entry {entry}"
        raise AgentError("ConfigInvalid", f"session {session_id} {where}; turnlog show lists its entries")
    question = asked[-1]
    later = [each for each in entries if each.seq > question.seq]
    end = next((each.seq for each in later if isinstance(each, RunEndedEntry)), None)
    outputs = [
        each for each in later if isinstance(each, ModelOutputEntry) and (end is None or each.seq < end)
    ]
    calls = [part.payload.tool_name for output in outputs for part in output.payload.message.tool_calls]
    reference = outputs[-1].payload.message.text if outputs else None
    known = await asyncio.to_thread(_names, file)
    stem = name or session_id
    name = (
        stem if stem not in known else next(n for i in range(2, 10**6) if (n := f"{stem} {i}") not in known)
    )
    log = Path(f"{file.stem}.logs") / f"{digest(encode([session_id, question.seq, name]))[-16:]}.jsonl"
    line = {
        "name": name,
        "log": log.as_posix(),
        "entry": question.seq,
        "reference": reference,
        "checks": [{"called": tool} for tool in dict.fromkeys(calls)],
    }
    data = await export_jsonl(store, session_id)
    await asyncio.to_thread(_write, file, file.parent / log, data, line)
    return read_cases(file)[-1]


def _names(file: Path) -> set[str]:
    return {each.name for each in read_cases(file)} if file.exists() else set()


def _write(file: Path, log: Path, data: bytes, line: JsonObject) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(data)
    log.chmod(0o600)
    with file.open("ab") as out:
        if out.tell():
            with file.open("rb") as before:
                before.seek(-1, 2)
                if before.read(1) != b"\n":
                    out.write(b"\n")
        out.write(msgspec.json.encode(line) + b"\n")
