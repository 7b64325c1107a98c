"""Who is asked first. A policy names routes in order of preference; the router skips those that rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnlog.contract import RequestMetadata

from ._health import HealthView


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
