"""What a run costs and what it says while it works: prices, structured logs."""

from ._keys import guard_environment
from ._logs import debug_categories, get_logger, show_logs
from ._prices import cost_of

__all__ = ["cost_of", "debug_categories", "get_logger", "guard_environment", "show_logs"]
