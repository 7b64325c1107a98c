"""`docs/wire.md` is the golden file of the wire: every kind once, its fields, its bytes.

A change of the contract shows here. If it is meant, write the prose and the row, then run once with
`TURNLOG_UPDATE_GOLDEN=1` to renew the JSON, and read the diff: old logs must still be readable.
"""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest

from contract import wire_examples
from contract.wire_tables import PAGE, Topic, lay_out, read_page, renew_blocks, rows
from strategies import STRUCTS
from turnlog.contract import (
    DELTA_KINDS,
    ENTRY_KINDS,
    PART_KINDS,
    SCHEMA_VERSION,
    AgentError,
    Entry,
    Message,
    MessageDelta,
    MessagePart,
    decode,
    encode,
    expected_hash,
    read_envelope,
)
from turnlog.contract._codec import write_event
from turnlog.contract.events import EVENT_KINDS, Event
from turnlog.contract.events import RunEvent as RunEvent

UNIONS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "Parts": (MessagePart, wire_examples.PARTS, PART_KINDS),
    "Deltas": (MessageDelta, wire_examples.DELTAS, DELTA_KINDS),
    "Entries": (Entry, wire_examples.ENTRIES, ENTRY_KINDS),
    "Events": (RunEvent, wire_examples.EVENTS, EVENT_KINDS),
}

EXAMPLES: dict[tuple[str, str], tuple[Any, Any]] = {
    ("Message", ""): (wire_examples.MESSAGE["message"], Message),
    **{
        (part, kind): (value, alias)
        for part, (alias, values, _) in UNIONS.items()
        for kind, value in values.items()
    },
    **{("Values", name): (value, type(value)) for name, value in wire_examples.VALUES.items()},
}
"""(section, heading) → the value built in Python, and the type it is read as."""

IDS = [f"{section}-{heading}" for section, heading in EXAMPLES]


if os.environ.get("TURNLOG_UPDATE_GOLDEN") == "1":
    renew_blocks({place: lay_out(json.loads(encode(value))) for place, (value, _) in EXAMPLES.items()})
TOPICS = read_page(PAGE.read_text(encoding="utf-8"))


def wire_form(value: Any) -> Any:
    """``value`` with the fields that its JSON has: those of an event are flat in Python alone."""
    return write_event(value) if isinstance(value, Event) else value


def topic(section: str, heading: str) -> Topic:
    found = TOPICS.get(section, {}).get(heading)
    assert found is not None, (
        f"docs/wire.md has no `{heading}` under {section}: say when it is written, and by whom"
    )
    return found


@pytest.mark.spec("H-2", "D-1", "M-2")
@pytest.mark.parametrize("section", UNIONS)
def test_every_kind_appears_exactly_once(section: str) -> None:
    _, values, kinds = UNIONS[section]
    assert sorted(set(TOPICS[section]) - {""}) == sorted(kinds)
    assert sorted(values) == sorted(kinds)
    for kind, value in values.items():
        assert value.kind == kind


def test_every_value_of_the_contract_is_on_the_page() -> None:
    shown = {type(value) for value, _ in EXAMPLES.values()}
    shown |= {type(value.payload) for value, _ in EXAMPLES.values() if hasattr(value, "payload")}
    # Between two rooms, and in no log.
    ports = ("turnlog.contract.ports", "turnlog.contract.runtime", "turnlog.contract.models")
    apart = {cls for cls in STRUCTS if cls.__module__ in ports}
    assert set(STRUCTS) - shown - apart == set()


@pytest.mark.parametrize(("section", "heading"), EXAMPLES, ids=IDS)
def test_the_json_is_frozen(section: str, heading: str) -> None:
    value, kind = EXAMPLES[section, heading]
    block = topic(section, heading).block
    assert block is not None, f"docs/wire.md: no JSON under {section} {heading}"
    golden = msgspec.json.format(block.encode(), indent=-1)
    assert golden.decode() == encode(value).decode()
    again = decode(golden, kind)
    assert again == value
    assert encode(again) == golden


@pytest.mark.parametrize(("section", "heading"), EXAMPLES, ids=IDS)
def test_the_table_lists_the_fields(section: str, heading: str) -> None:
    value, _ = EXAMPLES[section, heading]
    found = topic(section, heading)
    cls = type(wire_form(value).payload) if section in UNIONS else type(value)
    assert found.table == rows(cls)
    assert found.prose and not found.prose.startswith(("|", "```"))


