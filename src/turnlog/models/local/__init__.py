"""``local:`` models, which run on this machine, offline and without a key."""

from ._model import LocalModel
from ._server import close_servers
from ._weights import KNOWN, TEMPLATES, LocalConfig, Weights, find_weights

__all__ = ["KNOWN", "TEMPLATES", "LocalConfig", "LocalModel", "Weights", "close_servers", "find_weights"]
