"""Google's Gemini models, at the Developer API and at Vertex."""

from ._model import GoogleConfig, GoogleModel

__all__ = ["GoogleConfig", "GoogleModel"]