@pytest.mark.parametrize("section", ["Deltas", "Entries", "Events"])
def test_the_envelopes_are_listed(section: str) -> None:
    _, values, _ = UNIONS[section]
    for value in values.values():
        own = [
            (name, "by kind" if name == "payload" else kind) for name, kind in rows(type(wire_form(value)))
        ]
        assert topic(section, "").table == own


def test_the_page_names_the_schema_version() -> None:
    assert f"Schema version {SCHEMA_VERSION}." in PAGE.read_text(encoding="utf-8")


@pytest.mark.spec("H-5")
def test_the_log_on_the_page_is_a_sound_chain() -> None:
    previous = ""
    for seq, kind in enumerate(kind for kind in TOPICS["Entries"] if kind):
        envelope = read_envelope(
            msgspec.json.format((topic("Entries", kind).block or "").encode(), indent=-1)
        )
        assert envelope.seq == seq + 1
        assert envelope.hash == expected_hash(envelope, previous)
        previous = envelope.hash


# ── a newer writer ──


def places(value: Any, plain: Any) -> list[dict[str, Any]]:
    """Every object in ``plain`` that is a struct in ``value`` (and not free JSON)."""
    value = wire_form(value)
    found: list[dict[str, Any]] = []
    if isinstance(value, msgspec.Struct):
        found.append(plain)
        for name, wire in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            if wire in plain:
                found += places(getattr(value, name), plain[wire])
    elif isinstance(value, list | tuple):
        for item, inner in zip(value, plain, strict=True):
            found += places(item, inner)
    return found


@pytest.mark.spec("M-4")
@pytest.mark.parametrize(("section", "heading"), EXAMPLES, ids=IDS)
def test_unknown_fields_survive_at_every_level(section: str, heading: str) -> None:
    value, kind = EXAMPLES[section, heading]
    count = len(places(value, json.loads(encode(value))))
    assert count >= 1
    for chosen in [*range(count), None]:
        plain = json.loads(encode(value))
        objects = places(value, plain)
        for index, target in enumerate(objects):
            if chosen in (index, None):
                target["zzFuture"] = {"deep": [1, None, {"x": "y"}]}
                target["a strange `key` - at `$.x`"] = index
        newer = encode(plain)
        again = decode(newer, kind)
        assert encode(again) == newer
        assert isinstance(again, type(value))
        assert decode(encode(again), kind) == again
        assert encode(msgspec.structs.replace(again)) == newer


@pytest.mark.spec("M-4")
@pytest.mark.parametrize(("section", "heading"), EXAMPLES, ids=IDS)
def test_an_unknown_kind_is_refused_at_every_level(section: str, heading: str) -> None:
    value, kind = EXAMPLES[section, heading]
    for index, target in enumerate(places(value, json.loads(encode(value)))):
        if "kind" not in target:
            continue
        plain = json.loads(encode(value))
        places(value, plain)[index]["kind"] = "telepathy"
        for newer in (plain, {**plain, "zzFuture": 1}):
            with pytest.raises(
                AgentError, match=f"'telepathy' is not known to schema version {SCHEMA_VERSION}"
            ) as caught:
                decode(encode(newer), kind)
            assert caught.value.code == "UnknownKind"


def test_a_great_many_unknown_fields() -> None:
    part = '{"kind":"text","payload":{"text":"a","new":1},"x":1}'
    parts = ",".join([part] * 2000)
    body = f'{{"runId":"","role":"user","parts":[{parts}],"timestamp":""}}'.encode()
    message = decode(body, Message)
    assert encode(message) == body
    assert message.text == "a" * 2000


@pytest.mark.parametrize(("section", "heading"), EXAMPLES, ids=IDS)
def test_missing_and_wrong_fields_are_refused(section: str, heading: str) -> None:
    value, kind = EXAMPLES[section, heading]
    for index, target in enumerate(places(value, json.loads(encode(value)))):
        for key in target:
            plain = json.loads(encode(value))
            places(value, plain)[index][key] = [{"not": "this"}]
            try:
                again = decode(encode(plain), kind)
            except AgentError as error:
                assert error.code in ("InvalidMessage", "UnknownKind")  # noqa: PT017
            else:
                assert encode(again) == encode(plain)  # the field may hold any JSON
