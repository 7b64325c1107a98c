"""Amazon Bedrock's Converse API, over a client handed in."""

from ._model import BedrockConfig, BedrockModel

__all__ = ["BedrockConfig", "BedrockModel"]
