"""A model made of models: picks one for each call, and another when that one fails.

It fails over before anything was shown; after that the loop makes the call again. A policy names routes in
order of preference; the router skips those that rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from logging import DEBUG, getLogger
from typing import Any, ClassVar, Literal, TypeAlias, cast

from turnlog.contract import (
    AgentError,
    Chunk,
    Clock,
    DoneDelta,
    ErrorDelta,
    ErrorInfo,
    IdSource,
    MessageDelta,
    ModelInvocationDescriptor,
    RequestMetadata,
    StartDelta,
    StreamError,
    StreamStart,
    TokenUsage,
    UsageDelta,
)

from ._base import Model, batched
from ._catalog import load_model
from ._config import ModelConfig, ModelInfo, ModelRequest

_log = getLogger("turnlog.router")

_SMOOTHING = 0.3
_WAITS = frozenset({"ModelRateLimited", "ModelOverloaded"})


@dataclass(frozen=True, slots=True)
class HealthView:
    """A route's state as a policy sees it. ``ready_in`` is 0 when the route may be used now."""

    name: str
    failures_in_a_row: int
    ready_in: float
    latency: float | None
    price: float | None
    last_error: str | None


class Health:
    """Counts what happened on one route. Times are the injected clock's monotonic seconds."""

    def __init__(
        self, clock: Clock, *, threshold: int = 3, cooldown: float = 30.0, most: float = 300.0
    ) -> None:
        self._clock = clock
        self._threshold = threshold
        self._cooldown = cooldown
        self._most = most
        self._opened = 0
        self.failures = 0
        self.ready_at = 0.0
        self.latency: float | None = None
        self.last_error: str | None = None

    @property
    def ready_in(self) -> float:
        return max(0.0, self.ready_at - self._clock.monotonic())

    def succeeded(self, first_byte: float | None) -> None:
        self.failures = 0
        self._opened = 0
        self.ready_at = 0.0
        self.last_error = None
        if first_byte is not None:
            old = self.latency
            self.latency = first_byte if old is None else old + _SMOOTHING * (first_byte - old)

    def failed(self, error: ErrorInfo) -> None:
        """A provider that says how long to wait is not asked before; one that fails on is given a rest.

        What is wrong with the request itself says nothing about the provider.
        """
        if not error.retryable and error.code not in (
            "ModelAuthError",
            "ModelQuotaExceeded",
            "ModelNotFound",
        ):
            return
        self.failures += 1
        self.last_error = error.code
        now = self._clock.monotonic()
        asked = (error.meta or {}).get("retry_after")
        if isinstance(asked, int | float) and error.code in _WAITS:
            self.ready_at = max(self.ready_at, now + float(asked))
        if self.failures >= self._threshold or not error.retryable:
            rest = min(self._cooldown * 2**self._opened, self._most)
            self._opened += 1
            self.ready_at = max(self.ready_at, now + rest)


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What a policy decides on."""

    metadata: RequestMetadata
    routes: Mapping[str, HealthView]

    @property
    def role(self) -> str | None:
        return self.metadata.role


RoutePolicy: TypeAlias = Callable[[RouteContext], "str | Sequence[str] | tuple[Sequence[str], str]"]
"""Names of routes, the preferred first, optionally with the reason in words."""


def in_order(*names: str) -> RoutePolicy:
    """Always the first that is not resting, in this order (default: as registered)."""

    def policy(ctx: RouteContext) -> tuple[Sequence[str], str]:
        return names or tuple(ctx.routes), "fallback order"

    return policy


def by_role(
    roles: Mapping[str, str | Sequence[str]], default: str | Sequence[str] | None = None
) -> RoutePolicy:
    """The routes of the call's role (``planner``, ``executor``, ``reviewer``, …), else the default."""

    def policy(ctx: RouteContext) -> tuple[Sequence[str], str]:
        found = roles.get(ctx.role) if ctx.role is not None else None
        if found is not None:
            return _names(found), f"role {ctx.role}"
        if default is not None:
            return _names(default), "default role"
        return tuple(ctx.routes), "no role given"

    return policy


