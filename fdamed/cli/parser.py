"""The commands as their files in commands/ describe themselves, their help, and the parser with its error messages."""

from __future__ import annotations

import argparse
import ast
import importlib
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

GROUPS = ("prepare", "run", "analyze", "use the model", "reproduce published studies", "maintain")
"""Headings of the help, in the order of the work."""
RENAMED = {
    "guard": "leakage",
    "divide": "partition",
    "align": "fit-classical",
    "classical": "classical-benchmark",
    "probe": "attributes",
    "params": "parameters",
    "figure2": "fedgp-figure2",
}
"""Old command -> new one."""


@dataclass(frozen=True)
class Command:
    """What the file of a command says about it: docstring (summary, details, examples), GROUP and PRIVATE."""

    name: str
    summary: str
    details: str
    examples: tuple[str, ...]
    group: str
    order: int
    private: bool
    """It reads tables and headers of patients: the text of an unexpected error may quote them."""

    @property
    def module(self) -> str:
        return f"fdamed.cli.commands.{self.name.replace('-', '_')}"


@cache
def commands() -> dict[str, Command]:
    """All commands in the order of the help. Their files are read, not imported: help must be quick."""
    files = Path(__file__).with_name("commands").glob("[a-z]*.py")
    found = sorted(map(_described, files), key=lambda c: (GROUPS.index(c.group), c.order))
    return {command.name: command for command in found}


def _described(file: Path) -> Command:
    tree = ast.parse(file.read_text(encoding="utf-8").split("\n\n\n", 1)[0])  # up to the first function or class
    said = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    group, order = ast.literal_eval(said["GROUP"])
    text, _, examples = (ast.get_docstring(tree) or "").partition("\n\nExamples:\n")
    summary, _, details = text.partition("\n\n")
    lines = tuple(line.strip() for line in examples.splitlines())
    name = file.stem.replace("_", "-")
    return Command(name, summary.rstrip("."), details, lines, group, order, "PRIVATE" in said)


def overview() -> str:
    """The output of `fdamed --help`: all commands by group."""
    width = max(60, min(120, shutil.get_terminal_size().columns))
    indent = 4 + max(map(len, commands())) + 2
    out = ["usage: fdamed [-h] [-V] [-q | -v] COMMAND ...", "", "Federated domain adaptation for chest radiographs."]
    rows = {f"{g}:": [(c.name, c.summary) for c in commands().values() if c.group == g] for g in GROUPS}
    rows["options:"] = [
        ("-h, --help", "show this help; after a command: its options and examples"),
        ("-V, --version", "show the version"),
        ("-q, --quiet", "show only warnings and errors"),
        ("-v, --verbose", "show debugging messages, too"),
    ]
    for heading, entries in rows.items():
        out += ["", heading]
        for name, text in entries:
            lines = textwrap.wrap(text, width - indent)
            out += [f"    {name:<{indent - 4}}{lines[0]}", *(" " * indent + line for line in lines[1:])]
    hint = "`snakemake --cores 2` runs a whole study; `fdamed COMMAND --help` explains one step, with examples."
    return "\n".join([*out, "", *textwrap.wrap(hint, width), ""])


class Parser(argparse.ArgumentParser):
    """Prints errors as three lines: what is wrong, where, and how to fix it."""

    words: Sequence[str] = ()
    """The command line."""
    command: Command | None = None
    """None: the top parser."""

    def format_help(self) -> str:
        return super().format_help() if self.command else overview()

    def error(self, message: str) -> NoReturn:
        fix = self._suggestion() or f"`{self.prog} --help` shows {'the options' if self.command else 'all commands'}."
        print(f"error: {self._shorter(message)}\nwhere: {self.prog}\nto do: {fix}", file=sys.stderr)
        if self.command:
            print(f"for example: {self.command.examples[0]}", file=sys.stderr)
        sys.exit(2)

    def _typed_command(self) -> str:
        return next((word for word in self.words if not word.startswith("-")), "")

    def _suggestion(self) -> str:
        """The command or option that a misspelled word may stand for."""
        if self.command is None:
            typed = self._typed_command()
            if typed in RENAMED:
                return f"`fdamed {typed}` is now `fdamed {RENAMED[typed]}`."
            return _nearest(typed, list(commands())) if typed not in commands() else ""
        known = [name for action in self._actions for name in action.option_strings]
        end = self.words.index("--") if "--" in self.words else len(self.words)
        typed_options = [w.split("=", 1)[0] for w in self.words[:end] if w.startswith("--") and len(w) > 2]
        unknown = [w for w in typed_options if not any(name.startswith(w) for name in known)]
        return next((text for w in unknown if (text := _nearest(w, known))), "")

    def _shorter(self, message: str) -> str:
        if self.command is None and "invalid choice" in message:
            return f"there is no command {self._typed_command()!r}"
        if self.command is None and "required" in message:
            return "no command was given"
        return message


def _nearest(word: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean `{near[0]}` instead of `{word}`?" if near else ""


def build(words: Sequence[str], version: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of each command. Only the module of the command in `words` is imported."""
    parser = Parser(prog="fdamed")
    parser.words = words
    parser.add_argument("-V", "--version", action="version", version=f"fdamed {version}", help="show the version")
    _add_verbosity(parser)
    chosen = next((word for word in words if word in commands()), None)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    out: dict[str, Parser] = {}
    for name, command in commands().items():
        about = "\n\n".join(filter(None, (f"{command.summary}.", command.details)))
        out[name] = sub = subparsers.add_parser(
            name,
            help=command.summary,
            description=about,
            epilog="\n  ".join(("examples:", *command.examples)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.words, sub.command = words, command
        if name == chosen:
            _add_verbosity(sub)
            module = importlib.import_module(command.module)
            module.add_arguments(sub)
            sub.set_defaults(execute=module.run)
    return parser, out


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    for flags, level, what in (
        (("-q", "--quiet"), "warning", "show only warnings and errors"),
        (("-v", "--verbose"), "debug", "show debugging messages, too"),
    ):
        either.add_argument(
            *flags, dest="log_level", action="store_const", const=level, default=argparse.SUPPRESS, help=what
        )
