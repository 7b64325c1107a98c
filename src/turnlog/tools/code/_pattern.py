"""Regular expressions whose time grows with the text alone.

A pattern comes from a model, and the one of the standard library can take for ever on a short line. This one
walks all alternatives at once and remembers each step, so a line costs its length. What that excludes
(references back, looking around) is refused in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_MOST_STEPS = 20_000
_MOST_STATES = 4_000
_MOST_REPEATS = 1_000
_FOUND = -1


class BadPattern(ValueError):
    """The pattern cannot be used; the message says why."""


@dataclass(frozen=True)
class _Chars:
    """Characters that one place may hold: singles, ranges, and kinds such as ``\\w``."""

    ranges: tuple[tuple[str, str], ...] = ()
    kinds: tuple[Callable[[str], bool], ...] = ()
    negated: bool = False

    def holds(self, char: str) -> bool:
        found = any(low <= char <= high for low, high in self.ranges) or any(k(char) for k in self.kinds)
        return found is not self.negated


@dataclass(frozen=True)
class _Place:
    """``^``, ``$``, ``\\b`` or ``\\B``."""

    kind: str


@dataclass(frozen=True)
class _Series:
    items: tuple[_Node, ...]


@dataclass(frozen=True)
class _Choice:
    items: tuple[_Node, ...]


@dataclass(frozen=True)
class _Repeat:
    item: _Node
    least: int
    most: int | None


_Node: TypeAlias = "_Chars | _Place | _Series | _Choice | _Repeat"


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _is_space(char: str) -> bool:
    return char.isspace()


def _is_digit(char: str) -> bool:
    return char.isdecimal()


_KINDS: dict[str, Callable[[str], bool]] = {"w": _is_word, "s": _is_space, "d": _is_digit}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_HEX = {"x": 2, "u": 4, "U": 8}
_SPECIAL = frozenset("\\.^$*+?{}[]()|")


class _Parser:
    def __init__(self, text: str, ignore_case: bool) -> None:
        self._text, self._at = text, 0
        self.ignore_case = ignore_case
        self._depth = 0

    def parse(self) -> _Node:
        if self._text.startswith("(?i)"):
            self.ignore_case, self._at = True, 4
        found = self._choice()
        if self._at < len(self._text):
            raise self._wrong("a ) without its (")
        return found

    def _wrong(self, what: str) -> BadPattern:
        return BadPattern(
            f"the pattern {self._text!r} has {what} at character {self._at + 1}; escape a character that is "
            "meant as itself with a backslash"
        )

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self, expected: str) -> str:
        char = self._peek()
        if not char:
            raise self._wrong(f"its end where {expected} was expected")
        self._at += 1
        return char

    def _choice(self) -> _Node:
        branches = [self._series()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._series())
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _series(self) -> _Node:
        items: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated(self._item()))
        return items[0] if len(items) == 1 else _Series(tuple(items))

    def _repeated(self, item: _Node) -> _Node:
        while True:
            match self._peek():
                case "*":
                    bounds = (0, None)
                case "+":
                    bounds = (1, None)
                case "?":
                    bounds = (0, 1)
                case "{" if (found := self._bounds()) is not None:
                    bounds = found
                case _:
                    return item
            self._at += 1
            if self._peek() == "?":  # as few as possible is no difference to whether it matches
                self._at += 1
            item = _Repeat(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}``, ``{,5}`` or ``{2,5}``; any other brace is a character. Ends before the }."""
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        digits = [part for part in (low, high) if part]
        if end < 0 or not digits or not all(part.isascii() and part.isdigit() for part in digits):
            return None
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            raise self._wrong(f"a repetition that is not between 0 and {_MOST_REPEATS}, least first,")
        self._at = end
        return least, most

    def _item(self) -> _Node:
        match char := self._next("a character"):
            case "(":
                return self._group()
            case "[":
                return self._set()
            case ".":
                return _Chars((("\n", "\n"),), negated=True)
            case "^" | "$":
                return _Place(char)
            case "*" | "+" | "?":
                self._at -= 1
                raise self._wrong(f"a {char} with nothing before it to repeat")
            case "\\":
                return self._escape()
            case _:
                return self._single(char)

    def _single(self, char: str) -> _Chars:
        if not self.ignore_case:
            return _Chars(((char, char),))
        return _Chars(tuple((each, each) for each in {char, *char.lower(), *char.upper()} if len(each) == 1))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > 100:
            raise self._wrong("more than 100 groups in one another")
        if self._peek() == "?":
            rest = self._text[self._at :]
            if rest.startswith("?:"):
                self._at += 2
            elif rest.startswith(("?P<", "?<")) and not rest.startswith(("?<=", "?<!")) and ">" in rest:
                self._at += rest.index(">") + 1
            else:
                raise self._wrong("a group of a kind that is not supported (looking ahead, behind or back)")
        found = self._choice()
        if self._next("a )") != ")":
            raise self._wrong("a group without its )")
        self._depth -= 1
        return found

    def _escape(self) -> _Node:
        char = self._next("a character behind the backslash")
        if char.lower() in _KINDS:
            return _Chars(kinds=(_KINDS[char.lower()],), negated=char.isupper())
        match char:
            case "b" | "B":
                return _Place("\\" + char)
            case "A":
                return _Place("^")
            case "Z" | "z":
                return _Place("$")
            case _ if char.isdigit() and char != "0":
                raise self._wrong(f"\\{char}, a reference back to a group, which is not supported,")
            case _:
                return self._single(self._escaped(char))

    def _escaped(self, char: str) -> str:
        if char in _HEX:
            digits = self._text[self._at : self._at + _HEX[char]]
            try:
                found = chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise self._wrong(f"\\{char} without its hexadecimal number") from None
            self._at += _HEX[char]
            return found
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise self._wrong(f"\\{char}, which has no meaning here,")
        return char

    def _set(self) -> _Chars:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[str, str]] = []
        kinds: list[Callable[[str], bool]] = []
        first = True
        while (char := self._next("the ] of a set")) != "]" or first:
            first = False
            low = self._in_set(char, kinds)
            if low is None:
                continue
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._in_set(self._next("the end of a range"), kinds)
                if end is None or end < low:
                    raise self._wrong("a range whose end comes before its beginning")
                high = end
            ranges.append((low, high))
        if self.ignore_case:
            ranges += [(low.lower(), high.lower()) for low, high in ranges if (low + high).isalpha()]
            ranges += [(low.upper(), high.upper()) for low, high in ranges if (low + high).isalpha()]
        return _Chars(tuple(ranges), tuple(kinds), negated)

    def _in_set(self, char: str, kinds: list[Callable[[str], bool]]) -> str | None:
        """One character of a set; None when it named a kind, which is then in ``kinds``."""
        if char != "\\":
            return char
        named = self._next("a character behind the backslash")
        if named.lower() not in _KINDS:
            return "\b" if named == "b" else self._escaped(named)
        kind = _KINDS[named.lower()]
        kinds.append((lambda char: not kind(char)) if named.isupper() else kind)
        return None


