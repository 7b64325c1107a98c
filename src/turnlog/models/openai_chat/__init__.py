"""OpenAI Chat Completions and every compatible server."""

from .._openai import HOSTS, Quirks, quirks_of
from ._model import OpenAIChatModel
from ._request import OpenAIChatConfig

__all__ = ["HOSTS", "OpenAIChatConfig", "OpenAIChatModel", "Quirks", "quirks_of"]
