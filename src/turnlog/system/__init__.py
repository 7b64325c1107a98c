"""The machine's clock and id source: the real ones behind the contract's ports."""

from ._system import SystemClock, SystemIds

__all__ = ["SystemClock", "SystemIds"]
