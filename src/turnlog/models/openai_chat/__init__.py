"""OpenAI Chat Completions and every compatible server."""

from ._config import OpenAIChatConfig
from ._model import OpenAIChatModel
from ._quirks import HOSTS, Quirks, quirks_of

__all__ = ["HOSTS", "OpenAIChatConfig", "OpenAIChatModel", "Quirks", "quirks_of"]
