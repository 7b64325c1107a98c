"""The one way to call a model. ``stream`` is final: it enforces the delta grammar for every adapter."""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import wraps
from typing import Any, ClassVar, Generic, ParamSpec, TypeAlias, final

from turnlog.contract import (
    AgentError,
    Clock,
    Feature,
    IdSource,
    JsonObject,
    Message,
    MessageDelta,
    MessageView,
    ModelInvocationDescriptor,
    RequestMetadata,
    StreamError,
    StreamStart,
    ToolChoice,
    ToolSpec,
    model_facts,
)
from turnlog.contract import Chunk as Chunk
from turnlog.system import SystemClock, SystemIds

from ._config import C, ModelConfig, ModelInfo, ModelRequest, PromptPart, build_config
from ._stream import DeltaStream

ErrorMapper: TypeAlias = Callable[[BaseException], AgentError | None]
"""Turns what a client raised into one of our codes; None leaves it to the adapter's own table."""

_log = logging.getLogger("turnlog.models")
_NO_METADATA = RequestMetadata(session_id="", run_id="")

P = ParamSpec("P")
_BATCHES = "_batches"


def batched(
    stream: Callable[P, AsyncGenerator[Sequence[Chunk], None]],
) -> Callable[P, AsyncIterator[Chunk]]:
    """Make ``_stream`` of a method that yields the chunks which came together as one list.

    The base reads the lists; a subclass that calls ``super()._stream(request)`` gets chunk after chunk.
    """

    @wraps(stream)
    async def singly(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Chunk, None]:
        async with aclosing(stream(*args, **kwargs)) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    yield chunk

    setattr(singly, _BATCHES, stream)
    return singly


class Deltas(AsyncGenerator[MessageDelta, None]):
    """The deltas of one answer, one at a time. ``batches`` gives the same deltas, those that came together
    as one list, to a reader that hands them out itself: read the one or the other."""

    __slots__ = ("_ready", "batches")

    def __init__(self, batches: AsyncGenerator[list[MessageDelta], None]) -> None:
        self.batches = batches
        self._ready: Iterator[MessageDelta] = iter(())

    async def __anext__(self) -> MessageDelta:
        for delta in self._ready:
            return delta
        self._ready = iter(await anext(self.batches))
        return next(self._ready)

    async def asend(self, value: None) -> MessageDelta:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> MessageDelta:
        self._ready = iter(await self.batches.athrow(typ, val, tb))
        return next(self._ready)

    async def aclose(self) -> None:
        self._ready = iter(())
        await self.batches.aclose()


