"""Deltas in, one message out. Pure: no clock, no ids, no I/O."""

from ._assembler import Assembled, DeltaFilter, MessageAssembler, MessageSnapshot

__all__ = ["Assembled", "DeltaFilter", "MessageAssembler", "MessageSnapshot"]
