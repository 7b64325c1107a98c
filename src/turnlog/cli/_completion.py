"""``completion``: scripts that let a shell complete a command line.

A script holds the commands, options and choices, so that a shell completes them without a process. Only the
names of sessions are asked for, with ``turnlog completion --sessions``, which the package answers itself
before click is loaded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import click

from ._app import app, check_session

Kind = Literal["flag", "text", "choice", "file", "folder", "session"]


@dataclass(frozen=True)
class Part:
    """An option or an argument: how it is written, what its value is, and what it does."""

    names: tuple[str, ...]
    kind: Kind
    values: tuple[str, ...]
    count: int
    """Words that it takes; -1: all that are left."""
    many: bool
    help: str


@dataclass(frozen=True)
class Place:
    """A command by the words that lead to it, and what may be written after them."""

    path: tuple[str, ...]
    help: str
    options: tuple[Part, ...]
    arguments: tuple[Part, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def taking(self) -> list[str]:
        """Names of the options that take the word after them."""
        return [name for option in self.options if option.count for name in option.names]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, sessions and files.

    \b
    bash: turnlog completion bash > ~/.local/share/bash-completion/completions/turnlog
    zsh:  turnlog completion zsh > ~/.zfunc/_turnlog, and in ~/.zshrc: fpath+=~/.zfunc; compinit
    fish: turnlog completion fish > ~/.config/fish/completions/turnlog.fish
    """
    places = list(places_of(app, ()))
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    click.echo(make(places), nl=False)


def places_of(command: click.Command, path: tuple[str, ...]) -> Iterator[Place]:
    """``command`` and the commands below it."""
    context = click.Context(command, info_name=path[-1] if path else "turnlog")
    parts = [_part_of(each) for each in command.get_params(context) if not getattr(each, "hidden", False)]
    below: list[click.Command] = []
    if isinstance(command, click.Group):
        found = [command.get_command(context, name) for name in command.list_commands(context)]
        below = [each for each in found if each is not None]
    yield Place(
        path,
        command.get_short_help_str(100),
        tuple(part for part in parts if part.names[0].startswith("-")),
        tuple(part for part in parts if not part.names[0].startswith("-")),
        tuple((each.name or "", each.get_short_help_str(100)) for each in below),
    )
    for each in below:
        yield from places_of(each, (*path, each.name or ""))


def _part_of(given: click.Parameter) -> Part:
    kind, values = _kind_of(given)
    if isinstance(given, click.Option):
        names = (*given.opts, *given.secondary_opts)
        words = (given.help or "").removesuffix(".")
        return Part(names, kind, values, 0 if kind == "flag" else given.nargs, given.multiple, words)
    return Part((given.name or "",), kind, values, given.nargs, given.nargs < 0, given.human_readable_name)


def _kind_of(given: click.Parameter) -> tuple[Kind, tuple[str, ...]]:
    if isinstance(given, click.Option) and (given.is_flag or given.count):
        return "flag", ()
    if given.callback is check_session:
        return "session", ()
    match given.type:
        case click.Choice():
            return "choice", tuple(map(str, given.type.choices))
        case click.Path():
            return ("file" if given.type.file_okay else "folder"), ()
        case click.File():
            return "file", ()
        case _:
            return "text", ()


# ── bash ──

