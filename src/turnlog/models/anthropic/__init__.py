"""Anthropic's Messages API and the servers that speak it."""

from ._config import AnthropicConfig
from ._model import AnthropicModel

__all__ = ["AnthropicConfig", "AnthropicModel"]
