"""Errors: the table is the documented one, values come back, nothing leaks."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from pathlib import Path
from typing import get_args

import pytest

from spec_report import shared_folder
from turnlog.contract import (
    CODES,
    MASK,
    AgentError,
    ErrorInfo,
    Secret,
    decode,
    encode,
    guard,
    scrub,
)
from turnlog.contract.errors import Category

CATEGORIES = get_args(Category)


@pytest.mark.spec("E-1")
def test_the_codes_are_the_documented_ones() -> None:
    page = shared_folder() / "errors.md"
    if not page.is_file():
        pytest.skip(f"no error table at {page}")
    documented: dict[str, tuple[str, bool]] = {}
    # The page beside the specification, and the one on typed answers, which adds to it.
    own = Path(__file__).parents[2] / "docs" / "output.md"
    tables = own.read_text(encoding="utf-8").replace("`", "").splitlines()
    for line in [*tables, *page.read_text(encoding="utf-8").splitlines()]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 4 or cells[0] in ("category", "---") or cells[0] not in CATEGORIES:
            continue
        category, codes, retryable, _ = cells
        names = [name.strip() for name in codes.split(",")]
        for name in names:
            # "yes", "no (…)", or "ConcurrentWrite, Busy: yes" for those of the row
            listed = retryable.removesuffix(": yes").split(", ") if retryable.endswith(": yes") else []
            yes = retryable == "yes" or any(name.endswith(short) for short in listed)
            documented[name] = (category, yes)
    assert documented == {name: tuple(info) for name, info in CODES.items()}


@pytest.mark.spec("E-1")
@pytest.mark.parametrize("code", CODES)
def test_every_error_is_a_value_and_comes_back(code: str) -> None:
    error = AgentError(code, "what happened", meta={"retry_after": 2}, cause=ValueError("inner"))
    assert error.category == CODES[code].category
    assert error.retryable == CODES[code].retryable
    info = error.to_info()
    assert b"inner" not in encode(info)
    again = AgentError.from_info(decode(encode(info), ErrorInfo))
    assert (again.code, again.message, again.retryable, again.retry_after) == (
        code,
        "what happened",
        error.retryable,
        2.0,
    )
    assert isinstance(error.__cause__, ValueError)
    assert str(error) == f"{code}: what happened"


def test_errors_can_be_copied_and_sent_to_another_process() -> None:
    error = AgentError("ModelTimeout", "slow", retryable=False, meta={"a": 1})
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (again.code, again.message, again.retryable, again.meta) == (
            "ModelTimeout",
            "slow",
            False,
            {"a": 1},
        )
    assert repr(error) == "AgentError('ModelTimeout', 'slow', retryable=False)"


def test_an_unknown_code_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown error code 'Oops'"):
        AgentError("Oops", "x")
    newer = ErrorInfo(code="FromTheFuture", message="m", retryable=True, category="model")
    assert AgentError.from_info(newer).code == "ModelUnknownError"


def test_a_wait_that_is_no_number_is_none() -> None:
    assert AgentError("ModelTimeout", "x").retry_after is None
    assert AgentError("ModelTimeout", "x", meta={"retry_after": "soon"}).retry_after is None
    assert AgentError("ModelTimeout", "x", meta={"retry_after": 0}).retry_after == 0


# ── secrets ──


@pytest.mark.spec("E-3")
def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("sk-0123456789abcdef")
    assert secret.reveal() == "sk-0123456789abcdef"
    for shown in (str(secret), repr(secret), f"{secret}", f"{[secret]}", "%s" % secret):  # noqa: UP031
        assert "0123456789" not in shown
    assert bool(secret)
    assert not Secret("")
    with pytest.raises(AgentError, match="Secret"):
        encode(secret)


@pytest.mark.spec("E-3")
def test_guarded_values_are_cut_out_of_errors() -> None:
    guard("hx9Tr2-hunter2-Qz7")
    error = AgentError(
        "ModelAuthError",
        "the key hx9Tr2-hunter2-Qz7 was refused",
        meta={"header": "Bearer hx9Tr2-hunter2-Qz7", "more": [{"x": "hx9Tr2-hunter2-Qz7"}, 5]},
    )
    assert error.message == f"the key {MASK} was refused"
    assert "hx9Tr2-hunter2-Qz7" not in f"{error} {error!r} {error.meta} {error.args}"
    assert b"hx9Tr2-hunter2-Qz7" not in encode(error.to_info())
    assert error.meta["more"] == [{"x": MASK}, 5]


def test_short_values_do_not_shred_text() -> None:
    assert not guard("abc")
    assert not guard("")
    assert scrub("abc and more") == "abc and more"


def test_a_secret_inside_another_is_masked_whole() -> None:
    guard("sk-prefix-secret")
    guard("sk-prefix-secret-and-the-rest")
    assert scrub("<sk-prefix-secret-and-the-rest>") == f"<{MASK}>"
    assert scrub("<sk-prefix-secret>") == f"<{MASK}>"


@pytest.mark.spec("E-3")
def test_other_spellings_of_a_secret_are_masked_too() -> None:
    value = 'pä55W0rd/"qu0ted"+100%'
    guard(value)
    assert scrub(value) == MASK
    body = encode({"key": value}).decode()
    assert "qu0ted" not in scrub(body)
    assert "qu0ted" not in scrub('{"key": "p\\u00e455W0rd/\\"qu0ted\\"+100%"}')
    assert "qu0ted" not in scrub("https://x/?key=p%C3%A455W0rd%2F%22qu0ted%22%2B100%25")
    assert "qu0ted" not in scrub("https://x/p%C3%A455W0rd/%22qu0ted%22%2B100%25")


def test_guarding_while_others_scrub() -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                scrub("nothing to see here")
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(300):
        guard(f"sk-thread-secret-{number:04d}")
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert not re.search(r"sk-thread-secret-\d", scrub("a sk-thread-secret-0001 b sk-thread-secret-0299"))
