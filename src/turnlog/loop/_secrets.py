"""The secrets of an agent: gathered from what it is made of, and masked in an answer as it streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TypeAlias

import msgspec

from turnlog.contract import (
    Message,
    MessageDelta,
    Secrets,
    TextDelta,
    ThinkingDelta,
    ToolCallArgsDelta,
    is_guardable,
    owned_secrets,
)
from turnlog.history import refuse_calls
from turnlog.observe import get_logger

_replace = msgspec.structs.replace
_log = get_logger("loop")
_warned: set[str] = set()

_TextDelta: TypeAlias = TextDelta | ThinkingDelta | ToolCallArgsDelta


class Keyring:
    """What the owners' secrets are now: a key may be changed while its model is in use."""

    def __init__(self, owners: Iterable[object]) -> None:
        self._owners = tuple(owners)
        self._values: dict[str, str] = {}
        self._secrets = Secrets()
        self.secrets()

    def secrets(self) -> Secrets:
        values = {name: value for owner in self._owners for name, value in owned_secrets(owner).items()}
        if values != self._values:
            self._values, self._secrets = values, Secrets(values.values())
            for name, value in values.items():
                if value and not is_guardable(value) and name not in _warned:
                    _warned.add(name)
                    _log.warning(
                        "%s is too short or too plain to be told from ordinary words: where it occurs in a "
                        "conversation it is not masked; use a random value of at least 16 characters",
                        name,
                    )
        return self._secrets


class DeltaMask:
    """Masks secrets in the deltas of one answer, also where one is cut into several of them.

    A delta that ends in what may be the beginning of a secret waits for the next one. ``calls`` are those
    whose arguments held one: what is left of the arguments is not what the model asked for.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held: list[_TextDelta] = []
        self._text = ""
        self.calls: set[str] = set()

    async def mask(self, deltas: AsyncGenerator[MessageDelta, None]) -> AsyncGenerator[MessageDelta, None]:
        begins = self._secrets.begins.search
        try:
            async for delta in deltas:
                if type(delta) is TextDelta or type(delta) is ThinkingDelta:
                    text = delta.payload.text_delta
                elif type(delta) is ToolCallArgsDelta:
                    text = delta.payload.args_text_delta
                else:
                    for each in self._release():
                        yield each
                    yield delta
                    continue
                if not self._held and begins(text) is None:  # nearly all of them
                    yield delta
                    continue
                for each in self._take(delta, text):
                    yield each
            for each in self._release():
                yield each
        finally:
            await deltas.aclose()

    def _take(self, delta: _TextDelta, text: str) -> list[MessageDelta]:
        before = self._release() if self._held and _place(delta) != _place(self._held[0]) else []
        self._held.append(delta)
        self._text += text
        return before if self._secrets.is_cut(self._text) else [*before, *self._release()]

    def _release(self) -> list[MessageDelta]:
        held, text = self._held, self._text
        if not held:
            return []
        self._held, self._text = [], ""
        masked = self._secrets.scrub(text)
        if masked == text:
            return [*held]
        if isinstance(held[0], ToolCallArgsDelta):
            self.calls.add(held[0].payload.tool_call_id)
        return [_with_text(delta, "" if place else masked) for place, delta in enumerate(held)]

    def marked(self, message: Message) -> Message:
        """``message``, and which of its calls are not to be run."""
        return refuse_calls(message, sorted(self.calls))


def _place(delta: _TextDelta) -> str:
    return delta.payload.tool_call_id if isinstance(delta, ToolCallArgsDelta) else delta.kind


def _with_text(delta: _TextDelta, text: str) -> MessageDelta:
    if isinstance(delta, ToolCallArgsDelta):
        return _replace(delta, payload=_replace(delta.payload, args_text_delta=text))
    return _replace(delta, payload=_replace(delta.payload, text_delta=text))
