from __future__ import annotations

from collections.abc import Sequence

from turnlog.contract import Message, MessagePart

from ._parts import PartBuilder


class MessageSnapshot:
    """The message as it was at one delta. Taking it is cheap; the text is joined when it is asked for.

    Calls whose end has not been seen are left out: nothing may take them for complete.
    """

    __slots__ = ("_builders", "_count", "_lengths", "_run_id")

    def __init__(
        self, run_id: str, builders: Sequence[PartBuilder], count: int, lengths: dict[int, int]
    ) -> None:
        self._run_id = run_id
        self._builders = builders
        self._count = count
        self._lengths = lengths

    @property
    def parts(self) -> list[MessagePart]:
        found: list[MessagePart] = []
        for index in range(self._count):
            builder = self._builders[index]
            length = self._lengths.get(index)
            if builder.kind == "tool_call" and length is not None:
                continue
            found.append(builder.build(length)[0])
        return found

    @property
    def text(self) -> str:
        return "".join(
            "".join(self._builders[index].fragments[: self._lengths.get(index)])
            for index in range(self._count)
            if self._builders[index].kind == "text"
        )

    def message(self, timestamp: str = "") -> Message:
        return Message(run_id=self._run_id, role="assistant", parts=self.parts, timestamp=timestamp)
