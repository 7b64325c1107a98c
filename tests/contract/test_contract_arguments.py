"""Tool arguments are read as strictly as what runs on them deserves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from strategies import JSON_OBJECTS
from turnlog.contract import encode, parse_arguments


@given(JSON_OBJECTS)
def test_what_json_writes_is_read(value: dict[str, Any]) -> None:
    for raw in (json.dumps(value), json.dumps(value, ensure_ascii=False), encode(value).decode()):
        assert parse_arguments(raw).arguments == value
        assert parse_arguments(raw).error is None


@pytest.mark.parametrize("raw", ["", " ", "\n"])
def test_no_arguments_are_an_empty_object_with_a_warning(raw: str) -> None:
    parsed = parse_arguments(raw)
    assert (parsed.arguments, parsed.error) == ({}, None)
    assert parsed.warning


@pytest.mark.spec("M-4")
@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "/safe", "path": "/etc"}',
        '{"a": {"b": 1, "b": 1}}',
        '[{"a": 1, "a": 2}]',
        '{"a": 1, "\\u0061": 2}',
    ],
)
def test_duplicate_keys_are_refused(raw: str) -> None:
    parsed = parse_arguments(raw)
    assert parsed.arguments is None
    assert "appears twice" in (parsed.error or "")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('{"a": 1', "Expecting ',' delimiter"),
        ('{"a": 1}}', "Extra data"),
        ("{'a': 1}", "property name enclosed in double quotes"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": "\\ud800"}', "unpaired surrogate"),
        ('{"\\udc00": 1}', "unpaired surrogate"),
        ("[1]", "expected a JSON object, found an array"),
        ('"text"', "found text"),
        ("5", "found a number"),
        ("true", "found a boolean"),
        ("null", "found null"),
        ("{" * 100_000, ""),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nest"),
        ('{"a":' * 201 + "1" + "}" * 201, "deeper than 200"),
        ('{"a": ' + "9" * 5000 + "}", ""),
        ("{}\ufeff", "Extra data"),
    ],
)
def test_what_does_not_parse_says_why(raw: str, why: str) -> None:
    parsed = parse_arguments(raw)
    assert parsed.arguments is None
    assert parsed.error
    assert why in parsed.error


def test_large_integers_stay_exact() -> None:
    assert parse_arguments('{"id": 12345678901234567890123}').arguments == {"id": 12345678901234567890123}
