"""Where log messages go: the library only logs; the command line, or the program that uses it, shows them."""

from __future__ import annotations

import logging
import os
import sys

LEVEL = "FDAMED_LOG"
"""Environment variable: debug, info (the default), warning or error. Child processes inherit it."""


class _Plain(logging.Formatter):
    """The message alone; from warnings on, with the level in front."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def show_on_stderr(level: str = "") -> None:
    """Show fdamed's messages on standard error, from this level or that of FDAMED_LOG on; the last call counts."""
    level = level or os.environ.get(LEVEL, "info")
    logger = logging.getLogger("fdamed")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    logger.handlers = [handler]
    known = logging.getLevelNamesMapping()
    logger.setLevel(known.get(level.upper(), logging.INFO))
    os.environ[LEVEL] = level
    if level.upper() not in known:
        logger.warning("%s=%s is not a log level; use debug, info, warning or error", LEVEL, level)
