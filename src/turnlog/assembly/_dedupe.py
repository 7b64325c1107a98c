from __future__ import annotations

from turnlog.contract import MessageDelta, StartDelta


class DeltaFilter:
    """Drops what a reconnect or a replay delivers again, by (run, model call, attempt, seq)."""

    __slots__ = ("_last", "_stream")

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], int] = {}
        self._stream: tuple[str, int, int] | None = None

    def accept(
        self, delta: MessageDelta, *, model_call_index: int | None = None, attempt: int | None = None
    ) -> bool:
        """True the first time a delta is seen. Its place comes from ``start`` unless it is given."""
        if model_call_index is not None:
            self._stream = (delta.run_id, model_call_index, attempt or 1)
        elif isinstance(delta, StartDelta):
            self._stream = (delta.run_id, delta.payload.model_call_index or 1, delta.payload.attempt or 1)
        stream = self._stream or (delta.run_id, 1, 1)
        if delta.seq <= self._last.get(stream, 0):
            return False
        self._last[stream] = delta.seq
        return True
