"""Run TCA, CORAL, JDA and others on feature files of Office-31 and Office-Caltech10.

Examples:
    fdamed classical-benchmark office_caltech/ --methods tca coral --out table.csv
"""

from __future__ import annotations

import argparse
import json
import logging

import pandas as pd

from fdamed.classical.feature_files import read
from fdamed.classical.office import COLUMNS, markdown, methods, published, rows
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic
from fdamed.core.progress import track

log = logging.getLogger(__name__)
GROUP = "reproduce published studies", 1
OPTIONS = {
    "folder": {
        "type": "path",
        "help": "one .mat per domain: amazon*, dslr*, webcam* and, for Office-Caltech10, caltech*",
    },
    "--out": {"type": "path", "metavar": "TABLE.csv", "help": "every figure with the setting that gave it"},
    "--methods": {"nargs": "+", "metavar": "METHOD", "help": "only these (default: all)"},
    "--pairs": {"nargs": "+", "metavar": "S->T", "help": "only these, such as 'C->A' (default: all)"},
    "--classifier": {
        "choices": ("1nn", "svm", "linear", "logistic", "mlp"),
        "default": "1nn",
        "help": "on the aligned features; mlp is that of paper 002",
    },
    "--json": "",
}


def run(arguments: argparse.Namespace) -> None:
    given = read(arguments.folder)
    names = _known(arguments.methods, tuple(methods()), "method")
    pairs = _known(arguments.pairs, given.pairs, "pair")
    work = rows(given, names, pairs, arguments.classifier)
    frame = pd.DataFrame(track(work, f"pairs of {given.name}", total=len(names) * len(pairs)))
    if arguments.out:
        with atomic(arguments.out) as draft:
            frame.to_csv(draft, index=False)
    source = published(given.name)
    if arguments.json:
        content = {"set": given.name, "classifier": arguments.classifier, "published": source.get("source")}
        print(json.dumps(content | {"rows": json.loads(frame.to_json(orient="records"))}))
        return
    about = {"oracle": "the best on the target's own labels: not attainable", "published": source.get("source")}
    for column in COLUMNS:
        if frame[column].notna().any():
            print(f"\n{column} ({about.get(column, arguments.classifier)})\n{markdown(frame, column)}")
    for line in source.get("errata", ()):
        log.warning(f"erratum: {line}")


def _known(given: list[str] | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """The names that were asked for, in capitals or not; all of them by default."""
    by_letters = {name.lower(): name for name in known}
    stray = [name for name in given or () if name.lower() not in by_letters]
    if stray:
        raise FdamedError(f"no {what} {stray[0]!r}", "command line", f"Choose among: {', '.join(known)}.")
    return tuple(by_letters[name.lower()] for name in given) if given else known