class Model(ABC, Generic[C]):
    """One provider's adapter: messages in, deltas out.

    An adapter implements ``_stream`` and yields payloads (``turnlog.contract.Chunk``), with a key of its
    own choice as ``tool_call_id`` that is unique within the stream. It never retries, trims, persists or
    runs tools; it reads messages and changes none; closing the iterator closes its connection. It may
    raise anything: what is not an ``AgentError`` goes through ``_map_error``. One that gets several chunks
    at once may yield them as one list, with ``@batched`` before its ``_stream``.
    """

    provider_id: ClassVar[str]
    specification: ClassVar[str]
    config_type: ClassVar[type[ModelConfig]] = ModelConfig
    features: ClassVar[frozenset[Feature]] = frozenset({"text", "tools"})
    param_names: ClassVar[Mapping[str, str]] = {}
    """Parameters that every call may have (``thinking``) → the field of the configuration that takes them."""

    def __init__(
        self,
        config: C | str | None = None,
        *,
        client: Any = None,
        error_mapper: ErrorMapper | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        **fields: Any,
    ) -> None:
        if isinstance(config, str):
            fields = {"model_id": config, **fields}
            config = None
        if config is not None and not isinstance(config, self.config_type):
            raise AgentError(
                "ConfigInvalid",
                f"{type(self).__name__} takes a {self.config_type.__name__}, not a {type(config).__name__}",
            )
        if config is None or fields:
            config = build_config(self.config_type, fields, config)
        self._config: C = config  # pyright: ignore[reportAttributeAccessIssue]
        self._client: Any = client
        self._error_mapper = error_mapper
        self._clock: Clock = clock or SystemClock()
        self._ids: IdSource = ids or SystemIds()
        self._check_config(self._config)

    # ── what an adapter implements ──

    @abstractmethod
    def _stream(self, request: ModelRequest[C]) -> AsyncIterator[Chunk]:
        """Yield the payloads of one answer, from ``StreamStart`` to ``StreamDone``."""

    def _check_config(self, config: C) -> None:
        """Refuse a configuration that cannot work; called at construction and on every change."""

    def _map_error(self, error: BaseException) -> AgentError:
        """Give an exception of the adapter's client one of our codes."""
        return _unknown(error)

    @property
    def secrets(self) -> Mapping[str, str]:
        """What must be in no conversation with this model, by a name that people know."""
        return {}

    # ── what everyone calls ──

    @final
    def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] = (),
        system_prompt: str | None = None,
        *,
        tool_choice: ToolChoice | None = None,
        system_prompt_content: Sequence[PromptPart] | None = None,
        invocation_state: Mapping[str, Any] | None = None,
        output_schema: JsonObject | None = None,
        request_metadata: RequestMetadata | None = None,
        **params: Any,
    ) -> Deltas:
        """The answer to ``messages``, delta by delta: ``start`` first, one ``done`` or ``error`` last.

        ``output_schema`` is a JSON schema that the answer's text must fit, where the model ``supports`` it.
        ``system_prompt_content`` is the system prompt in parts and replaces ``system_prompt``.
        ``invocation_state`` is handed to the adapter as it is and goes nowhere else. ``params`` are fields of
        the configuration, for this call; others go into the request as the provider's own.

        Never raises for what the provider does: that arrives as the ``error`` delta. Raises ``AgentError``
        for bad ``params`` before anything is sent.
        """
        if isinstance(messages, str | Message):
            raise AgentError(
                "InvalidMessage", "stream takes a list of messages; user_message(text) makes one of text"
            )
        config = self._config
        params = {self.param_names.get(name, name): value for name, value in params.items()}
        own = {name: value for name, value in params.items() if name in config.__struct_fields__}
        if own:
            config: C = build_config(self.config_type, own, config)  # pyright: ignore[reportAssignmentType]
            self._check_config(config)
        if output_schema is not None and not self.supports("output_schema"):
            raise AgentError(
                "ConfigInvalid",
                f"{config.model_id} cannot hold its answer to a schema (supports('output_schema') is false); "
                "ask for a tool call with that schema instead",
            )
        parts = tuple(system_prompt_content or ())
        request = ModelRequest(
            messages=messages if type(messages) is MessageView else tuple(messages),
            tool_specs=tuple(tool_specs),
            system_prompt="\n\n".join(part.text for part in parts) if parts else system_prompt,
            tool_choice=tool_choice if tool_choice is not None else config.tool_choice,
            metadata=request_metadata or _NO_METADATA,
            config=config,
            params={name: value for name, value in params.items() if name not in own},
            raw=[] if config.include_raw else None,
            system_prompt_content=parts,
            output_schema=output_schema,
            invocation_state=invocation_state,
        )
        return Deltas(self._guarded(request))

    async def _guarded(self, request: ModelRequest[C]) -> AsyncGenerator[list[MessageDelta], None]:
        out = DeltaStream(request.metadata, self._clock, self._ids, request.raw, request.config.prices)
        source: Any = None
        try:
            together = getattr(self._stream, _BATCHES, None)
            source = self._stream(request) if together is None else together(self, request)
            if inspect.iscoroutine(source):  # an adapter may do its first step before it has an iterator
                source = await source
            async for found in source:
                deltas = out.read((found,) if together is None else found)
                if deltas:
                    yield deltas
                if out.failure is not None:
                    raise out.failure
                if out.ended:
                    return
        except AgentError as error:
            failure = error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            failure = AgentError(
                "ModelServerError", f"{self.descriptor.model}: the adapter cancelled itself", cause=error
            )
        except Exception as error:
            failure = self._explain(error)
        else:
            failure = AgentError(
                "ModelProtocolError", f"{self.descriptor.model}: the stream stopped without saying it is done"
            )
        finally:
            await _close(source)
        last = out.read([StreamStart(model_id=self.descriptor.model)]) if out.idle else []
        error = StreamError(
            error_code=failure.code,
            message=failure.message,
            retryable=failure.retryable,
            retry_after=failure.retry_after,
        )
        yield [*last, out.fail(error)]

    def _explain(self, error: Exception) -> AgentError:
        for mapper in (self._error_mapper, self._map_error):
            try:
                found = mapper and mapper(error)
            except Exception as broken:  # a mapper's own bug must not hide what it was asked about
                _log.warning("an error mapper failed: %s", type(broken).__name__)
                continue
            if isinstance(found, AgentError):
                return found
        return _unknown(error)

    def target_for(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        """Who would answer this call, and why. A router chooses here; a plain model is its own target."""
        return self.descriptor, None

    def window_of(self, target: ModelInvocationDescriptor) -> int | None:
        """The context window of ``target`` in tokens, where this model knows it."""
        return self.model_info().context_window if target == self.descriptor else None

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        """Ask the server of ``target`` for the window that it serves; None where nobody is to be asked. It
        takes a bounded time and raises nothing; ``told_window`` has what was said."""
        return None

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        """The window of ``target`` in tokens, as its server told it when it was asked."""
        return None

    @property
    def descriptor(self) -> ModelInvocationDescriptor:
        return ModelInvocationDescriptor(
            provider_id=self.provider_id, specification=self.specification, model=self._config.model_id
        )

    def get_config(self) -> C:
        return self._config

    def update_config(self, **fields: Any) -> None:
        """Change configuration for later calls; a stream that is open keeps what it began with."""
        config: C = build_config(self.config_type, fields, self._config)  # pyright: ignore[reportAssignmentType]
        self._check_config(config)
        self._config = config

    def model_info(self) -> ModelInfo:
        config = self._config
        facts = model_facts(config.model_id)
        target = self.descriptor
        return ModelInfo(
            provider_id=target.provider_id,
            specification=target.specification,
            model_id=config.model_id,
            context_window=config.context_window or facts.window,
            max_output_tokens=config.max_output_tokens or facts.max_output,
            features=self._features(),
        )

    def _features(self) -> frozenset[Feature]:
        """What this very model can do, of all that the adapter can."""
        return self.features

    def supports(self, feature: Feature) -> bool:
        return feature in self.model_info().features

    async def close(self) -> None:
        """Give back what the model holds; it may be used again afterwards."""


def _unknown(error: BaseException) -> AgentError:
    return AgentError("ModelUnknownError", f"{type(error).__name__}: {error}", cause=error)


def _is_cancelled() -> bool:
    """Whether it is our own task that somebody cancelled, and not something the adapter waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _close(source: Any) -> None:
    close = getattr(source, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except Exception as error:  # how the stream ended is decided; its cleaning up cannot change that
        _log.warning("closing a stream failed: %s", type(error).__name__)
