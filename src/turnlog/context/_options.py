"""Every number the room uses, in one value. All limits are tokens of one estimator."""

from __future__ import annotations

from turnlog.contract import AgentError, Value


class ContextOptions(Value, frozen=True, kw_only=True):
    """How large a context may grow and how it shrinks.

    ``window`` and ``price_step`` override the table; ``fold_at`` is the ceiling that holds on any model.
    ``preview_at`` is 2,500 where it is not given, less in a small window. Shares are of the fold threshold H,
    except ``window_share`` and ``price_share``.
    """

    window: int | None = None
    price_step: int | None = None
    fold_at: int = 120_000
    window_share: float = 0.75
    price_share: float = 0.95
    cold_share: float = 0.6
    recap_share: float = 0.6
    turn_end_share: float = 0.9
    target_share: float = 0.5
    tail_share: float = 0.2
    merge_share: float = 0.3
    min_freed_share: float = 0.15
    min_freed_tokens: int = 8_000
    user_cap: int = 2_000
    preview_at: int | None = None
    bytes_per_token: float = 3.45
    image_tokens: int = 1_500
    fold: bool = True

    def __post_init__(self) -> None:
        for name in ("window", "price_step", "fold_at", "user_cap", "preview_at", "image_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AgentError("ConfigInvalid", f"context.{name} is {value}; it counts tokens, at least 1")
        for name in (
            "window_share",
            "price_share",
            "cold_share",
            "recap_share",
            "target_share",
            "tail_share",
        ):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise AgentError(
                    "ConfigInvalid", f"context.{name} is {value}; it is a share, above 0 up to 1"
                )
        if self.tail_share >= self.target_share:
            raise AgentError(
                "ConfigInvalid",
                f"context.tail_share {self.tail_share} is not below target_share {self.target_share}; "
                "the kept tail has to fit into what a fold leaves",
            )
        if self.bytes_per_token <= 0:
            raise AgentError("ConfigInvalid", f"context.bytes_per_token is {self.bytes_per_token}")
