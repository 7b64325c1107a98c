"""Words of a conversation as HTML, and as Markdown that a viewer can show without running any of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from html import escape
from typing import Any, cast
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

_SCHEMES = ("http", "https", "mailto")
_LONGEST = 100_000  # characters of one text that is looked through for marks; a longer one is shown as it is
_LONGEST_CODE = 20_000
_LANGUAGES = frozenset(
    re.findall(
        r"\w+",
        "bash c cpp css csharp diff go html ini java javascript js json jsx kotlin php py python rb ruby rs "
        "rust sh shell sql swift toml ts tsx typescript xml yaml yml",
    )
)
_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})(?![`~])[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_CODE_SPAN = re.compile(r"(?<!`)(`{1,3})(?!`)(?:.{1,1000}?)(?<!`)\1(?!`)")
_LIVE = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")

# Control characters are shown as their pictures, so that nothing moves a cursor, renames a window or writes
# to a clipboard; nor may text be turned around (202A…, 2066…). Line breaks and tabs stay.
_PICTURES: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def neutral(text: str) -> str:
    """``text`` without the characters that change how a terminal or a page shows the others."""
    return text.replace("\r\n", "\n").translate(_PICTURES)


def prose_html(text: str) -> str:
    """A model's Markdown as HTML: lists, links, tables, code. No markup of its own gets through, links lead
    to safe schemes alone, and images stay at their addresses."""
    if len(text) > _LONGEST:
        return _words(text)
    return f'<div class="prose" dir="auto">{_reader().render(text)}</div>'


def plain_html(text: str) -> str:
    """What a user wrote, as it was written, but for fenced code."""
    parts: list[str] = []
    position = 0
    for found in _FENCE.finditer(text):
        parts += [_words(text[position : found.start()]), code_html(found.group(2).rstrip("\n"))]
        position = found.end()
    return "".join([*parts, _words(text[position:])])


def code_html(text: str, language: str = "") -> str:
    return f"<pre>{_highlight(text, language) or escape(text)}</pre>"


def _words(text: str) -> str:
    text = text.strip("\n")
    return f'<div class="text" dir="auto">{escape(text)}</div>' if text.strip() else ""


def _highlight(text: str, language: str) -> str:
    """``text`` with its words in classes; empty where the language is not one that is known to be quick."""
    name = language.strip().lower()
    if name not in _LANGUAGES or len(text) > _LONGEST_CODE:
        return ""
    from pygments import formatters, highlight, lexers

    make, find = cast("Any", formatters).HtmlFormatter, cast("Any", lexers).get_lexer_by_name
    return str(highlight(text, find(name), make(nowrap=True))).rstrip("\n")


@cache
def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    reader.enable(["table", "strikethrough"])
    reader.validateLink = is_safe_link  # pyright: ignore[reportAttributeAccessIssue]
    rules: dict[str, Callable[..., str]] = cast("Any", reader.renderer).rules
    rules["fence"] = rules["code_block"] = _fence
    rules["image"] = _image
    rules["link_open"] = _link
    for name, tag in _TAGS.items():
        rules[name] = partial(_always, tag)
    return reader


_TAGS = {
    "table_open": '<div class="wide"><table>',
    "table_close": "</table></div>",
    "heading_open": "<h2>",
    "heading_close": "</h2>",
}


def _always(tag: str, *_: object) -> str:
    return tag


def is_safe_link(url: str) -> bool:
    """Whether a link may be followed from a page: to the web or to a mail address, nothing else."""
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def _fence(tokens: Sequence[Token], at: int, *_: object) -> str:
    return code_html(tokens[at].content.rstrip("\n"), tokens[at].info.partition(" ")[0])


def _image(tokens: Sequence[Token], at: int, *_: object) -> str:
    return escape(f"[image: {tokens[at].content or 'no title'}, {tokens[at].attrs.get('src', '')}]")


def _link(tokens: Sequence[Token], at: int, *_: object) -> str:
    href = escape(str(tokens[at].attrs.get("href", "")))
    return f'<a href="{href}" rel="noopener noreferrer nofollow">'


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
