"""What a docstring says of a tool: its description, and one for each parameter."""

from __future__ import annotations

from typing import NamedTuple


class Docs(NamedTuple):
    description: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docs:
    """Google, NumPy and Sphinx styles; anything else is description."""
    if not text.strip():
        return Docs("", {})
    from docstring_parser import ParseError, parse

    try:
        found = parse(text)
    except ParseError:
        return Docs(text.strip(), {})
    parts = [part.strip() for part in (found.short_description, found.long_description) if part]
    for example in found.examples:
        body = "\n".join(part for part in (example.snippet, example.description) if part)
        parts.append(f"Example:\n{body}")
    returns = found.returns
    if returns is not None and returns.description:
        parts.append(f"{'Yields' if returns.is_generator else 'Returns'}: {_one_line(returns.description)}")
    parameters = {
        param.arg_name.lstrip("*"): _one_line(param.description)
        for param in found.params
        if param.description
    }
    return Docs("\n\n".join(parts), parameters)


def _one_line(text: str) -> str:
    return " ".join(text.split())