_BASH = r"""# Completion of turnlog for bash 4.4 and newer.
_turnlog_place() {
  commands= options= kinds=()
  case $1 in
@places@
  esac
}

_turnlog_value() {
  kind= values= count=0
  case $1 in
@values@
  esac
}

_turnlog_sessions() {
  local typed=$1 quote= head= id about abouts=() i
  case $typed in
    \'* | \"*) quote=${typed:0:1} typed=${typed:1} ;;
    *)
      # Readline replaces what stands behind the last of its breaks.
      for i in : =; do
        if [[ $COMP_WORDBREAKS == *$i* && $typed == *$i* && ${typed%"$i"*}$i == "$head"* ]]; then
          head=${typed%"$i"*}$i
        fi
      done
      typed=${typed//\\/}
      ;;
  esac
  while IFS= read -r -d '' id && IFS= read -r -d '' about; do
    [[ -z $ended && $id == -* ]] && continue
    [[ -n $quote && $id == *[[:cntrl:]]* ]] && continue
    case $quote in
      \') id=${id//\'/\'\\\'\'} ;;
      \") id=${id//\\/\\\\} id=${id//\"/\\\"} id=${id//\$/\\\$} id=${id//\`/\\\`} ;;
      *) printf -v id %q "$id" && id=${id#"$head"} ;;
    esac
    COMPREPLY+=("$id")
    abouts+=("$about")
  done < <("${words[0]/#\~/$HOME}" completion --sessions ${store:+"--store=$store"} -- "$typed" 2>/dev/null)
  if ((COMP_TYPE == 63 || COMP_TYPE == 33)) && ((${#COMPREPLY[@]} > 1)); then # they are listed, not inserted
    for i in "${!COMPREPLY[@]}"; do
      [[ -n ${abouts[i]} ]] && COMPREPLY[i]+="  (${abouts[i]})"
    done
  fi
}

_turnlog() {
  local words=() line=${COMP_LINE:0:COMP_POINT} path= store= ended= option= place=0 takes=0 word cur i
  local commands options kinds kind values count
  COMPREPLY=()
  # Bash breaks words at : and = too; here they are put together again.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((i == 0)) || [[ $line == [[:space:]]* ]]; then
      line=${line#"${line%%[![:space:]]*}"}
      words+=("")
    fi
    ((i == COMP_CWORD)) && word=$line
    words[${#words[@]} - 1]+=$word
    line=${line:${#word}}
  done
  cur=${words[${#words[@]} - 1]}
  _turnlog_place "$path"
  for word in "${words[@]:1:${#words[@]}-2}"; do
    if ((takes > 0)); then
      ((takes--))
      [[ $option == --store ]] && store=${word//[\"\'\\]/}
    elif [[ -n $ended || $word != -?* ]]; then
      if [[ -n $word && " $commands " == *" $word "* ]]; then
        path=${path:+$path }$word
        _turnlog_place "$path"
      else
        ((place++))
      fi
    elif [[ $word == -- ]]; then
      ended=yes
    elif [[ $word == --*=* ]]; then
      [[ $word == --store=* ]] && store=${word#*=} && store=${store//[\"\'\\]/}
    else
      _turnlog_value "$path $word"
      option=$word takes=$count
    fi
  done
  if ((takes == 0)); then
    kind= values=
    if [[ -z $ended && $cur == --*=* ]]; then
      _turnlog_value "$path ${cur%%=*}"
      cur=${cur#*=}
    elif [[ -z $ended && $cur == -* ]]; then
      kind=choice values=$options
    elif [[ -n $commands ]]; then
      kind=choice values=$commands
    else
      kind=${kinds[place]}
      [[ $kind == choice:* ]] && values=${kind#choice:} kind=choice
    fi
  fi
  case $kind in
    choice) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
    file) compopt -o default ;;
    folder) compopt -o dirnames ;;
    session) _turnlog_sessions "$cur" ;;
  esac
}

complete -F _turnlog turnlog
"""


def _bash(places: list[Place]) -> str:
    found: list[str] = []
    values: list[str] = []
    for place in places:
        path = " ".join(place.path)
        options = " ".join(name for option in place.options for name in option.names)
        commands = " ".join(name for name, _ in place.commands)
        kinds = [
            f"choice:{' '.join(part.values)}" if part.kind == "choice" else part.kind
            for part in place.arguments
        ]
        found.append(
            f"    {_quote(path)}) commands={_quote(commands)} options={_quote(options)} "
            f"kinds=({' '.join(map(_quote, kinds))}) ;;"
        )
        for option in place.options:
            if option.count:
                names = " | ".join(_quote(f"{path} {name}") for name in option.names)
                chosen = f" values={_quote(' '.join(option.values))}" if option.values else ""
                values.append(f"    {names}) kind={option.kind}{chosen} count={option.count} ;;")
    return _BASH.replace("@places@", "\n".join(found)).replace("@values@", "\n".join(values))


def _quote(text: str) -> str:
    return shlex.quote(text)


# ── zsh ──

_ZSH = r"""#compdef turnlog
# Completion of turnlog for zsh.
_turnlog_sessions() {
  local -a found ids told store
  local i expl
  for ((i = 1; i < CURRENT; i++)); do
    case $words[i] in
      --store) store=(--store=${(Q)words[i + 1]}) ;;
      --store=*) store=(--store=${(Q)words[i]#--store=}) ;;
    esac
  done
  found=("${(@0)$($program completion --sessions $store -- 2>/dev/null)}")
  for ((i = 1; i < $#found; i += 2)); do
    [[ -z $found[i] || $found[i] == -* ]] && continue
    ids+=("$found[i]")
    told+=("${(V)found[i]}${found[i + 1]:+  ($found[i + 1])}")
  done
  (( $#ids )) || return 1
  _wanted -V sessions expl session compadd -l -d told -a ids
}

@places@
_turnlog() {
  local program=${words[1]/#\~/$HOME}
  _turnlog_at
}

if [[ $funcstack[1] == _turnlog ]]; then
  _turnlog "$@"
else
  compdef _turnlog turnlog
fi
"""


def _zsh(places: list[Place]) -> str:
    return _ZSH.replace("@places@", "".join(map(_zsh_place, places)))


