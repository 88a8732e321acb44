"""The commands in the order people do the work, an example of each, and what a mistyped one may have meant."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import NoReturn

GROUPS: dict[str, tuple[str, ...]] = {
    "prepare": (
        *("methods", "params", "doctor", "phantom", "ingest", "split", "cache", "guard", "divide", "init", "advise"),
    ),
    "run": ("watch", "federate", "features", "align", "evaluate"),
    "look": ("status", "audit", "probe", "membership", "track", "report", "rank"),
    "take home": ("export", "predict"),
    "repeat published studies": ("classical", "figure2"),
    "maintain": ("completion", "schema"),
}
"""Heading -> commands."""
MORE = "more"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "methods": ("fdamed methods", "fdamed methods --json"),
    "params": ("fdamed params --config config/chexpert.yaml",),
    "doctor": (
        "fdamed doctor --config config/chexpert.yaml",
        "fdamed doctor --config config/mimic.yaml --cluster --json",
    ),
    "phantom": ("fdamed phantom --config config/config.yaml --sheet phantoms.png",),
    "ingest": ("fdamed ingest --config config/config.yaml",),
    "split": ("fdamed split --config config/config.yaml",),
    "cache": ("fdamed cache --config config/config.yaml --client edema --workers 4",),
    "guard": ("fdamed guard --config config/config.yaml",),
    "divide": ("fdamed divide --config config/fashion_mnist.yaml",),
    "init": ("fdamed init --config config/config.yaml --seed 0",),
    "advise": ("fdamed advise --config config/config.yaml --target edema --json",),
    "watch": ("fdamed watch -- --workflow-profile profiles/slurm --configfile config/chexpert.yaml",),
    "federate": (
        "fdamed federate --config config/config.yaml --run gp --target edema --seed 0",
        "fdamed federate --config config/config.yaml --runs fedavg/edema/0 gp/edema/0",
    ),
    "features": ("fdamed features --config config/config.yaml --client edema --target edema --seed 0",),
    "align": ("fdamed align --config config/config.yaml config/classical/demo.yaml --run tca --target edema --seed 0",),
    "evaluate": ("fdamed evaluate --config config/config.yaml --run gp --target edema --client edema --seeds 0 1 2",),
    "status": ("fdamed status --config config/config.yaml", "fdamed status --config config/config.yaml --json"),
    "audit": ("fdamed audit --config config/config.yaml --target edema --json",),
    "probe": ("fdamed probe --config config/config.yaml --target edema",),
    "membership": ("fdamed membership --config config/config.yaml --client edema",),
    "track": ("fdamed track --config config/config.yaml",),
    "report": ("fdamed report --config config/config.yaml",),
    "rank": ("fdamed rank results/chexpert results/mimic --out ranks",),
    "export": (
        "fdamed export results/demo/runs/gp/edema/0 --out edema_model",
        "fdamed export --config config/config.yaml --run gp --target edema --seed 0 --out gp_edema_0",
    ),
    "predict": (
        "fdamed predict --model edema_model new/film.dcm more_films/ > scores.csv",
        "fdamed predict --model edema_model 'archive/**/*.dcm' --json --out scores.json",
    ),
    "classical": ("fdamed classical office_caltech/ --methods tca coral --out table.csv",),
    "figure2": ("fdamed figure2 --small --out figure2/",),
    "completion": (
        'eval "$(fdamed completion bash)"',
        "fdamed completion fish > ~/.config/fish/completions/fdamed.fish",
    ),
    "schema": ("fdamed schema",),
}
"""Command -> how it is called; every line is parsed by a test."""


def overview(commands: Mapping[str, str], description: str) -> str:
    """What `fdamed --help` shows: all commands by heading."""
    width = max(60, min(120, shutil.get_terminal_size().columns))
    indent = 4 + max(map(len, commands)) + 2
    out = ["usage: fdamed [-h] [-V] COMMAND ...", "", textwrap.fill(description, width)]
    for heading, names in grouped(commands).items():
        out += ["", f"{heading}:"]
        for name in names:
            lines = textwrap.wrap(commands[name], width - indent)
            out.append(f"    {name:<{indent - 4}}{lines[0]}")
            out += [" " * indent + line for line in lines[1:]]
    options = (
        ("-h, --help", "show this, or with a command its options and examples"),
        ("-V, --version", "say which fdamed"),
    )
    out += ["", "options:", *(f"    {name:<{max(indent - 4, 15)}}{what}" for name, what in options)]
    told = "`snakemake --cores 2` runs the whole study; `fdamed COMMAND --help` explains one step, with an example."
    return "\n".join([*out, "", *textwrap.wrap(told, width), ""])


def grouped(commands: Mapping[str, str]) -> dict[str, list[str]]:
    """Heading -> the commands that there are; those without one come last."""
    placed = {heading: [name for name in names if name in commands] for heading, names in GROUPS.items()}
    known = {name for names in placed.values() for name in names}
    placed[MORE] = [name for name in commands if name not in known]
    return {heading: names for heading, names in placed.items() if names}


def epilog(command: str) -> str:
    """The examples of one command, one a line."""
    lines = EXAMPLES.get(command, ())
    return f"example{'s' if len(lines) > 1 else ''}:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors have three lines, the last of them a remedy."""

    words: Sequence[str] = ()
    """What was typed."""
    commands: Mapping[str, str] = {}
    """The commands and what they do, at the top parser alone."""

    def format_help(self) -> str:
        return overview(self.commands, self.description or "") if self.commands else super().format_help()

    def error(self, message: str) -> NoReturn:
        fix = self.remedy() or f"`{self.prog} --help` shows {'all commands' if self.commands else 'the options'}."
        print(f"error: {self._shorter(message)}\nwhere: {self.prog}\nto do: {fix}", file=sys.stderr)
        example = "" if self.commands else next(iter(EXAMPLES.get(self.prog.split()[-1], ())), "")
        if example:
            print(f"for example: {example}", file=sys.stderr)
        sys.exit(2)

    def remedy(self) -> str:
        """What a misspelt command or option may have meant."""
        if self.commands:
            command = next((w for w in self.words if not w.startswith("-")), None)
            if command is not None and command not in self.commands:
                return _meant(command, list(self.commands))
            return ""
        known = [name for action in self._actions for name in action.option_strings]
        ended = self.words.index("--") if "--" in self.words else len(self.words)
        typed = [w.split("=", 1)[0] for w in self.words[:ended] if w.startswith("--") and len(w) > 2]
        stray = [w for w in typed if not any(name.startswith(w) for name in known)]
        return next((told for w in stray if (told := _meant(w, known))), "")

    def _shorter(self, message: str) -> str:
        if self.commands and "invalid choice" in message:
            command = next((w for w in self.words if not w.startswith("-")), "")
            return f"there is no command {command!r}"
        if self.commands and "required" in message:
            return "a command is missing"
        return message


def _meant(word: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean `{near[0]}` instead of `{word}`?" if near else ""
