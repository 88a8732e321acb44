"""The command line: one subcommand a rule. Nothing heavy is imported before the subcommand is known."""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
import traceback
from collections.abc import Sequence

from fdamed import __version__
from fdamed.cli.parser import Parser, epilog
from fdamed.core.environment import secure
from fdamed.core.errors import FdamedError
from fdamed.core.signals import EXIT, Stopped

COMMANDS: dict[str, str] = {
    "watch": "run Snakemake on a cluster, again where an outage has left it hanging",
    "doctor": "tell what is wrong with the data and the machine before any job runs",
    "phantom": "write synthetic chest radiographs in a data set's real layout",
    "ingest": "raw tree -> index.parquet and rejects.csv",
    "split": "index -> one manifest a hospital, patient-disjoint",
    "cache": "one manifest -> images.npy, memory-mapped",
    "guard": "check that no patient and no copy of an image is in two splits",
    "divide": "public benchmark sets -> hospitals (instead of the five above)",
    "init": "seeded or pretrained starting weights",
    "advise": "tell before training which method, beta and sources promise most",
    "federate": "run one method for one target and one seed",
    "evaluate": "score one run at one hospital",
    "audit": "compare methods on the same patients and by subgroup, inside the target hospital",
    "probe": "tell how well sex, age and race can be read from the models' features, inside the target hospital",
    "membership": "tell whether the models give away which patients of one hospital trained them, inside that hospital",
    "features": "embed one hospital's images with a frozen or trained backbone; they stay there",
    "align": "run one classical row on the features that hospitals release",
    "status": "tell what of a study is done, running, stopped, failed or left",
    "track": "import finished runs into MLflow",
    "report": "tables, figures and the HTML report",
    "rank": "rank the runs over the targets of one or several finished studies",
    "export": "one run's adapted model as ONNX and safetensors, with its pre-processing and a model card",
    "predict": "scores for new DICOM, JPEG and PNG files from an exported model",
    "classical": "TCA, CORAL, JDA and others on feature files of Office-31 and Office-Caltech10",
    "methods": "list the methods, their papers and what crosses the wire",
    "figure2": "which rule wins on synthetic data: the theory beside training",
    "params": "count the parameters of a configuration",
    "completion": "print what makes bash, zsh or fish complete commands and options",
    "schema": "write config/schema.json and the catalog of methods",
}
"""Subcommand -> what it does, in the order people do the work. Each is a file in stages/."""


AT_HOSPITALS = {"doctor", "ingest", "split", "cache", "guard", "audit", "probe", "membership", "predict"}
"""Subcommands that read tables and headers: the text of an unforeseen error may quote them."""


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """The command line, if it is one; only the stage that is asked for is imported."""
    parser = Parser(prog="fdamed", description="Federated domain adaptation for chest radiographs.")
    parser.words, parser.commands = given, COMMANDS
    parser.add_argument("-V", "--version", action="version", version=f"fdamed {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in given if word in COMMANDS), None)
    for name in COMMANDS:
        sub = add_command(commands, name, with_arguments=name == chosen)
        sub.words = given
    arguments, rest = parser.parse_known_args(given)
    if rest:
        commands.choices[arguments.command].error(f"unknown: {' '.join(rest)}")
    arguments.parsers = parsers
    return arguments


def parsers() -> dict[str, Parser]:
    """The parser of every command, for those who write about them: this imports all stages."""
    commands = Parser(prog="fdamed").add_subparsers()
    return {name: add_command(commands, name, with_arguments=True) for name in COMMANDS}


def add_command(commands: argparse._SubParsersAction[Parser], name: str, with_arguments: bool) -> Parser:
    """The parser of one command; its stage is imported only for its arguments."""
    summary = COMMANDS[name]
    sub = commands.add_parser(
        name,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if with_arguments:
        stage = importlib.import_module(f"fdamed.cli.commands.{name}")
        stage.add_arguments(sub)
        sub.set_defaults(run=stage.run)
    return sub


def main(argv: Sequence[str] | None = None) -> int:
    secure()
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parsed(given)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except FdamedError as error:
        print(f"error: {error.what}\nwhere: {error.where}\nto do: {error.fix}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not reader_left():
            raise
        return 141
    except Exception as error:
        if arguments.command not in AT_HOSPITALS or os.environ.get("FDAMED_SHOW_ERRORS"):
            raise
        print("".join(traceback.format_tb(error.__traceback__)), file=sys.stderr, end="")
        told = "its text may quote patient data and is withheld; FDAMED_SHOW_ERRORS=1 shows it"
        print(f"{type(error).__name__}: this is a fault of fdamed ({told})", file=sys.stderr)
        return 70
    except Stopped:
        print("stopped on SIGTERM; what was finished is kept, start again to go on with the same bits", file=sys.stderr)
        return EXIT
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, start again to go on", file=sys.stderr)
        return 130
    return 0


def reader_left() -> bool:
    """Whether who read our standard output has gone, as `head` does; then nothing more is written to it."""
    asked = select.poll()
    asked.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in asked.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
