"""Options that several commands share, and what they select."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    from fdamed.config.study import Config


def add_config(parser: argparse.ArgumentParser, required: bool = True) -> None:
    set_by_workflow = os.environ.get("FDAMED_CONFIG")
    parser.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        default=[set_by_workflow] if set_by_workflow else None,
        required=required and not set_by_workflow,
        help="configuration files; later ones override earlier ones (default: $FDAMED_CONFIG)",
    )
    parser.add_argument("--variant", metavar="NAME", help="one of the configuration's `variants`")


def add_run(parser: argparse.ArgumentParser, several_seeds: bool = False, required: bool = True) -> None:
    """The options that select one run, or the same run with several seeds."""
    parser.add_argument("--run", dest="run_name", required=required, metavar="NAME", help="a key of `runs`")
    parser.add_argument("--target", required=required, metavar="CLIENT", help="the target client")
    if several_seeds:
        parser.add_argument("--seeds", type=int, nargs="+", required=True, metavar="SEED")
    else:
        parser.add_argument("--seed", type=int, required=required)


def add_client(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--client", required=True, metavar="CLIENT", help=what)


def add_target(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--target", required=True, metavar="CLIENT", help=what)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads (default: 1); results depend on it")


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, help="decoding processes (default: one for each available core)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def read_config(arguments: argparse.Namespace) -> Config:
    from fdamed.config.loader import load

    return load(*arguments.config, variant=arguments.variant)


def workers_of(arguments: argparse.Namespace) -> int:
    if arguments.workers is None:
        return len(os.sched_getaffinity(0))
    if arguments.workers < 1:
        raise FdamedError("--workers must be at least 1", "command line", "Omit it to use all cores.")
    return int(arguments.workers)
