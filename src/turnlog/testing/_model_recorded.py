"""The answers of a session that was, for an agent that has changed since."""

from __future__ import annotations

from collections.abc import Iterator
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
