"""docs/command-line.md says what the command does."""

from __future__ import annotations

import re

from cli.shell import Shell
from doc_pages import page, table

PAGE = page("docs/command-line.md")


def test_the_table_of_commands_is_the_help(shell: Shell) -> None:
    listed = re.findall(r"^  (\w+) +(.+)$", shell.ok("--help").out.partition("Commands:")[2], re.M)
    assert table(PAGE, "command") == [[f"`{name}`", words] for name, words in listed]


def test_every_option_in_the_text_exists(shell: Shell) -> None:
    known = "".join(shell.ok(command, "--help").out for command in ("run", "map", "show", "answer", "import"))
    for option in set(re.findall(r"--[a-z][a-z-]+", re.sub(r"`turnlog COMMAND --help`", "", PAGE))):
        assert option in known, option
