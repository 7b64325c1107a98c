"""``local:`` models, which run on this machine, offline and without a key."""

from ._config import TEMPLATES, LocalConfig
from ._model import LocalModel
from ._server import close_servers
from ._weights import KNOWN, Weights, find_weights

__all__ = ["KNOWN", "TEMPLATES", "LocalConfig", "LocalModel", "Weights", "close_servers", "find_weights"]
