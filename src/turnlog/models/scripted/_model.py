"""The scripted model: a real ``Model`` whose answers were written before."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from turnlog.contract import (
    AgentError,
    Clock,
    Feature,
    IdSource,
    StreamDone,
    StreamStart,
    TokenUsage,
    encode,
)

from .._base import Chunk, ErrorMapper, Model
from .._config import ModelInfo, ModelRequest
from ._turn import ORIGIN, Turn

_CHARS_PER_TOKEN = 4

ScriptItem: TypeAlias = (
    str
    | Turn
    | AgentError
    | Callable[[ModelRequest], "str | Turn | AgentError | Awaitable[str | Turn | AgentError]"]
)
"""An answer's text, a whole :class:`Turn`, an error to raise, or what makes one of these of the request."""


class ScriptedModel(Model):
    """Answers with ``turns``, one for each call, in order.

    ``requests`` holds what it was asked. When the script is used up, ``loop`` starts over, ``default``
    answers from then on, and without either the call fails and says so.
    """

    provider_id: ClassVar[str] = ORIGIN
    specification: ClassVar[str] = ORIGIN
    features: ClassVar[frozenset[Feature]] = frozenset(
        {"text", "tools", "forced_tool", "thinking", "images", "files", "output_schema"}
    )

    def __init__(
        self,
        turns: ScriptItem | Iterable[ScriptItem] = (),
        *,
        model_id: str = "scripted",
        loop: bool = False,
        default: ScriptItem | None = None,
        context_window: int | None = None,
        features: Iterable[Feature] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        error_mapper: ErrorMapper | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(None, clock=clock, ids=ids, error_mapper=error_mapper, model_id=model_id, **fields)
        single = isinstance(turns, str | Turn | AgentError) or callable(turns)
        self._turns: list[ScriptItem] = [turns] if single else list(turns)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        self._loop = loop
        self._default = default
        self._context_window = context_window
        self._given = self.features if features is None else frozenset(features)
        self.requests: list[ModelRequest] = []
        """Every request so far, the newest last."""

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self.requests)

    def model_info(self) -> ModelInfo:
        return ModelInfo(
            provider_id=self.provider_id,
            specification=self.specification,
            model_id=self._config.model_id,
            context_window=self._context_window,
            features=self._given,
        )

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        number = len(self.requests)
        turn = await self._resolve(self._next(number), request)
        if turn.chunks is not None:
            for chunk in turn.chunks:
                await self._pause(turn)
                yield chunk
            return
        yield StreamStart(model_id=request.config.model_id, request_id=f"scripted-{number}")
        failure = turn.error
        length = 0
        for sent, chunk in enumerate(turn.content(number)):
            if failure is not None and sent >= failure.after:
                raise failure.build()
            await self._pause(turn)
            length += len(getattr(chunk, "text_delta", "") or getattr(chunk, "args_text_delta", ""))
            yield chunk
        if failure is not None:
            raise failure.build()
        if turn.cut:
            return
        await self._pause(turn)
        yield turn.usage or _estimate(request, length)
        yield StreamDone(finish_reason=turn.finish_reason or ("tool_calls" if turn.calls else "stop"))

    def _next(self, number: int) -> ScriptItem:
        if number <= len(self._turns):
            return self._turns[number - 1]
        if self._loop and self._turns:
            return self._turns[(number - 1) % len(self._turns)]
        if self._default is not None:
            return self._default
        raise AgentError(
            "ModelBadRequest",
            f"{self._config.model_id}: the script has {len(self._turns)} turn(s) and this is call {number}; "
            "add a turn, or pass loop=True or default=",
        )

    async def _resolve(self, item: ScriptItem, request: ModelRequest) -> Turn:
        if callable(item):
            made = item(request)
            item = await made if inspect.isawaitable(made) else made
        match item:
            case str():
                return Turn(text=item)
            case Turn():
                return item
            case AgentError():
                raise item
            case _:
                raise AgentError(
                    "ConfigInvalid",
                    "a scripted turn is text, a Turn, an AgentError or a function that returns one of these, "
                    f"not a {type(item).__name__}",
                )

    async def _pause(self, turn: Turn) -> None:
        if turn.delay > 0:
            await self._clock.sleep(turn.delay)


def _estimate(request: ModelRequest, output_chars: int) -> TokenUsage:
    """Four characters of JSON are a token: always the same for the same request and answer."""
    size = len(request.system_prompt or "")
    size += sum(len(encode(message.parts)) for message in request.messages)
    size += sum(len(encode(spec)) for spec in request.tool_specs)
    used = -(-size // _CHARS_PER_TOKEN)
    made = -(-output_chars // _CHARS_PER_TOKEN)
    return TokenUsage(input_tokens=used, output_tokens=made, total_tokens=used + made)
