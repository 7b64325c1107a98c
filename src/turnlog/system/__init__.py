"""The machine: its clock and id source behind the contract's ports, and what its user has trusted."""

from ._system import SystemClock, SystemIds
from ._trust import Trusted, TrustStore, config_folder

__all__ = ["SystemClock", "SystemIds", "TrustStore", "Trusted", "config_folder"]
