"""The command line: one command per rule of the workflow. Nothing heavy is imported before the command is known."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import select
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from fdamed.cli.options import with_config
from fdamed.cli.parser import build, commands
from fdamed.core.environment import secure
from fdamed.core.errors import FdamedError
from fdamed.core.logs import show_on_stderr
from fdamed.core.signals import EXIT, Stopped

log = logging.getLogger(__name__)
AND = "+"


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a valid command line; exits with a message for any other."""
    parser, of_command = build(words)
    arguments, rest = parser.parse_known_args(words)
    if rest:
        of_command[arguments.command].error(f"unknown: {' '.join(rest)}")
    return arguments


def complete() -> None:
    """Answer the shell that asks argcomplete for completions, and exit."""
    import argcomplete

    parser, _ = build(os.environ.get("COMP_LINE", "").split())
    argcomplete.autocomplete(parser, always_complete_options=False)


def main(argv: Sequence[str] | None = None) -> int:
    secure()
    if "_ARGCOMPLETE" in os.environ:
        complete()
    words = list(sys.argv[1:] if argv is None else argv)
    given = [parsed(part) for part in in_turn(words)]
    show_on_stderr(getattr(given[0], "log_level", ""))
    return next((code for code in map(executed, given) if code), 0)


def in_turn(words: Sequence[str]) -> list[list[str]]:
    """The commands of a command line: `+` separates those that one process runs in turn, up to the first that fails."""
    parts: list[list[str]] = [[]]
    for word in words:
        parts.append([]) if word == AND else parts[-1].append(word)
    return parts


def imported(module: str) -> ModuleType:
    """The module, with all that it imports out of sight of the garbage collector.

    Modules live as long as the process: searching their objects while they load, and once more when it ends, takes
    0.6 s of CPU with torch.
    """
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def executed(arguments: argparse.Namespace) -> int:
    """Run a command; its exit code."""
    try:
        imported(commands()[arguments.command].module).run(arguments)
        sys.stdout.flush()
    except FdamedError as error:
        takes_config = [name for name, command in commands().items() if "--config" in command.options]
        log.error("%s", with_config(error.lines(), arguments, takes_config))
        return 2
    except BrokenPipeError:
        if not reader_left():
            raise
        return 141
    except Exception as error:
        if not commands()[arguments.command].private or os.environ.get("FDAMED_SHOW_ERRORS"):
            raise
        frames = "".join(traceback.format_tb(error.__traceback__))
        note = "its text may quote patient data and is withheld; FDAMED_SHOW_ERRORS=1 shows it"
        log.critical("this is a bug in fdamed\n%s%s (%s)", frames, type(error).__name__, note)
        return 70
    except Stopped:
        log.warning("stopped by SIGTERM; finished work is kept, start again to resume with the same results")
        return EXIT
    except KeyboardInterrupt:
        log.warning("interrupted; finished work is kept, start again to resume")
        return 130
    return 0


def reader_left() -> bool:
    """Whether the reader of standard output is gone, like `head`; if so, nothing more is written to it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
