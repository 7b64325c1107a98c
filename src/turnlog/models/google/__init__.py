"""Google's Gemini models, at the Developer API and at Vertex."""

from ._config import GoogleConfig
from ._model import GoogleModel

__all__ = ["GoogleConfig", "GoogleModel"]
