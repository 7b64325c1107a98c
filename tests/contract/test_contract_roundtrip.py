"""Object → JSON → object is the identity, for every value; nothing but `AgentError` comes out otherwise."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import STRUCTS, deltas, entries, events, messages, of
from turnlog.contract import (
    AgentError,
    Entry,
    Message,
    MessageDelta,
    MessagePart,
    StoredEntry,
    decode,
    encode,
    user_message,
)
from turnlog.contract.events import RunEvent as RunEvent


def examples(count: int) -> settings:
    return settings(
        max_examples=count, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )


def check_identity(value: Any, kind: Any) -> None:
    data = encode(value)
    again = decode(data, kind)
    assert again == value
    assert type(again) is type(value)
    assert encode(again) == data
    assert data.isascii() or data.decode()
    json.loads(data)  # what another language's reader sees is JSON too


@pytest.mark.spec("M-4")
@examples(200)
@given(messages())
def test_messages(value: Message) -> None:
    check_identity(value, Message)


@pytest.mark.spec("D-1")
@examples(100)
@given(deltas())
def test_deltas(value: Any) -> None:
    check_identity(value, MessageDelta)


@pytest.mark.spec("H-1")
@examples(200)
@given(entries())
def test_entries(value: Any) -> None:
    check_identity(value, Entry)
    assert None not in msgspec.to_builtins(value).values()  # absent, not null


@examples(150)
@given(events())
def test_events(value: Any) -> None:
    check_identity(value, RunEvent)


@pytest.mark.parametrize("cls", STRUCTS, ids=lambda cls: cls.__name__)
def test_every_value_alone(cls: type[Any]) -> None:
    @examples(8)
    @given(of(cls))
    def check(value: Any) -> None:
        check_identity(value, cls)

    check()


@examples(100)
@given(st.one_of(messages(), entries(), events(), deltas()))
def test_field_names_on_the_wire_are_camel_case(value: Any) -> None:
    def check(struct: Any) -> None:
        for name, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            head, *rest = {"output_value": "output"}.get(name, name).split("_")
            assert wire == head + "".join(word.capitalize() for word in rest)
            inner = getattr(struct, name)
            for item in inner if isinstance(inner, list) else [inner]:
                if isinstance(item, msgspec.Struct):
                    check(item)

    check(value)


@examples(100)
@given(st.binary(max_size=60), st.sampled_from([Message, MessagePart, MessageDelta, Entry, RunEvent]))
def test_noise_is_refused_with_our_error(data: bytes, kind: Any) -> None:
    with pytest.raises(AgentError) as caught:
        decode(data, kind)
    assert caught.value.code == "InvalidMessage"


@examples(200)
@given(st.data(), st.one_of(messages(), entries(), events(), deltas()))
def test_damage_is_read_or_refused_and_nothing_else(data: st.DataObject, value: Any) -> None:
    body = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    for kind in (Message, Entry, RunEvent, MessageDelta):
        with suppress(AgentError):
            encode(decode(bytes(body), kind))


def test_a_stored_entry_is_plain() -> None:
    assert StoredEntry(1, "a", "custom", b"{}")._fields == ("seq", "id", "kind", "body")


class Markup(str):
    def __str__(self) -> str:
        return "another text"


class Count(int):
    pass


class Share(float):
    pass


def test_subclasses_of_plain_types_are_written_by_value() -> None:
    given = {"text": Markup("x"), "count": Count(3), "share": Share(0.5), "list": [Markup("y")]}
    assert encode(given) == b'{"text":"x","count":3,"share":0.5,"list":["y"]}'
    written = decode(encode(user_message(Markup("hello"))), Message)
    assert type(written.text) is str and written.text == "hello"
