"""Which paths, hosts and commands a call names, and whether patterns cover them.

A rule that approves must cover all that a call names, and be sure of it; one that asks or denies fits as soon
as something may be covered. These rules read what a call says. What it can do is the sandbox's matter.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urlsplit

_PATH_NAMES = re.compile(
    r"(^|_)(path|paths|file|files|filename|folder|directory|dir|source|destination|cwd|root)$", re.IGNORECASE
)
_HOST_NAMES, _ANY_NAME = re.compile(r"^(host|hostname)$", re.IGNORECASE), re.compile("")
_COMMAND_NAMES = ("command", "commands", "cmd", "script")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>|;&()`\\]+", re.IGNORECASE)
_JOINTS = {"&&", "||", ";", "|"}
_BEYOND_READING = set("`$<>\n\r\\*?[]{}~!#")
"""What a shell turns into something else: a command with one of them is not what it seems to be."""


def cover_paths(patterns: Sequence[str], arguments: Mapping[str, Any], *, surely: bool) -> bool:
    """``surely``: every path that is named lies below the workspace and fits a pattern. Else: one may fit."""
    named = list(_named(arguments, _PATH_NAMES))
    if surely:
        return bool(named) and all(_lies_in(each, patterns) for each in named)
    # An absolute path may lead into the workspace: its last parts are looked at too.
    return any(_fits_path(tail, patterns) for each in named for tail in _tails(each))


def cover_hosts(patterns: Sequence[str], arguments: Mapping[str, Any], *, surely: bool) -> bool:
    """As for paths, for the hosts of the addresses that a call holds anywhere, and of ``host`` arguments."""
    hosts = [_host(url) for text in _named(arguments, _ANY_NAME) for url in _URL.findall(text)]
    hosts += [each.lower() for each in _named(arguments, _HOST_NAMES)]
    fitting = [any(fnmatchcase(host, pattern.lower()) for pattern in patterns) for host in hosts]
    return bool(fitting) and all(fitting) if surely else any(fitting)


def cover_commands(patterns: Sequence[str], arguments: Mapping[str, Any], *, surely: bool) -> bool:
    """``surely``: every command of the text is plain words, and fits a pattern. Else: the words of a pattern
    stand somewhere in it, in a quotation or behind ``sudo`` too."""
    wanted = [pattern.split() for pattern in patterns]
    found = list(_commands(arguments))
    if surely:
        plain = [_plain_commands(text) for text in found]
        return bool(plain) and all(
            each is not None and all(any(_fits_words(words, one) for one in wanted) for words in each)
            for each in plain
        )
    heads = [one[:-1] if one[-1:] == ["*"] else one for one in wanted]
    for text in found:
        words = [word.rsplit("/", 1)[-1] for word in re.split(r"[\s;|&()`'\"{}$<>=]+", text) if word]
        starts = range(len(words))
        # Whatever follows: an option more must not slip through.
        if any(_fits_words(words[start:], [*one, "*"]) for one in heads for start in starts):
            return True
    return False


def _named(value: object, wanted: re.Pattern[str], inside: bool = False) -> Iterator[str]:
    """The texts below the arguments whose names are wanted."""
    if isinstance(value, Mapping):
        for name, each in cast("Mapping[str, object]", value).items():
            yield from _named(each, wanted, inside or wanted.search(name) is not None)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from _named(each, wanted, inside)
    elif isinstance(value, str) and inside:
        yield value


def _commands(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if name.lower() in _COMMAND_NAMES:
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield shlex.join(map(str, cast("list[object]", value)))


def _plain_commands(text: str) -> list[list[str]] | None:
    """The commands of a shell line, as words; None when it does more than run them one after another."""
    if _BEYOND_READING & set(text):
        return None
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in _JOINTS:
                found.append([])
            elif set(word) <= set("&|;()"):
                return None  # in the background, or in a shell of its own
            else:
                found[-1].append(word)
    except ValueError:  # a quotation without an end
        return None
    if any(not words or "=" in words[0] for words in found):
        return None  # nothing to run, or a variable is set, which may change what runs
    return found


def _fits_words(words: Sequence[str], pattern: Sequence[str]) -> bool:
    """Word for word; ``*`` as the last one stands for all that follows, nothing too."""
    if pattern and pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(words) == len(pattern) and all(map(fnmatchcase, words, pattern))


def has_commands(arguments: Mapping[str, Any]) -> bool:
    return any(True for _ in _commands(arguments))


def _lies_in(path: str, patterns: Sequence[str]) -> bool:
    """Below the workspace, unless a pattern is itself absolute."""
    whole = posixpath.normpath(path)
    if whole == ".." or whole.startswith("../"):
        return False
    return _fits_path(path, [each for each in patterns if each.startswith("/") == whole.startswith("/")])


def _fits_path(path: str, patterns: Sequence[str]) -> bool:
    whole = posixpath.normpath(path)
    return any(re.fullmatch(_path_expression(pattern), whole) for pattern in patterns)


def _tails(path: str) -> Iterator[str]:
    parts = posixpath.normpath(path).split("/")
    yield posixpath.normpath(path)
    for start in range(1, len(parts)):
        yield "/".join(parts[start:])


def _path_expression(pattern: str) -> str:
    """``**`` stands for any folders, ``*`` and ``?`` for what is in one name, a folder for all in it."""
    whole = posixpath.normpath(pattern)
    if whole == ".":
        return ".*"
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", whole)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(piece, re.escape(piece)) for piece in pieces) + "(?:/.*)?"


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
