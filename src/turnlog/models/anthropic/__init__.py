"""Anthropic's Messages API and the servers that speak it."""

from ._model import AnthropicModel
from ._request import AnthropicConfig

__all__ = ["AnthropicConfig", "AnthropicModel"]
