"""Amazon Bedrock's Converse API, over a client handed in."""

from ._model import BedrockModel
from ._request import BedrockConfig

__all__ = ["BedrockConfig", "BedrockModel"]
