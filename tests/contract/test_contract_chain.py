"""Sealing: hashes find every change, memory is what the log says, a purge keeps the chain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import META, payloads
from turnlog.contract import (
    ENTRY_KINDS,
    AgentError,
    Custom,
    Entry,
    EntryPayload,
    ModelInput,
    Sealed,
    SystemPrompt,
    Text,
    TextPart,
    content_digest,
    decode,
    digest,
    encode,
    expected_hash,
    kind_of,
    read_envelope,
    seal,
    user_message,
)
from turnlog.contract.entries import ENTRY_TYPES, PAYLOAD_KINDS


def put(
    payload: EntryPayload, previous: Sealed | None = None, *, run_id: str | None = "run_1", **options: Any
) -> Sealed:
    seq = previous.entry.seq + 1 if previous else 1
    return seal(
        payload,
        id=f"entry_{seq:06d}",
        previous_id=previous.entry.id if previous else None,
        previous_hash=previous.entry.hash if previous else "",
        session_id="s1",
        seq=seq,
        timestamp="2026-01-01T00:00:00.000Z",
        run_id=run_id,
        **options,
    )


def is_sound(body: bytes, previous: str = "") -> bool:
    """What a verifier does with one stored entry."""
    try:
        envelope = read_envelope(body)
        decode(body, Entry)
    except AgentError:
        return False
    return envelope.hash == expected_hash(envelope, previous)


CUSTOM = put(Custom(name="note", data={"text": "é\n", "n": 1.5}), meta={"trace_id": "abc"})


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(payloads(), st.none() | META), min_size=1, max_size=4))
def test_a_chain_of_anything_verifies(items: list[tuple[EntryPayload, dict[str, Any] | None]]) -> None:
    previous: Sealed | None = None
    for payload, meta in items:
        sealed = put(payload, previous, meta=meta)
        assert decode(sealed.stored.body, Entry) == sealed.entry
        assert encode(sealed.entry) == sealed.stored.body
        assert sealed.stored[:3] == (sealed.entry.seq, sealed.entry.id, sealed.entry.kind)
        assert is_sound(sealed.stored.body, previous.entry.hash if previous else "")
        assert not is_sound(sealed.stored.body, "another past")
        previous = sealed


@pytest.mark.spec("H-5")
def test_no_byte_can_be_changed() -> None:
    body = CUSTOM.stored.body
    assert is_sound(body)
    for position in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[position] ^= 1 << bit
            assert not is_sound(bytes(damaged)), (position, bit, bytes(damaged))


@pytest.mark.spec("H-5")
def test_no_byte_can_be_left_out_or_added() -> None:
    body = CUSTOM.stored.body
    for position in range(len(body)):
        assert not is_sound(body[:position] + body[position + 1 :])
        assert not is_sound(body[:position])
    for position in range(len(body) + 1):
        assert not is_sound(body[:position] + b"x" + body[position:])


@pytest.mark.spec("H-5")
@pytest.mark.parametrize(
    "change",
    [
        {"runId": ""},
        {"runId": None},
        {"parentId": ""},
        {"note": "added by hand"},
        {"meta": {}},
        {"kind": "runtime_init"},
        {"seq": 2},
        {"timestamp": "2027-01-01T00:00:00.000Z"},
        {"sessionId": "s2"},
        {"payload": {"name": "note", "data": {}}},
        {"purgedDigest": "0" * 64},
        {"id": "entry_000001\nentry_000002"},
    ],
)
def test_no_field_can_be_changed_added_or_taken_away(change: dict[str, Any]) -> None:
    plain = json.loads(CUSTOM.stored.body)
    changed = {key: value for key, value in {**plain, **change}.items() if value is not None}
    assert not is_sound(json.dumps(changed).encode())
    for key in plain:
        assert not is_sound(
            json.dumps({name: value for name, value in plain.items() if name != key}).encode()
        )


@pytest.mark.spec("H-5")
def test_absent_and_empty_are_different() -> None:
    without, empty = put(SystemPrompt(text="a"), run_id=None), put(SystemPrompt(text="a"), run_id="")
    assert without.entry.hash != empty.entry.hash
    assert b"runId" not in without.stored.body


def test_fields_of_a_newer_writer_count() -> None:
    """A newer writer hashes its fields by the same rule; an older reader can then verify them."""
    from turnlog.contract import chain_hash

    plain = json.loads(CUSTOM.stored.body)
    plain["tags"] = ["a"]
    envelope = read_envelope(json.dumps(plain, separators=(",", ":")).encode())
    newer = chain_hash(
        "",
        id=envelope.id,
        parent_id=envelope.parent_id,
        session_id=envelope.session_id,
        seq=envelope.seq,
        kind=envelope.kind,
        timestamp=envelope.timestamp,
        run_id=envelope.run_id,
        payload_digest=digest(bytes(envelope.payload)),
        meta_digest=digest(bytes(envelope.meta)),
        extra={"tags": b'["a"]'},
    )
    assert expected_hash(envelope, "") == newer
    assert newer != CUSTOM.entry.hash


@pytest.mark.spec("H-5", "H-9")
@pytest.mark.parametrize("meta", [None, {"trace_id": "abc"}])
def test_a_purged_entry_keeps_the_chain(meta: dict[str, Any] | None) -> None:
    sealed = put(Custom(name="note", data={"secret": "x"}), meta=meta)
    plain = json.loads(sealed.stored.body)
    plain["purgedDigest"] = content_digest(read_envelope(sealed.stored.body))
    plain["payload"] = {"name": "note", "data": {}}
    plain.pop("meta", None)
    body = json.dumps(plain, separators=(",", ":")).encode()
    assert b"secret" not in body
    assert is_sound(body)
    assert b"abc" not in body


def test_what_cannot_be_read_again_is_never_written() -> None:
    wrong = ModelInput(message=user_message([TextPart(payload=Text(text=5))]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(AgentError, match="a model_input entry could not be read again") as caught:
        put(wrong)
    assert caught.value.code == "InvalidEntry"
    with pytest.raises(AgentError, match="not finite"):
        put(Custom(name="a", data={"x": float("nan")}))
    with pytest.raises(AgentError, match="cannot be written as JSON"):
        put(Custom(name="a", data={"x": object()}))
    with pytest.raises(AgentError, match="custom entry: meta key"):
        put(Custom(name="a", data={}), meta={"Not Snake": 1})
    with pytest.raises(AgentError, match="MetaTooLarge"):
        put(Custom(name="a", data={}), meta={"a": "x" * 3000})
    with pytest.raises(AgentError, match="cannot be written as JSON"):
        put(Custom(name="a", data={}), run_id="\ud800")


def test_memory_is_what_the_log_says() -> None:
    data: dict[Any, Any] = {"pair": (1, 2), 5: "five"}
    sealed = put(Custom(name="a", data=data))
    assert sealed.entry.payload == Custom(name="a", data={"pair": [1, 2], "5": "five"})
    data["pair"] = "changed later"
    assert sealed.entry == decode(sealed.stored.body, Entry)


def test_every_kind_has_a_payload_and_an_envelope() -> None:
    assert tuple(ENTRY_TYPES) == ENTRY_KINDS
    assert sorted(PAYLOAD_KINDS.values()) == sorted(ENTRY_KINDS)
    for kind, cls in ENTRY_TYPES.items():
        assert cls.kind == kind
    with pytest.raises(TypeError, match="str is not an entry payload"):
        kind_of("text")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"kind":1}', b"\xff\xfe", b'{"a":' * 3000])
def test_what_is_no_entry_is_corrupt(body: bytes) -> None:
    with pytest.raises(AgentError) as caught:
        read_envelope(body)
    assert caught.value.code == "SessionCorrupt"
