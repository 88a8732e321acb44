"""Options that several commands share, and what they select.

A command declares its arguments as plain data, `OPTIONS = {"--config": "", "--out": {"type": "path", ...}}`, so that
the parser need not import it: the settings of argparse, or only a help text, added to those of a shared option.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.core.disclosure import vague_reasons
from fdamed.core.environment import cores
from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    from fdamed.config.study import Config

DEFAULT = "config/config.yaml"
SHARED: dict[str, dict[str, Any]] = {
    "--config": {
        "nargs": "+",
        "metavar": "FILE",
        "default": [DEFAULT],
        "help": f"configuration files; later ones override earlier ones (default: $FDAMED_CONFIG or {DEFAULT})",
    },
    "--variant": {"metavar": "NAME", "help": "one of the configuration's `variants`"},
    "--run": {"dest": "run_name", "required": True, "metavar": "NAME", "help": "a key of `runs`"},
    "--target": {"required": True, "metavar": "CLIENT", "help": "the target client"},
    "--client": {"required": True, "metavar": "CLIENT"},
    "--seed": {"type": "int", "required": True},
    "--threads": {"type": "int", "default": 1, "help": "PyTorch threads (default: 1); results depend on it"},
    "--workers": {"type": "int", "help": "decoding processes (default: one for each available core)"},
    "--json": {"action": "store_true", "help": "print JSON on standard output"},
}
LEFT_OUT, BEFORE = "left out at ", "before training: "
"""How the lines begin that `fdamed run` shows."""
TYPES = {"int": int, "float": float, "path": Path}


def add_options(parser: argparse.ArgumentParser, options: Mapping[str, str | dict[str, Any]]) -> None:
    """Add the arguments of a command; `--variant` comes with `--config`."""
    set_by_workflow = os.environ.get("FDAMED_CONFIG")
    for name, own in options.items():
        more = own if isinstance(own, dict) else {"help": own} if own else {}
        settings = SHARED.get(name, {}) | more
        if "type" in settings:
            settings["type"] = TYPES[settings["type"]]
        if name == "--config" and set_by_workflow:
            settings |= {"default": [set_by_workflow]}
        parser.add_argument(name, **settings)
        if name == "--config":
            parser.add_argument("--variant", **SHARED["--variant"])


def read_config(arguments: argparse.Namespace) -> Config:
    from fdamed.config.loader import load

    return load(*arguments.config, variant=arguments.variant)


def with_config(text: str, arguments: argparse.Namespace, takes_config: Collection[str]) -> str:
    """The text, with this command line's configuration in the commands that it names, so that they can be pasted."""
    given = getattr(arguments, "config", None) or [DEFAULT]
    options = f" --config {shlex.join(given)}" if given != [DEFAULT] else ""
    options += f" --variant {shlex.quote(arguments.variant)}" if getattr(arguments, "variant", None) else ""

    def complete(found: re.Match[str]) -> str:
        plain = found[2] not in takes_config or "--config" in found[0]
        return found[0] if plain else f"`fdamed {found[1]}{options}`"

    return re.sub(r"`fdamed (([\w-]+)[^`]*)`", complete, text) if options else text


def clients_of(arguments: argparse.Namespace, config: Config) -> tuple[str, ...]:
    """The client that was named, or all."""
    from fdamed.pipeline.selection import check_known

    if arguments.client is None:
        return tuple(config.split.clients)
    check_known("client", arguments.client, config.split.clients)
    return (str(arguments.client),)


def workers_of(arguments: argparse.Namespace) -> int:
    if arguments.workers is None:
        return cores()
    if arguments.workers < 1:
        raise FdamedError("--workers must be at least 1", "command line", "Omit it to use all cores.")
    return int(arguments.workers)


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


def print_left_out(where: str, counts: Mapping[str, int], smallest: int, hidden: bool = False) -> None:
    """One line about what a step left out, for whoever runs the study; without numbers where they are held back."""
    if shown := vague_reasons(counts, smallest, hidden):
        print(f"{LEFT_OUT}{where}: {shown}", flush=True)
