"""Words of a conversation as Markdown that a viewer can show without running any of it."""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it import MarkdownIt

_LONGEST = 100_000  # characters of one text that is looked through for marks; a longer one is shown as it is
_CODE_SPAN = re.compile(r"(?<!`)(`{1,3})(?!`)(?:.{1,1000}?)(?<!`)\1(?!`)")
_LIVE = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")

# Control characters are shown as their pictures, so that nothing moves a cursor, renames a window or writes
# to a clipboard; nor may text be turned around (202A…, 2066…). Line breaks and tabs stay.
PICTURES: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def neutral(text: str) -> str:
    """``text`` without the characters that change how a terminal or a page shows the others."""
    return text.replace("\r\n", "\n").translate(PICTURES)


def safe_markdown(text: str) -> str:
    """``text`` as Markdown that says the same: its marks stay, its HTML is shown instead of run, and its
    images become links, so that looking at the page asks nobody for anything."""
    text = neutral(text)
    if not _LIVE.search(text):
        return text
    made = _outside_code(text, lambda words: _LIVE.sub(lambda found: "\\" + found[0], words))
    return made if len(text) <= _LONGEST and _is_dead(made) else fenced(text)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    lines = text.split("\n")
    code: set[int] = set()
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block") and token.map:
            code |= set(range(*token.map))
    return "\n".join(
        line if number in code else _outside_spans(line, change) for number, line in enumerate(lines)
    )


def _outside_spans(line: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    position = 0
    for found in _CODE_SPAN.finditer(line):
        parts += [change(line[position : found.start()]), found[0]]
        position = found.end()
    return "".join([*parts, change(line[position:])])


def _is_dead(text: str) -> bool:
    """Whether a viewer that lets HTML through would find none, and no image."""
    for token in MarkdownIt("commonmark").parse(text):
        kinds = [token.type, *(child.type for child in token.children or ())]
        if any(kind in ("html_block", "html_inline", "image") for kind in kinds):
            return False
    return True


def fenced(text: str, language: str = "") -> str:
    """A code block that ``text`` cannot end early."""
    ticks = max((len(found) for found in re.findall(r"`{3,}", text)), default=2) + 1
    fence = "`" * max(ticks, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def code_span(text: str) -> str:
    """Inline code that ``text`` cannot end early."""
    ticks = "`" * (max((len(found) for found in re.findall(r"`+", text)), default=0) + 1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{room}{text}{room}{ticks}"
