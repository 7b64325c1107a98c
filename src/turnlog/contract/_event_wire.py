"""The wire form of events: flat as objects, on the wire ``{kind, seq, …, payload: {…}}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, get_args

import msgspec

from ._base import Value
from .deltas import MessageDelta
from .events import DELTA_EVENTS, EVENT_KINDS, DeltaEvent, Event, RunEvent

_FLAT: dict[str, type[Any]] = {event.kind: event for event in get_args(RunEvent)}
_PLACE = Event.__struct_fields__
_place_of = attrgetter(*_PLACE)


class _Form(NamedTuple):
    """The two structs that one kind is written as, and what goes into the inner one."""

    envelope: type[Any]
    payload: type[Any]
    names: tuple[str, ...]
    content_of: Callable[[Any], tuple[Any, ...]]


@cache
def _form(kind: str) -> _Form:
    flat: Any = DeltaEvent[MessageDelta] if kind == DeltaEvent.kind else _FLAT[kind]
    fields = [field for field in msgspec.structs.fields(flat) if field.name not in _PLACE]
    names = tuple(field.name for field in fields)
    payload = msgspec.defstruct(
        flat.__name__,
        [(f.name, f.type) if f.required else (f.name, f.type, f.default) for f in fields],
        bases=(Value,),
        frozen=True,
    )
    place: list[Any] = [(field.name, field.type) for field in msgspec.structs.fields(Event)]
    envelope = msgspec.defstruct(
        kind, [*place, ("payload", payload)], bases=(Value,), frozen=True, tag_field="kind", tag=kind
    )
    return _Form(envelope, payload, names, _getter(names))


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda event: (getattr(event, names[0]),)  # attrgetter would give the value alone


def write_event(event: Any) -> Any:
    """The struct that is written for ``event``."""
    form = _form(event.kind)
    return form.envelope(*_place_of(event), form.payload(*form.content_of(event)))


def read_event(wire: Any) -> Any:
    """The event that ``wire``, an instance of ``wire_type()``, tells of."""
    kind = wire.__struct_config__.tag
    form = _form(kind)
    payload = wire.payload
    fields = dict(zip(_PLACE, _place_of(wire), strict=True))
    fields.update(zip(form.names, form.content_of(payload), strict=True))
    flat = DELTA_EVENTS[payload.delta.kind] if kind == DeltaEvent.kind else _FLAT[kind]
    if type(wire) is form.envelope and type(payload) is form.payload:
        return flat(**fields)
    return _newer(flat)(**fields, wire=wire)


def _write_newer(event: Any) -> Any:
    form = _form(event.kind)
    content = dict(zip(form.names, form.content_of(event), strict=True))
    payload = msgspec.structs.replace(event.wire.payload, **content)
    place = dict(zip(_PLACE, _place_of(event), strict=True))
    return msgspec.structs.replace(event.wire, **place, payload=payload)


@cache
def _newer(flat: type[Any]) -> type[Any]:
    """``flat`` for an event with fields of a newer writer: ``wire`` keeps them where they were."""
    found = msgspec.defstruct(flat.__name__, [("wire", Any)], bases=(flat,), frozen=True, kw_only=True)
    WRITERS[found] = _write_newer
    return found


@cache
def wire_type() -> Any:
    """The union of the structs that events are written as."""
    found: Any = _form(EVENT_KINDS[0]).envelope
    for kind in EVENT_KINDS[1:]:
        found = found | _form(kind).envelope
    return found


WRITERS: dict[type[Any], Callable[[Any], Any]] = dict.fromkeys(get_args(RunEvent), write_event)
"""Class of event → what makes the struct that is written for it."""
