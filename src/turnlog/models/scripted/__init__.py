"""A model that answers from a script: for tests, demos and offline runs."""

from ._file import load_script, read_script
from ._model import ScriptedModel, ScriptItem
from ._turn import ScriptedCall, ScriptedError, Turn

__all__ = [
    "ScriptItem",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "Turn",
    "load_script",
    "read_script",
]
