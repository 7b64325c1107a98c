"""docs/command-line.md says what the command does."""

from __future__ import annotations

import re
from pathlib import Path

from cli.shell import Shell
from doc_pages import blocks, page, table
from turnlog.loop import Agent, load_config

PAGE = page("docs/command-line.md")


def test_the_table_of_commands_is_the_help(shell: Shell) -> None:
    listed = re.findall(r"^  (\w+) +(.+)$", shell.ok("--help").out.partition("Commands:")[2], re.M)
    assert table(PAGE, "command") == [[f"`{name}`", words] for name, words in listed]


def test_the_configuration_makes_an_agent(tmp_path: Path) -> None:
    (toml,) = blocks(PAGE, "toml")
    file = tmp_path / "agent.toml"
    file.write_text(toml.text)
    assert load_config(file).observability.debug == ["loop"]
    file.write_text(toml.text.partition("[observability]")[0])  # which would change the logs of this process
    config = load_config(file)
    assert (config.context.fold_at, config.loop.on_busy) == (80_000, "wait")
    assert Agent.from_config(config, store="memory:", recap=False).name == "clerk"


def test_every_option_in_the_text_exists(shell: Shell) -> None:
    known = shell.ok("run", "--help").out + shell.ok("show", "--help").out
    for option in set(re.findall(r"--[a-z][a-z-]+", re.sub(r"`turnlog COMMAND --help`", "", PAGE))):
        assert option in known, option
