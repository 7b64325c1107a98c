"""A recorded session: its answers for an agent that has changed since, its log as a golden trace."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    Entry,
    Message,
    ModelCallFailedEntry,
    ModelOutputEntry,
    StreamDone,
    StreamStart,
    TextChunk,
    TextPart,
    ThinkingChunk,
    ThinkingPart,
    TokenUsage,
    ToolCallPart,
    decode,
    encode,
)
from turnlog.models import ScriptedModel, Turn


class RecordedModel(ScriptedModel):
    """Answers each call with what the model answered in a recorded session, in order, failures too.

    What the agent sends is not compared: that is what may have changed. ``requests`` has it. When the
    recording is used up the next call fails and says so, unless ``default`` or ``loop`` is given.
    """

    @classmethod
    def from_jsonl(cls, path: str | Path, **options: Any) -> RecordedModel:
        """The model of a session that ``turnlog export`` or ``export_jsonl`` wrote to ``path``."""
        lines = Path(path).read_bytes().splitlines()
        entries = [decode(line, Entry) for line in lines if line and not line.startswith(b'{"blob":')]
        turns: list[Turn | AgentError] = []
        for entry in entries:
            if isinstance(entry, ModelOutputEntry):
                output = entry.payload
                chunks = list(_chunks(output.message, output.invocation.model, output.finish_reason))
                turns.append(Turn(chunks=chunks))
            elif isinstance(entry, ModelCallFailedEntry):
                turns.append(AgentError.from_info(entry.payload.error))
        if not turns:
            raise AgentError(
                "ConfigInvalid", f"{path} holds no answer of a model; export a session that has some"
            )
        return cls(turns, **options)


def _chunks(message: Message, model: str, finish_reason: str) -> Iterator[Chunk]:
    yield StreamStart(model_id=model)
    for number, part in enumerate(message.parts):
        match part:
            case TextPart():
                yield TextChunk(text_delta=part.payload.text, provider_data=part.payload.provider_data)
            case ThinkingPart():
                yield ThinkingChunk(text_delta=part.payload.text, provider_data=part.payload.provider_data)
            case ToolCallPart():
                call, key = part.payload, str(number)
                yield CallStart(tool_call_id=key, tool_name=call.tool_name, provider_data=call.provider_data)
                yield CallArgs(tool_call_id=key, args_text_delta=call.raw_args_text)
                yield CallEnd(tool_call_id=key)
            case _:
                pass  # an assistant's message holds no other part
    if message.meta and message.meta.get("usage"):
        yield decode(encode(message.meta["usage"]), TokenUsage)
    yield StreamDone(finish_reason=finish_reason)


# Golden traces: a session's log as a file, which a scenario must write again to the byte

UPDATE = "TURNLOG_UPDATE_GOLDEN"
"""Set this variable to 1 to write the files anew, then read the diff before you commit it."""


def read_trace(path: str | Path) -> list[Entry]:
    """The entries of a golden file."""
    return [decode(line, Entry) for line in Path(path).read_bytes().splitlines() if line]


def check_trace(path: str | Path, entries: Sequence[Entry]) -> None:
    """Raise ``AssertionError`` with a diff unless ``entries`` are the file's, byte for byte."""
    path = Path(path)
    found = b"".join(encode(entry) + b"\n" for entry in entries)
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found)
        return
    if not path.exists():
        raise AgentError("ConfigInvalid", f"there is no golden trace {path}; run once with {UPDATE}=1")
    expected = path.read_bytes()
    if expected != found:
        diff = difflib.unified_diff(
            expected.decode().splitlines(), found.decode().splitlines(), str(path), "now", lineterm="", n=1
        )
        raise AssertionError(f"the trace differs from {path.name}:\n" + "\n".join(diff))
