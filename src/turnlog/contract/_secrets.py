"""Live secrets, and how they are cut out of what is written.

Only a value that cannot be mistaken for a word is guarded: one that looks random, or starts as the keys of a
known service do. A conversation is masked by the secrets of its own agent and store and by those of the
process; errors and debug logs, which the operator of the process reads, by every one that is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, cast

MASK = "[secret]"
HELD_SECRET = (
    "its arguments held a secret of this agent, which neither the log nor a watcher may see; leave it out, "
    "or let the tool read it from its own configuration"
)
"""Why a call is not run: what is masked in the log would not be what the model asked for."""

_MIN_LENGTH = 16
_PREFIXES = re.compile(
    r"(sk|pk|rk|hf|gsk|npm|whsec|r8|tgp|dop_v1|shp(at|ca|pa|ss)|gh[pousr]|github_pat)_|(sk|xai|nvapi|pplx|glpat|pypi"
    r"|xox[abeoprs]|fw|csk|lsv2)-|AKIA|ASIA|AIza|ABSK|eyJ|ya29\.|SG\."
)
"""How the keys of well-known services begin."""
_NAMES = re.compile(
    r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PWD|CREDENTIAL)S?(_|$)|(KEY|TOKEN|SECRET|PASSWORD)$"
)
_HEADER_WORDS = ("auth", "key", "token", "secret", "cookie", "credential", "signature")
_NO_NAMES = frozenset({"PWD", "OLDPWD"})
_GLUED = re.compile(
    r"(\\[abfnrtv0]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|\x1b\[[0-9;]*[A-Za-z])\Z"
)
"""Spellings of white space, punctuation and colour that end in a letter or digit."""
_GLUE_LENGTH = 16
_HEAD = 3

_process: tuple[str, ...] = ()
_known: tuple[str, ...] = ()
"""What to look for, longest first: a key that holds another key is masked whole. Replaced, never changed:
threads read them while another adds to them."""


class Secret:
    """A value that shows itself only when asked: ``secret.reveal()``. It is in no error and no debug log; the
    conversations of an agent are kept free of it when the agent, its model or its store owns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        global _known  # noqa: PLW0603
        self._value = value
        _known = _with(_known, value)

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__


def is_guardable(value: str) -> bool:
    """Whether ``value`` can be cut out of a text without harm to ordinary words: at least 16 characters that
    look random, or that begin as the keys of a known service do."""
    if len(value) < _MIN_LENGTH:
        return False
    if _PREFIXES.match(value):
        return True
    # In words the kind of character rarely changes from one letter to the next; in random text often.
    pairs = [(_class_of(a), _class_of(b)) for a, b in pairwise(value)]
    inner = [pair for pair in pairs if "other" not in pair]
    changes = sum(a != b for a, b in inner)
    return changes >= len(inner) * (0.25 if any(map(str.isdigit, value)) else 0.4) and changes >= 3


def _class_of(char: str) -> str:
    if char.isdigit():
        return "digit"
    return "upper" if char.isupper() else "lower" if char.isalpha() else "other"


def guard(value: str) -> bool:
    """Cut ``value`` out of every conversation of this process; False when it is too plain to be guarded."""
    global _process, _known
    _process, _known = _with(_process, value), _with(_known, value)
    return is_guardable(value)


def guard_environment(environment: Mapping[str, str]) -> None:
    """Guard the values of variables that are named as secrets are, and the passwords of addresses."""
    for name, value in environment.items():
        if is_secret_name(name):
            guard(value.strip())
        elif "://" in value and (found := re.search(r"://[^/@:\s]*:([^/@\s]+)@", value)):
            guard(found[1])


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, as ``GITHUB_TOKEN`` and ``PGPASSWORD`` do."""
    return _NAMES.search(name.upper()) is not None and name.upper() not in _NO_NAMES


def is_secret_header(name: str) -> bool:
    return any(word in name.lower() for word in _HEADER_WORDS)


def secret_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The secrets in headers that are named as secrets are: ``Bearer KEY`` holds KEY, a cookie holds several.
    Each under the name of its header; one that is too plain is among them, so that it can be warned of."""
    found: dict[str, str] = {}
    for name, value in (headers or {}).items():
        if is_secret_header(name):
            words = re.split(r"[\s;,=]+", value)
            for place, word in enumerate([word for word in words if is_guardable(word)] or words[-1:]):
                found[name if not place else f"{name} ({place + 1})"] = word
    return found


