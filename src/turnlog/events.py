"""The events of a run, one class per kind: ``match event: case TextDelta(text=text): ...``."""

from .contract.events import AnswerAdded as AnswerAdded
from .contract.events import ApprovalDecided as ApprovalDecided
from .contract.events import ApprovalRequested as ApprovalRequested
from .contract.events import ContextFolded as ContextFolded
from .contract.events import ErrorShown as ErrorShown
from .contract.events import InputAdded as InputAdded
from .contract.events import ModelCalled as ModelCalled
from .contract.events import ModelDelta as ModelDelta
from .contract.events import Retracted as Retracted
from .contract.events import RunEnded as RunEnded
from .contract.events import StatusChanged as StatusChanged
from .contract.events import TextDelta as TextDelta
from .contract.events import ThinkingDelta as ThinkingDelta
from .contract.events import ToolCallDelta as ToolCallDelta
from .contract.events import ToolDeferred as ToolDeferred
from .contract.events import ToolFinished as ToolFinished
from .contract.events import ToolProgressed as ToolProgressed
from .contract.events import ToolStarted as ToolStarted
