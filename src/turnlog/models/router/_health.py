"""How each route is doing: failures in a row, a circuit that opens, what the provider asked us to wait."""

from __future__ import annotations

from dataclasses import dataclass

from turnlog.contract import Clock, ErrorInfo

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
