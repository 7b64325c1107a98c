"""Amazon Bedrock's Converse API, over a client handed in."""

from ._config import BedrockConfig
from ._model import BedrockModel

__all__ = ["BedrockConfig", "BedrockModel"]