class Pattern:
    """Whether a line matches somewhere. Raises :class:`BadPattern` for a pattern that cannot be used."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        parser = _Parser(text, ignore_case)
        try:
            tree = parser.parse()
        except RecursionError:
            raise BadPattern("the pattern is nested too deeply") from None
        self.literal = "" if parser.ignore_case else _longest_literal(tree)
        """Text that every match holds: a file without it need not be looked at."""
        self._is_literal = not parser.ignore_case and not _SPECIAL.intersection(text)
        self._steps: list[tuple[_Chars | _Place | None, list[int]]] = []
        self._begin = self._add(tree, self._new(None))
        self._forget()

    # ── from the tree to steps: (what is taken on the way, where it leads); step 0 is the end ──

    def _new(self, taken: _Chars | _Place | None, *to: int) -> int:
        if len(self._steps) >= _MOST_STEPS:
            raise BadPattern("the pattern is too large: its repetitions unfold to too many steps")
        self._steps.append((taken, list(to)))
        return len(self._steps) - 1

    def _add(self, node: _Node, then: int) -> int:
        match node:
            case _Chars() | _Place():
                return self._new(node, then)
            case _Series():
                for item in reversed(node.items):
                    then = self._add(item, then)
                return then
            case _Choice():
                return self._new(None, *(self._add(item, then) for item in node.items))
            case _Repeat():
                return self._add_repeat(node, then)

    def _add_repeat(self, node: _Repeat, then: int) -> int:
        if node.most is None:
            again = self._new(None, then)
            self._steps[again][1].append(self._add(node.item, again))
            then = again
        else:
            after = then
            for _ in range(node.most - node.least):
                then = self._new(None, after, self._add(node.item, then))
        for _ in range(node.least):
            then = self._add(node.item, then)
        return then

    # ── matching ──

    def _forget(self) -> None:
        self._numbers: dict[tuple[frozenset[int], str], int] = {}
        self._states: list[tuple[frozenset[int], str]] = []
        self._moves: list[dict[str, int]] = []
        self._start = self._number(frozenset({self._begin}), "")

    def _number(self, places: frozenset[int], before: str) -> int:
        """The state of being at these steps, behind a character of that kind: "", "w" or "-"."""
        key = (places, before)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._states)
            self._states.append(key)
            self._moves.append({})
        return found

    def search(self, line: str) -> bool:
        if self._is_literal:
            return self.literal in line
        if self.literal and self.literal not in line:
            return False
        state, moves = self._start, self._moves
        for char in line:
            to = moves[state].get(char)
            if to is None:
                to = self._move(state, char)
                moves = self._moves
            if to == _FOUND:
                return True
            state = to
        return self._move(state, "") == _FOUND

    def _move(self, state: int, char: str) -> int:
        """Take ``char``, or the end of the line (""), from a state; remembered."""
        known = self._moves[state].get(char)
        if known is not None:
            return known
        places, before = self._states[state]
        kind = "" if not char else "w" if _is_word(char) else "-"
        reached = self._reach(places, before, kind)
        if 0 in reached:
            self._moves[state][char] = _FOUND
            return _FOUND
        after: set[int] = {self._begin}  # a match may begin behind every character
        for place in reached:
            taken, to = self._steps[place]
            if char and isinstance(taken, _Chars) and taken.holds(char):
                after.update(to)
        if len(self._states) >= _MOST_STATES:
            self._forget()
            return self._number(frozenset(after), kind)
        to = self._number(frozenset(after), kind)
        self._moves[state][char] = to
        return to

    def _reach(self, places: frozenset[int], before: str, kind: str) -> set[int]:
        """The steps that are reached without taking a character, between one of kind ``before`` and one of
        ``kind``."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place in found:
                continue
            found.add(place)
            taken, to = self._steps[place]
            if taken is None or (isinstance(taken, _Place) and _holds_at(taken.kind, before, kind)):
                left.extend(to)
        return found


def _holds_at(place: str, before: str, after: str) -> bool:
    match place:
        case "^":
            return before == ""
        case "$":
            return after == ""
        case _:
            return ((before == "w") != (after == "w")) is (place == "\\b")


def _longest_literal(node: _Node) -> str:
    """The longest text that is in every match, as far as it is easily seen."""
    best = run = ""
    for item in node.items if isinstance(node, _Series) else (node,):
        if isinstance(item, _Chars) and not item.kinds and not item.negated and len(item.ranges) == 1:
            low, high = item.ranges[0]
            run = run + low if low == high else ""
        elif isinstance(item, _Series) or (isinstance(item, _Repeat) and item.least):
            inner = _longest_literal(item if isinstance(item, _Series) else item.item)
            best, run = max(best, inner, key=len), ""
        elif not isinstance(item, _Place):
            run = ""
        best = max(best, run, key=len)
    return best
