"""Text that others wrote, made safe to show on a terminal."""

from __future__ import annotations

import json

from rich.markup import escape

from turnlog.contract import FileRefPart, ImagePart, TextPart, ToolResultPart, about_file, encode

# A model or a tool must not move the cursor, rename the window or hide what it did: control characters are
# shown as their pictures, line breaks and tabs stay. Nor may it turn text around (202A…, 2066…), so that one
# thing is read and another approved.
_PICTURES: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def plain(text: str) -> str:
    """``text`` without the characters that change how a terminal shows the others."""
    return text.translate(_PICTURES)


def plain_json(text: str) -> str:
    """JSON that says the same and moves no cursor: what ``plain`` shows as pictures is escaped."""
    return "".join(f"\\u{ord(char):04x}" if ord(char) in _PICTURES else char for char in text)


def safe(text: str) -> str:
    """``text`` as markup that says exactly ``text``."""
    return escape(plain(text))


def whole(value: object) -> str:
    """All of ``value``, as markup: what somebody is to decide on, to the last character."""
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def short(value: object, limit: int = 120) -> str:
    """``value`` on one line, as markup."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return safe(text if len(text) <= limit else text[: limit - 1] + "…")


def result_text(part: ToolResultPart) -> str:
    content = part.payload.content
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return encode(content).decode()
    return "\n".join(map(_shown, content))


def _shown(part: TextPart | ImagePart | FileRefPart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ImagePart():
            return f"({about_file(part.payload)})"
        case FileRefPart():
            return f"({about_file(part.payload)})"