def healthiest() -> RoutePolicy:
    """Fewest failures in a row first; as registered among equals."""
    return _sorted(lambda view: view.failures_in_a_row, "health")


def fastest() -> RoutePolicy:
    """Shortest time to the first content first; a route never tried comes before all, to learn its time."""
    return _sorted(lambda view: view.latency if view.latency is not None else -1.0, "latency")


def cheapest() -> RoutePolicy:
    """Lowest price first; a route whose price is not known comes last."""
    return _sorted(lambda view: view.price if view.price is not None else float("inf"), "cost")


def _sorted(key: Callable[[HealthView], float], why: str) -> RoutePolicy:
    def policy(ctx: RouteContext) -> tuple[Sequence[str], str]:
        return sorted(ctx.routes, key=lambda name: key(ctx.routes[name])), why

    return policy


def _names(found: str | Sequence[str]) -> Sequence[str]:
    return (found,) if isinstance(found, str) else tuple(found)


_REMEMBERED = 256
_SHARED = ("temperature", "max_tokens", "top_p", "stop_sequences", "cache_config", "include_raw")
_CONTENT = frozenset({"text", "thinking", "tool_call_start", "tool_call_args", "tool_call_end"})


@dataclass(frozen=True, slots=True)
class Route:
    """A model under a name. ``price`` (US dollars per million input tokens) is what ``cheapest`` sorts by."""

    model: Model
    price: float | None = None


@dataclass(frozen=True, slots=True)
class RouterNotice:
    """What an observer is told: a choice, a delta, usage or a failure, and on which route."""

    kind: Literal["choice", "delta", "usage", "failure"]
    route: str
    metadata: RequestMetadata
    reason: str | None = None
    delta: MessageDelta | None = None
    usage: TokenUsage | None = None
    error: ErrorInfo | None = None


class RouterConfig(ModelConfig, frozen=True, kw_only=True):
    model_id: str = "router"
    failure_threshold: int = 3
    cooldown: float = 30.0


