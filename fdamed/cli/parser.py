"""The commands as their files in commands/ describe themselves, their help, and the parser with its error messages."""

from __future__ import annotations

import argparse
import ast
import difflib
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from fdamed import __version__
from fdamed.cli.options import add_options

GROUPS = ("prepare", "run", "analyze", "use the model", "maintain")
"""Headings of the help, in the order of the work."""
VERBOSITY = {
    ("-q", "--quiet"): ("warning", "show only warnings and errors"),
    ("-v", "--verbose"): ("debug", "show debugging messages, too"),
}


@dataclass(frozen=True)
class Command:
    """What the file of a command says about it: docstring (summary, details, examples), GROUP, OPTIONS and PRIVATE."""

    name: str
    summary: str
    details: str
    examples: tuple[str, ...]
    group: str
    order: int
    options: dict[str, str | dict[str, Any]]
    """Argument -> its settings; see options.py."""
    private: bool
    """It reads tables and headers of patients: the text of an unexpected error may quote them."""

    @property
    def module(self) -> str:
        return f"fdamed.cli.commands.{self.name.replace('-', '_')}"


@cache
def commands() -> dict[str, Command]:
    """All commands in the order of the help. Their files are read, not imported: help must be quick."""
    files = Path(__file__).with_name("commands").glob("[a-z]*.py")
    found = sorted(map(_command, files), key=lambda c: (GROUPS.index(c.group), c.order))
    return {command.name: command for command in found}


def _command(file: Path) -> Command:
    tree = ast.parse(file.read_text(encoding="utf-8").split("\n\n\n", 1)[0])  # up to the first function or class
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    text, _, examples = (ast.get_docstring(tree) or "").partition("\n\nExamples:\n")
    summary, _, details = text.partition("\n\n")
    group, order = ast.literal_eval(values["GROUP"])
    return Command(
        file.stem.replace("_", "-"),
        summary.rstrip("."),
        details,
        tuple(line.strip() for line in examples.splitlines()),
        group,
        order,
        ast.literal_eval(values["OPTIONS"]),
        "PRIVATE" in values,
    )


class Parser(argparse.ArgumentParser):
    """Prints errors as three lines: what is wrong, where, and how to fix it."""

    words: Sequence[str] = ()
    """The command line."""
    command: Command | None = None
    """None: the top parser."""

    def format_help(self) -> str:
        return super().format_help() if self.command else self._overview()

    def _overview(self) -> str:
        """The output of `fdamed --help`: all commands by group."""
        width = max(60, min(120, shutil.get_terminal_size().columns))
        indent = 4 + max(map(len, commands())) + 2
        out = [
            "usage: fdamed [-h] [-V] [-q | -v] COMMAND ...",
            "",
            "Federated domain adaptation for chest radiographs.",
        ]
        rows = {f"{g}:": [(c.name, c.summary) for c in commands().values() if c.group == g] for g in GROUPS}
        rows["options:"] = [(", ".join(a.option_strings), a.help or "") for a in self._actions if a.option_strings]
        for heading, entries in rows.items():
            out += ["", heading]
            for name, text in entries:
                lines = textwrap.wrap(text, width - indent)
                out += [f"    {name:<{indent - 4}}{lines[0]}", *(" " * indent + line for line in lines[1:])]
        hint = "`snakemake --cores 2` runs a whole study; `fdamed COMMAND --help` explains one step, with examples."
        return "\n".join([*out, "", *textwrap.wrap(hint, width), ""])

    def error(self, message: str) -> NoReturn:
        if self.command:
            fix = self._similar_option() or f"`{self.prog} --help` shows the options."
            example = f"\nfor example: {self.command.examples[0]}"
        else:
            typed, example = next((word for word in self.words if not word.startswith("-")), ""), ""
            fix = f"`{self.prog} --help` shows all commands."
            if typed not in commands():
                fix = _similar(typed, commands()) or fix
            if "invalid choice" in message:
                message = f"there is no command {typed!r}"
            elif "required" in message:
                message = "no command was given"
        print(f"error: {message}\nwhere: {self.prog}\nto do: {fix}{example}", file=sys.stderr)
        sys.exit(2)

    def _similar_option(self) -> str:
        """The option that a misspelled one may stand for."""
        known = [name for action in self._actions for name in action.option_strings]
        end = self.words.index("--") if "--" in self.words else len(self.words)
        typed = [w.split("=", 1)[0] for w in self.words[:end] if w.startswith("--")]
        unknown = [w for w in typed if not any(name.startswith(w) for name in known)]
        return next((text for w in unknown if (text := _similar(w, known))), "")


def _similar(word: str, known: Sequence[str] | dict[str, Command]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f"Did you mean `{near[0]}` instead of `{word}`?" if near else ""


def build(words: Sequence[str]) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of each command; only the one in `words` has its options."""
    parser = Parser(prog="fdamed")
    parser.words = words
    parser.add_argument("-V", "--version", action="version", version=f"fdamed {__version__}", help="show the version")
    _add_verbosity(parser)
    chosen = next((word for word in words if word in commands()), None)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    out: dict[str, Parser] = {}
    for name, command in commands().items():
        out[name] = sub = subparsers.add_parser(
            name,
            help=command.summary,
            description="\n\n".join(filter(None, (f"{command.summary}.", command.details))),
            epilog="\n  ".join(("examples:", *command.examples)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.words, sub.command = words, command
        if name == chosen:
            _add_verbosity(sub)
            add_options(sub, command.options)
    return parser, out


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    for flags, (level, text) in VERBOSITY.items():
        settings = {"action": "store_const", "const": level, "default": argparse.SUPPRESS, "help": text}
        either.add_argument(*flags, dest="log_level", **settings)  # type: ignore[arg-type]
