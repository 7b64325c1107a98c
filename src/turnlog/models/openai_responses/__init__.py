"""OpenAI's Responses API and the servers that speak it."""

from ._model import OpenAIResponsesConfig, OpenAIResponsesModel

__all__ = ["OpenAIResponsesConfig", "OpenAIResponsesModel"]
