"""Deltas in, one message out. Pure: no clock, no ids, no I/O."""

from ._assembler import Assembled, MessageAssembler
from ._dedupe import DeltaFilter
from ._snapshot import MessageSnapshot

__all__ = ["Assembled", "DeltaFilter", "MessageAssembler", "MessageSnapshot"]
