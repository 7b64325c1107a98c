"""Content blocks while they stream, and what is read out of the API's loose JSON."""

from __future__ import annotations

from turnlog.contract import JsonObject, TokenUsage

from .._answer import Block, BlockKind
from .._loose import as_count, as_object, as_text

ORIGIN = "anthropic"
"""The family that reads back what this adapter puts into ``providerData``."""

KINDS: dict[str, BlockKind] = {"text": "text", "thinking": "thinking", "tool_use": "call"}
"""Blocks that have a part of ours; all others travel verbatim."""

_KNOWN_CALL = frozenset({"type", "id", "name", "input", "caller"})
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class MessageBlock(Block):
    __slots__ = ("_grown",)

    def __init__(self, kind: BlockKind, raw: JsonObject) -> None:
        super().__init__(kind, raw)
        self._grown: dict[str, list[str]] = {}
        if kind == "thinking":
            self.signature.append(as_text(raw.get("signature")))
        elif kind == "text":
            self.citations += raw.get("citations") or ()

    def grow(self, delta: JsonObject) -> None:
        """Add a delta of a kind we do not know: text is appended, anything else replaced."""
        raw = self.raw
        for key, value in delta.items():
            if key == "type" or value is None:
                continue
            if isinstance(value, str):
                self._grown.setdefault(key, [as_text(raw.get(key))]).append(value)
            elif key == "citation":
                raw["citations"] = [*(raw.get("citations") or ()), value]
            else:
                raw[key] = value

    def whole(self) -> JsonObject:
        """The block with all that came after its start."""
        return {**self.raw, **{key: "".join(pieces) for key, pieces in self._grown.items()}}


def call_data(raw: JsonObject) -> JsonObject:
    """What a call must carry back. A call that the model made itself needs no ``caller``."""
    data: JsonObject = {"origin": ORIGIN}
    if raw.get("id"):
        data["id"] = raw["id"]
    caller = as_object(raw.get("caller"))
    if caller and caller.get("type") != "direct":
        data["caller"] = caller
    further = {key: value for key, value in raw.items() if key not in _KNOWN_CALL and value is not None}
    return {**data, "block": further} if further else data


def usage_of(counts: JsonObject) -> TokenUsage:
    """Our counts of Anthropic's, which leave cached input out of ``input_tokens``."""
    fresh, output, read, written = (as_count(counts.get(name)) for name in _COUNTS)
    total_input = (fresh or 0) + (read or 0) + (written or 0)
    return TokenUsage(
        input_tokens=total_input,
        output_tokens=output or 0,
        total_tokens=total_input + (output or 0),
        cached_input_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=as_count(as_object(counts.get("output_tokens_details")).get("thinking_tokens")),
    )
