"""Anthropic's Messages API and the servers that speak it."""

from ._model import AnthropicConfig, AnthropicModel

__all__ = ["AnthropicConfig", "AnthropicModel"]
