"""OpenAI's Responses API and the servers that speak it."""

from ._model import OpenAIResponsesModel
from ._request import OpenAIResponsesConfig

__all__ = ["OpenAIResponsesConfig", "OpenAIResponsesModel"]
