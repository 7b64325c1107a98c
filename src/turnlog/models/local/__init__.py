"""``local:`` models, which run on this machine, offline and without a key."""

from ._model import LocalModel
from ._server import close_servers
from ._weights import LocalConfig, find_weights

__all__ = ["LocalConfig", "LocalModel", "close_servers", "find_weights"]