def _zsh_place(place: Place) -> str:
    function = "_".join(("_turnlog_at", *place.path))
    specs = [spec for option in place.options for spec in _zsh_option(option)]
    if not place.commands:
        for number, part in enumerate(place.arguments, 1):
            specs.append(f"{'*' if part.count < 0 else number}:{_zsh_text(part.help)}:{_zsh_action(part)}")
        lines = " \\\n    ".join(map(_quote, specs))
        return f"{function}() {{\n  _arguments -s -S \\\n    {lines}\n}}\n\n"
    specs += ["1:command:->command", "*:: :->rest"]
    lines = " \\\n    ".join(map(_quote, specs))
    named = " ".join(_quote(f"{name}:{help}") for name, help in place.commands)
    calls = "\n".join(f"        {name}) {function}_{name} ;;" for name, _ in place.commands)
    return f"""{function}() {{
  local -a line commands
  local state state_descr context
  local -A opt_args
  _arguments -C \\
    {lines} && return
  commands=({named})
  case $state in
    command) _describe command commands ;;
    rest)
      case $line[1] in
{calls}
      esac
      ;;
  esac
}}

"""


def _zsh_option(option: Part) -> Iterator[str]:
    others = "*" if option.many else f"({' '.join(option.names)})"
    for name in option.names:
        sign = "" if not option.count else "=" if name.startswith("--") else "+"
        value = f":value:{_zsh_action(option)}" * option.count
        yield f"{others}{name}{sign}[{_zsh_text(option.help)}]{value}"


def _zsh_action(part: Part) -> str:
    return {
        "choice": f"({' '.join(part.values)})",
        "file": "_files",
        "folder": "_files -/",
        "session": "_turnlog_sessions",
    }.get(part.kind, "()")


def _zsh_text(text: str) -> str:
    return "".join(f"\\{each}" if each in "\\[]:" else each for each in text)


# ── fish ──

_FISH = r"""# Completion of turnlog for fish.
function __turnlog_below
    switch "$argv"
@below@
    end
end

function __turnlog_taking
    switch "$argv"
@taking@
    end
end

# Whether the words before the cursor lead to the command $argv[1], with $argv[2] arguments behind it.
function __turnlog_at
    set -l path
    set -l place 0
    set -l skip 0
    set -l ended 0
    set -l below (__turnlog_below)
    set -l taking (__turnlog_taking)
    for word in (commandline -opc)[2..]
        if test $skip -gt 0
            set skip (math $skip - 1)
        else if test $ended -eq 0; and string match -q -- '-?*' $word
            test "$word" = --; and set ended 1
            set skip (count (string match -- $word $taking))
        else if contains -- $word $below
            set -a path $word
            set below (__turnlog_below $path)
            set taking (__turnlog_taking $path)
        else
            set place (math $place + 1)
        end
    end
    test "$path" = "$argv[1]"; or return 1
    test (count $argv) -lt 2; or test $place -eq $argv[2]
end

function __turnlog_sessions
    set -l words (commandline -opc)
    set -l store
    for i in (seq (count $words))
        switch $words[$i]
            case --store
                set store --store=$words[(math $i + 1)]
            case '--store=*'
                set store $words[$i]
        end
    end
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l found ($program completion --sessions $store -- 2>/dev/null | string split0)
    for i in (seq 1 2 (count $found))
        # A line of this list is a name; one that has lines itself cannot be in it.
        if not string match -qr '^-|[\n\t]' -- $found[$i]
            printf '%s\t%s\n' $found[$i] $found[(math $i + 1)]
        end
    end
end

complete -c turnlog -f
"""


def _fish(places: list[Place]) -> str:
    below: list[str] = []
    taking: list[str] = []
    lines: list[str] = []
    for place in places:
        path = " ".join(place.path)
        case = f"        case {_fish_text(path)}\n            printf '%s\\n' "
        if place.commands:
            below.append(case + " ".join(name for name, _ in place.commands))
        twice = [name for part in place.options for name in part.names * part.count]
        if twice:
            taking.append(case + " ".join(twice))
        at = f"__turnlog_at {_fish_text(path)}"
        for name, help in place.commands:
            lines.append(f"complete -c turnlog -n {_fish_text(at + ' 0')} -a {name} -d {_fish_text(help)}")
        for option in place.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" {_fish_value(option)}" if option.count else ""
            lines.append(
                f"complete -c turnlog -n {_fish_text(at)} {names}{value} -d {_fish_text(option.help)}"
            )
        for number, part in enumerate(place.arguments):
            if part.kind != "text":
                lines.append(
                    f"complete -c turnlog -n {_fish_text(f'{at} {number}')} {_fish_value(part, '-f')}"
                )
    script = _FISH.replace("@below@", "\n".join(below)).replace("@taking@", "\n".join(taking))
    return script + "\n".join(lines) + "\n"


def _fish_value(part: Part, exclusive: str = "-x") -> str:
    match part.kind:
        case "choice":
            return f"{exclusive} -a {_fish_text(' '.join(part.values))}"
        case "session":
            return f"{exclusive} -a '(__turnlog_sessions)'"
        case "folder":
            return f"{exclusive} -a '(__fish_complete_directories)'"
        case "file":
            return "-F" if exclusive == "-f" else "-r -F"
        case _:
            return exclusive


def _fish_text(text: str) -> str:
    """Fish reads a backslash in single quotes, unlike other shells."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
