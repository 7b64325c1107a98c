"""A model's Markdown as HTML: the few marks that models use most. No markup of its own gets through."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

# A page may be made of anything: every pattern here takes a time in proportion to the text.
_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})(?![`~])[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_BLOCK = re.compile(r"^(?:#{1,6}[ \t]+(\S.*)$|((?:[ \t]*\|.*\|[ \t]*(?:\n|\Z)){2,}))", re.MULTILINE)
_RULE = re.compile(r"^\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?$")
_CODE = re.compile(r"(?<!`)(`{1,3})(?!`)(.{1,1000}?)(?<!`)\1(?!`)")
_BOLD = re.compile(r"\*\*(?=\S)(.{1,400}?)(?<=\S)\*\*")
_CELLS = re.compile(r"(?<!\\)\|")


def prose_html(text: str) -> str:
    """Fenced code, headings, tables, bold and inline code; all else as it was written."""
    return _between_fences(text, _blocks)


def plain_html(text: str) -> str:
    """Text as it was written, but for fenced code."""
    return _between_fences(text, lambda words: _paragraphs(words, escape))


def code_html(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _between_fences(text: str, show: Callable[[str], str]) -> str:
    parts: list[str] = []
    position = 0
    for found in _FENCE.finditer(text):
        parts += [show(text[position : found.start()]), code_html(found.group(2).rstrip("\n"))]
        position = found.end()
    return "".join([*parts, show(text[position:])])


def _blocks(text: str) -> str:
    parts: list[str] = []
    position = 0
    for found in _BLOCK.finditer(text):
        heading, table = found.groups()
        made = f"<h2>{_inline(heading.rstrip('# '))}</h2>" if heading else _table(table)
        if made is None:
            continue
        parts += [_paragraphs(text[position : found.start()], _inline), made]
        position = found.end()
    return "".join([*parts, _paragraphs(text[position:], _inline)])


def _paragraphs(text: str, show: Callable[[str], str]) -> str:
    text = text.strip("\n")
    return f'<div class="text" dir="auto">{show(text)}</div>' if text.strip() else ""


def _table(text: str) -> str | None:
    lines = [line.strip() for line in text.strip().splitlines()]
    if not _RULE.match(lines[1]):
        return None
    head, *body = [_cells(line) for line in (lines[0], *lines[2:])]
    rows = "".join(f"<tr>{_row(cells, 'td')}</tr>" for cells in body)
    top = f"<thead><tr>{_row(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{rows}</tbody></table></div>'


def _cells(line: str) -> list[str]:
    inner = line.removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in _CELLS.split(inner)]


def _row(cells: list[str], tag: str) -> str:
    return "".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in cells)


def _inline(text: str) -> str:
    parts: list[str] = []
    position = 0
    for found in _CODE.finditer(text):
        parts.append(_bold(text[position : found.start()]))
        parts.append(f"<code>{escape(found.group(2))}</code>")
        position = found.end()
    parts.append(_bold(text[position:]))
    return "".join(parts)


def _bold(text: str) -> str:
    return _BOLD.sub(r"<strong>\1</strong>", escape(text))