class ProviderRouter(Model[RouterConfig]):
    """Several models, or names of them, as one.

    The choice and its reason reach the log through ``target_for``; a failover through the ``start`` delta,
    which names who really answers.
    """

    provider_id: ClassVar[str] = "router"
    specification: ClassVar[str] = "router"
    config_type: ClassVar[type[ModelConfig]] = RouterConfig

    def __init__(
        self,
        routes: Mapping[str, Model | Route | str] | Sequence[Model],
        *,
        policy: RoutePolicy | None = None,
        observer: Callable[[RouterNotice], None] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(RouterConfig(), clock=clock, ids=ids, **fields)
        named = routes if isinstance(routes, Mapping) else _named(routes)
        if not named:
            raise AgentError("ConfigInvalid", "a router needs at least one model")
        self._routes = {name: _route(given) for name, given in named.items()}
        for name, route in self._routes.items():
            if not isinstance(route.model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise AgentError(
                    "ConfigInvalid",
                    f"route {name!r} is a {type(route.model).__name__}, not a Model or the name of one",
                )
        self._policy = policy or in_order()
        self._observer = observer
        config: RouterConfig = self.get_config()
        self._health = {
            name: Health(self._clock, threshold=config.failure_threshold, cooldown=config.cooldown)
            for name in self._routes
        }
        self._choices: OrderedDict[tuple[str, int, int], tuple[list[str], str]] = OrderedDict()

    @property
    def secrets(self) -> Mapping[str, str]:
        return {name: value for route in self._routes.values() for name, value in route.model.secrets.items()}

    def health(self) -> dict[str, HealthView]:
        """How each route is doing now."""
        return {
            name: HealthView(
                name=name,
                failures_in_a_row=health.failures,
                ready_in=health.ready_in,
                latency=health.latency,
                price=self._routes[name].price,
                last_error=health.last_error,
            )
            for name, health in self._health.items()
        }

    def target_for(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        names, reason = self._choose(metadata)
        return self._routes[names[0]].model.descriptor, f"{names[0]}: {reason}"

    def _choose(self, metadata: RequestMetadata) -> tuple[list[str], str]:
        """The routes to try, in order. The same call gets the same answer: the log has it already."""
        key = (metadata.run_id, metadata.model_call_index, metadata.attempt)
        known = self._choices.get(key) if metadata.run_id else None
        if known is not None:
            return known
        health = self.health()
        wanted, reason = self._ask(RouteContext(metadata, health))
        ready = [name for name in wanted if health[name].ready_in <= 0]
        resting = sorted((n for n in wanted if n not in ready), key=lambda n: health[n].ready_in)
        if not ready:
            reason = f"{reason}; all rest, {resting[0]} is ready first"
        elif ready[0] != wanted[0]:
            first = health[wanted[0]]
            reason = f"{reason}; {wanted[0]} rests {first.ready_in:.0f} s after {first.last_error}"
        chosen = ([*ready, *resting], reason)
        if metadata.run_id:
            self._choices[key] = chosen
        while len(self._choices) > _REMEMBERED:
            self._choices.popitem(last=False)
        return chosen

    def _ask(self, ctx: RouteContext) -> tuple[list[str], str]:
        names, reason = _read(self._asked(ctx))
        unknown = [name for name in names if name not in self._routes]
        if unknown or not names:
            raise AgentError(
                "ConfigInvalid",
                f"the router's policy named {unknown or 'no route'}; routes are {', '.join(self._routes)}",
            )
        return names, reason

    def _asked(self, ctx: RouteContext) -> object:
        try:
            return self._policy(ctx)
        except AgentError:
            raise
        except Exception as error:
            raise AgentError(
                "ConfigInvalid", f"the router's policy raised {type(error).__name__}: {error}", cause=error
            ) from error

    @batched
    async def _stream(self, request: ModelRequest[RouterConfig]) -> AsyncGenerator[list[Chunk], None]:
        names, reason = self._choose(request.metadata)
        for position, name in enumerate(names):
            is_last = position == len(names) - 1
            self._tell("choice", name, request.metadata, reason=reason)
            failure: StreamError | None = None
            shown = False
            async with aclosing(self._attempt(name, reason, request)) as batches:
                async for chunks in batches:
                    if isinstance(chunks[0], StreamError):
                        failure = chunks[0]
                        break
                    shown = True
                    yield chunks
            if failure is None:
                return
            if shown or is_last or not failure.retryable:
                yield [failure] if shown else [self._start(name, reason), failure]
                return
            reason = f"failover: {name} failed with {failure.error_code}"

    async def _attempt(
        self, name: str, reason: str, request: ModelRequest[RouterConfig]
    ) -> AsyncGenerator[list[Chunk], None]:
        """The chunks that came together; an error stands alone, in a list of its own."""
        model = self._routes[name].model
        health = self._health[name]
        began = self._clock.monotonic()
        first: float | None = None
        stream = model.stream(
            request.messages,
            request.tool_specs,
            request.system_prompt,
            tool_choice=request.tool_choice,
            system_prompt_content=request.system_prompt_content,
            invocation_state=request.invocation_state,
            output_schema=request.output_schema if model.supports("output_schema") else None,
            request_metadata=request.metadata,
            **_handed_on(request),
        )
        held: list[Chunk] = []
        async with aclosing(stream.batches) as batches:
            async for deltas in batches:
                chunks: list[Chunk] = []
                for delta in deltas:
                    if first is None and delta.kind in _CONTENT:
                        first = self._clock.monotonic() - began
                    self._observe(name, request.metadata, delta)
                    match delta:
                        case StartDelta():
                            held.append(self._start(name, reason, delta.payload))
                        case ErrorDelta():
                            info = _info(delta.payload)
                            health.failed(info)
                            self._tell("failure", name, request.metadata, error=info)
                            if chunks:
                                yield chunks
                            yield [delta.payload]
                            return
                        case UsageDelta() if held:
                            held.append(delta.payload)
                        case _:
                            # Only now: until there is content, another route may still answer.
                            chunks += held
                            held.clear()
                            if isinstance(delta, DoneDelta):
                                health.succeeded(first)  # now: nobody reads on after the terminal
                            chunks.append(delta.payload)
                if chunks:
                    yield chunks

    def _start(self, name: str, reason: str, given: StreamStart | None = None) -> StreamStart:
        target = self._routes[name].model.descriptor
        return StreamStart(
            model_id=given.model_id if given else target.model,
            request_id=given.request_id if given else None,
            target=target,
            reason=f"{name}: {reason}; {given.reason}" if given and given.reason else f"{name}: {reason}",
        )

    def _observe(self, name: str, metadata: RequestMetadata, delta: MessageDelta) -> None:
        if self._observer is None:
            return
        self._tell("delta", name, metadata, delta=delta)
        if isinstance(delta, UsageDelta):
            self._tell("usage", name, metadata, usage=delta.payload)

    def _tell(self, kind: Any, name: str, metadata: RequestMetadata, **more: Any) -> None:
        if kind in ("choice", "failure") and _log.isEnabledFor(DEBUG):
            why = more["reason"] if kind == "choice" else more["error"].code
            fields = {"session": metadata.session_id, "call": metadata.model_call_index, "kind": kind}
            fields |= {"route": name, "reason": why}
            _log.debug("%s call %s: %s of %s: %s", *fields.values(), extra=fields)
        if self._observer is not None:
            self._observer(RouterNotice(kind=kind, route=name, metadata=metadata, **more))

    def window_of(self, target: ModelInvocationDescriptor) -> int | None:
        windows = (route.model.window_of(target) for route in self._routes.values())
        return min((window for window in windows if window is not None), default=None)

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        asked = (route.model.ask_window(target) for route in self._routes.values())
        return next((asking for asking in asked if asking is not None), None)

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        told = (route.model.told_window(target) for route in self._routes.values())
        return min((window for window in told if window is not None), default=None)

    def model_info(self) -> ModelInfo:
        infos = [route.model.model_info() for route in self._routes.values()]
        windows = [info.context_window for info in infos if info.context_window is not None]
        return ModelInfo(
            provider_id=self.provider_id,
            specification=self.specification,
            model_id=self.get_config().model_id,
            context_window=min(windows) if windows else None,
            features=frozenset(f for f in infos[0].features if all(f in info.features for info in infos)),
        )

    async def close(self) -> None:
        for route in self._routes.values():
            await route.model.close()


def _route(given: Model | Route | str) -> Route:
    if isinstance(given, Route):
        return given
    return Route(load_model(given) if isinstance(given, str) else given)


def _named(models: Sequence[Model]) -> dict[str, Model]:
    named: dict[str, Model] = {}
    for model in models:
        name = model.descriptor.model
        named[name if name not in named else f"{name}-{len(named) + 1}"] = model
    return named


def _read(given: object) -> tuple[list[str], str]:
    """Names and reason, in whichever of its forms a policy gave them."""
    reason = "policy"
    if isinstance(given, tuple):
        pair = cast("tuple[object, ...]", given)
        if len(pair) == 2 and not isinstance(pair[0], str):
            given, reason = pair[0], str(pair[1])
    if isinstance(given, str):
        return [given], reason
    if not isinstance(given, Sequence):
        raise AgentError(
            "ConfigInvalid",
            f"the router's policy gave a {type(given).__name__}; it names a route, or several in a list",
        )
    return [str(name) for name in cast("Sequence[object]", given)], reason


def _handed_on(request: ModelRequest[RouterConfig]) -> dict[str, Any]:
    """What the router was given for its models: it does not use it itself."""
    given = {name: getattr(request.config, name) for name in _SHARED}
    told = {name: value for name, value in given.items() if value is not None and value is not False}
    return {**told, **request.params}


def _info(error: StreamError) -> ErrorInfo:
    meta = {"retry_after": error.retry_after} if error.retry_after is not None else None
    return AgentError(
        error.error_code, error.message or error.error_code, retryable=error.retryable, meta=meta
    ).to_info()
