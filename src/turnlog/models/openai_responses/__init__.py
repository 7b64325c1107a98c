"""OpenAI's Responses API and the servers that speak it."""

from ._config import OpenAIResponsesConfig
from ._model import OpenAIResponsesModel

__all__ = ["OpenAIResponsesConfig", "OpenAIResponsesModel"]
