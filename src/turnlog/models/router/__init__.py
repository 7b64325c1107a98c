"""A model made of models: picks one for each call, and another when that one fails."""

from ._health import Health, HealthView
from ._policies import RouteContext, RoutePolicy, by_role, cheapest, fastest, healthiest, in_order
from ._router import ProviderRouter, Route, RouterNotice

__all__ = [
    "Health",
    "HealthView",
    "ProviderRouter",
    "Route",
    "RouteContext",
    "RoutePolicy",
    "RouterNotice",
    "by_role",
    "cheapest",
    "fastest",
    "healthiest",
    "in_order",
]