def _with(forms: tuple[str, ...], value: str) -> tuple[str, ...]:
    """``forms`` and every spelling of ``value``: as it is, as JSON and as URLs write it."""
    if not is_guardable(value):
        return forms
    from urllib.parse import quote  # only who has secrets pays for its import

    new = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    new |= {quote(value, errors="replace"), quote(value, safe="", errors="replace")}
    if new <= set(forms):
        return forms
    return tuple(sorted({*forms, *new}, key=lambda form: (-len(form), form)))


def owned_secrets(owner: object) -> Mapping[str, str]:
    """``owner.secrets`` of a model, a store or a toolset: by a name that people know, each value."""
    found = getattr(owner, "secrets", None)
    return cast("Mapping[str, str]", found) if isinstance(found, Mapping) else {}


class Secrets:
    """What one owner's conversations must not hold: its own secrets, and those of the process."""

    __slots__ = ("_bytes", "_forms", "_own", "_seen", "_start")

    def __init__(self, values: Iterable[str] = ()) -> None:
        own: tuple[str, ...] = ()
        for value in values:
            own = _with(own, value)
        self._own = own
        self._seen: tuple[str, ...] | None = None
        self._forms: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()
        self._start: re.Pattern[str] | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """Every spelling to look for, the longest first."""
        if self._seen is not _process:
            self._seen = _process
            merged = {*self._own, *self._seen}
            self._forms = tuple(sorted(merged, key=lambda form: (-len(form), form)))
            self._bytes = tuple(form.encode("utf-8", "surrogatepass") for form in self._forms)
            self._start = None
        return self._forms

    def may_be_in(self, body: bytes) -> bool:
        """Whether the JSON ``body`` may hold one; False is certain."""
        return bool(self.forms) and any(form in body for form in self._bytes)

    def scrub(self, text: str) -> str:
        return _masked(text, self.forms)

    def scrub_json(self, value: Any) -> Any:
        """``value`` with every text in it masked, keys too."""
        return _each_text(value, self.scrub)

    @property
    def begins(self) -> re.Pattern[str]:
        """Finds where one may begin in a text: its first characters, or as many as there are before the text
        ends. It is asked for every piece of a stream, so it looks at no more than these."""
        forms = self.forms
        if self._start is None:
            heads = sorted({form[:_HEAD] for form in forms})
            self._start = re.compile("|".join(map(_beginning, heads)) or r"(?!)")
        return self._start

    def is_cut(self, text: str) -> bool:
        """Whether ``text`` ends in the beginning of one."""
        found = self.begins.search(text)
        while found is not None:
            rest = text[found.start() :]
            if any(len(rest) < len(form) and form.startswith(rest) for form in self.forms):
                return True
            found = self.begins.search(text, found.start() + 1)
        return False


def _beginning(head: str) -> str:
    pattern = ""
    for char in reversed(head[1:]):
        pattern = rf"(?:\Z|{re.escape(char)}{pattern})"
    return re.escape(head[0]) + pattern


conversation: ContextVar[Secrets] = ContextVar("turnlog_secrets", default=Secrets())  # noqa: B039
"""The secrets of the conversation that this code works for. A tool's task has those of its agent."""


def scrub(text: str) -> str:
    """``text``, for an error or a debug log, with every known secret replaced by a mask."""
    return _masked(text, _known)


def scrub_json(value: Any) -> Any:
    return _each_text(value, scrub)


def _masked(text: str, forms: tuple[str, ...]) -> str:
    for form in forms:
        if form in text:
            text = _mask_whole(text, form)
    return text


def _mask_whole(text: str, form: str) -> str:
    """Mask ``form`` where it stands by itself, or beside itself, and not as part of a longer word."""
    kept: list[str] = []
    done = found = 0
    while (found := text.find(form, found)) >= 0:
        end = found + len(form)
        before = text[max(0, found - _GLUE_LENGTH) : found]
        starts = (kept and found == done) or not _joins(before[-1:], form[0]) or _GLUED.search(before)
        if starts and (text.startswith(form, end) or not _joins(form[-1], text[end : end + 1])):
            kept += (text[done:found], MASK)
            done = end
        found = end
    return "".join((*kept, text[done:]))


def _joins(left: str, right: str) -> bool:
    """Whether two characters side by side are one word's. Bytes read as Latin-1 are no letters here."""
    return left.isalnum() and right.isalnum() and left.isascii() and right.isascii()


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {_each_text(key, change): _each_text(item, change) for key, item in items}
        case list() | tuple():
            return [_each_text(item, change) for item in cast("list[Any]", value)]
        case _:
            return value
