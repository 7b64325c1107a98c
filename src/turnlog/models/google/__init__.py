"""Google's Gemini models, at the Developer API and at Vertex."""

from ._model import GoogleModel
from ._request import GoogleConfig

__all__ = ["GoogleConfig", "GoogleModel"]
