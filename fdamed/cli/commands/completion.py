"""fdamed completion: what makes a shell complete commands and options, generated from the commands themselves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILES = ("FILE", "FOLDER", "RUN_FOLDER", "ROOT", "DIR", "PNG", "IMAGE", "folder", "TABLE.csv")
"""Names of values that are files or folders."""


@dataclass(frozen=True)
class Option:
    """One option of a command: its long name, what it does, and what may come after it."""

    name: str
    help: str
    takes: str
    """`nothing`, `file`, `word` (one of `choices`) or `text`."""
    choices: tuple[str, ...] = ()


Commands = Mapping[str, tuple[str, Sequence[Option], str]]
"""Command -> what it does, its options, and what stands without an option: takes of its positional, or `nothing`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def run(arguments: argparse.Namespace) -> None:
    known = {name: described(parser) for name, parser in arguments.parsers().items()}
    print({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](known), end="")


def described(parser: argparse.ArgumentParser) -> tuple[str, list[Option], str]:
    """What a command does, its options, and what it takes without one."""
    options, free = [], "nothing"
    for action in parser._actions:
        takes = _takes(action)
        choices = tuple(map(str, action.choices or ()))
        if not action.option_strings:
            free = "word:" + " ".join(choices) if choices else takes
            continue
        name = action.option_strings[-1]
        options.append(Option(name, (action.help or "").replace("%%", "%"), takes, choices))
    return (parser.description or "").rstrip("."), options, free


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "nothing"
    if action.choices:
        return "word"
    named = action.metavar if isinstance(action.metavar, str) else action.dest
    return "file" if named in FILES or action.type is Path else "text"


def bash(known: Commands) -> str:
    names = " ".join(known)
    lines = [
        '# bash completion of fdamed:  eval "$(fdamed completion bash)"',
        "_fdamed() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]}",
        "    COMPREPLY=()",
        "    if (( COMP_CWORD == 1 )); then",
        "        compopt +o default 2> /dev/null",
        f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$cur"))',
        "        return",
        "    fi",
        '    case "$cmd $prev" in',
    ]
    for name, (_, options, _free) in known.items():
        words = [o for o in options if o.takes == "word"]
        texts = [o for o in options if o.takes == "text"]
        for option in words:
            lines.append(f'        "{name} {option.name}")')
            lines.append(f'            COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$cur")); return ;;')
        if texts:
            lines.append("        " + "|".join(f'"{name} {o.name}"' for o in texts) + ")")
            lines.append("            compopt +o default 2> /dev/null; return ;;")
    lines += ["    esac", '    case "$cmd" in']
    for name, (_, options, free) in known.items():
        given = " ".join(o.name for o in options)
        lines.append(f"        {name})")
        lines.append(f'            if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W "{given}" -- "$cur"))')
        if free.startswith("word:"):
            lines.append(f'            else COMPREPLY=($(compgen -W "{free[5:]}" -- "$cur"))')
        lines.append("            fi ;;")
    return "\n".join([*lines, "    esac", "}", "complete -o default -F _fdamed fdamed", ""])


def zsh(known: Commands) -> str:
    lines = [
        "#compdef fdamed",
        '# zsh completion of fdamed:  eval "$(fdamed completion zsh)"  after compinit',
        "_fdamed() {",
        "    local -a commands",
        "    commands=(",
        *(f"        {_quoted(name + ':' + summary.replace(':', ','))}" for name, (summary, _, _) in known.items()),
        "    )",
        "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "    local command=$words[2]",
        "    shift words; (( CURRENT-- ))",
        "    case $command in",
    ]
    for name, (_, options, free) in known.items():
        specs = [_zsh_option(o) for o in options]
        if free.startswith("word:"):
            specs.append(_quoted(f"1:value:({free[5:]})"))
        elif free == "file":
            specs.append(_quoted("*:file:_files"))
        lines.append(f"        {name}) _arguments {' '.join(specs)} ;;")
    end = ['if [[ $funcstack[1] == _fdamed ]]; then _fdamed "$@"; else compdef _fdamed fdamed; fi', ""]
    return "\n".join([*lines, "    esac", "}", *end])


def _zsh_option(option: Option) -> str:
    told = option.help.replace("[", "(").replace("]", ")").replace(":", ",")
    after = {"nothing": "", "file": ":file:_files", "text": ":value: "}.get(option.takes)
    return _quoted(f"{option.name}[{told}]{f':value:({chr(32).join(option.choices)})' if after is None else after}")


def fish(known: Commands) -> str:
    here = "__fish_seen_subcommand_from"
    lines = ["# fish completion of fdamed:  fdamed completion fish | source", "complete -c fdamed -e"]
    for name, (summary, _, _) in known.items():
        lines.append(f"complete -c fdamed -f -n __fish_use_subcommand -a {name} -d {_quoted(summary)}")
    lines.append("complete -c fdamed -f -n __fish_use_subcommand -l version -d 'say which fdamed'")
    for name, (_, options, free) in known.items():
        begin = f"complete -c fdamed -n '{here} {name}'"
        if free.startswith("word:"):
            lines.append(f"{begin} -f -a {_quoted(free[5:])}")
        elif free == "nothing":
            lines.append(f"{begin} -f")
        for o in options:
            after = {"nothing": "", "file": " -r -F", "text": " -x"}.get(
                o.takes, f" -x -a {_quoted(' '.join(o.choices))}"
            )
            lines.append(f"{begin} -l {o.name.lstrip('-')}{after} -d {_quoted(o.help)}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
