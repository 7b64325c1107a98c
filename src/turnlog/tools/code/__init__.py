"""The built-in tools: files and commands of the agent's runtime."""

from __future__ import annotations

from .._tool import Tool
from ._files import edit_file, list_folder, read_file, write_file
from ._search import glob_files, grep_files
from ._shell import Shell

__all__ = ["code_tools"]


def code_tools(*, writes: bool = True, commands: bool = True) -> list[Tool]:
    """read, list, glob and grep; write and edit unless ``writes`` is False; shell and its jobs unless
    ``commands`` is False. They need ``Agent(runtime=…)``, and do what its policy allows."""
    tools: list[Tool] = [read_file, list_folder, glob_files, grep_files]
    if writes:
        tools += [write_file, edit_file]
    return [*tools, *Shell().tools()] if commands else tools
