"""A recorded session: its answers for an agent that has changed since, its log as a golden trace."""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from turnlog.contract import (
    AgentError,
    Chunk,
    Entry,
    JsonObject,
    ModelCallFailedEntry,
    ModelOutputEntry,
    Store,
    decode,
    encode,
)
from turnlog.history import MemoryStore, import_jsonl
from turnlog.models import ModelRequest, ScriptedModel, Turn

from ._recording import RecordedCall, Recording, calls_in, chunks_of, describe_request, difference


class RecordedModel(ScriptedModel):
    """Answers each call with what a model answered in a recorded session, failures too.

    :meth:`from_log` compares what the agent sends with what was sent then, and fails as ``ReplayMismatch``,
    with the difference, when it changed. :meth:`from_jsonl` does not compare.
    """

    _load: Callable[[], Awaitable[list[RecordedCall]]] | None = None
    _name = ""

    @classmethod
    def from_log(
        cls, source: str | Path | Store, session: str | None = None, **options: Any
    ) -> RecordedModel:
        """The model of a recording: a file that ``turnlog export`` or :class:`RecordingModel` wrote, or
        ``session`` of a store. A request that was made is answered as it was, in whichever order they come.
        """
        if not isinstance(source, str | Path):
            if session is None:
                raise AgentError("ConfigInvalid", "name the session of the store: from_log(store, session)")
            model, store, name = cls(**options), source, session

            async def load() -> list[RecordedCall]:
                return calls_in(await store.load(name))

            model._load, model._name = load, f"session {name}"
            return model
        data = _read(Path(source))
        if data.startswith(b'{"turnlog":'):
            first, *lines = data.splitlines()
            head = decode(first, Recording)
            known: dict[str, Any] = {
                "model_id": head.model,
                "features": head.features,
                "context_window": head.context_window,
            }
            model, calls = cls(**{**known, **options}), [decode(line, RecordedCall) for line in lines]

            async def load_calls() -> list[RecordedCall]:
                return calls

            model._load = load_calls
        else:
            model = cls(**options)

            async def load_export() -> list[RecordedCall]:
                store = MemoryStore()
                return calls_in(await store.load(await import_jsonl(store, data, trust=True)))

            model._load = load_export
        model._name = Path(source).name
        return model

    @classmethod
    def from_jsonl(cls, path: str | Path, **options: Any) -> RecordedModel:
        """The model of a session that ``turnlog export`` or ``export_jsonl`` wrote to ``path``, in order,
        whatever it is asked; ``requests`` has what that was. When the recording is used up the next call
        fails and says so, unless ``default`` or ``loop`` is given."""
        lines = _read(Path(path)).splitlines()
        entries = [decode(line, Entry) for line in lines if line and not line.startswith(b'{"blob":')]
        turns: list[Turn | AgentError] = []
        for entry in entries:
            if isinstance(entry, ModelOutputEntry):
                output = entry.payload
                chunks = list(chunks_of(output.message, output.invocation.model, output.finish_reason))
                turns.append(Turn(chunks=chunks))
            elif isinstance(entry, ModelCallFailedEntry):
                turns.append(AgentError.from_info(entry.payload.error))
        if not turns:
            raise AgentError(
                "ConfigInvalid", f"{path} holds no answer of a model; export a session that has some"
            )
        return cls(turns, **options)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.mismatches: list[str] = []
        """Of every request that was not in the recording: what changed."""
        self._left: list[RecordedCall] | None = None

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        if self._load is None:
            async for chunk in super()._stream(request):
                yield chunk
            return
        self.requests.append(request)
        if self._left is None:
            self._left = list(await self._load())
        call = self._take(self._left, describe_request(request, self.get_config()))
        for chunk in call.chunks(request.config.model_id):
            yield chunk

    def _take(self, left: list[RecordedCall], asked: JsonObject) -> RecordedCall:
        for place, call in enumerate(left):
            if call.request == asked:
                return left.pop(place)
        number = len(self.requests)
        if not left:
            words = f"{self._name} has no request {number}: all that it holds were made; record it again"
        else:
            near = max(left[:_NEAREST], key=lambda call: _likeness(call.request, asked))
            words = (
                f"request {number} is not in {self._name}; if the change is meant, record it again\n"
                f"{difference(near.request, asked, self._name)}"
            )
        self.mismatches.append(words)
        raise AgentError("ReplayMismatch", words)


_NEAREST = 20
"""How many recorded requests are looked at for the one that is meant."""


def _likeness(recorded: JsonObject, now: JsonObject) -> float:
    texts = encode(recorded).decode(), encode(now).decode()
    return difflib.SequenceMatcher(None, *(text.split(",") for text in texts), autojunk=False).ratio()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot read the recording {path}: {error.strerror}") from error


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
