"""Make this hospital's private key, which stays here, and a request for a certificate, for the study's lead.

Examples:
    fdamed request --client north
"""

from __future__ import annotations

import argparse

from fdamed.core.files import private
from fdamed.pipeline.hospitals.authority import make_request, requested, shown

GROUP = "prepare", 11
OPTIONS = {
    "--client": {"required": True, "metavar": "NAME", "help": "this hospital's name in the study"},
    "--out": {
        "type": "path",
        "default": ".",
        "metavar": "FOLDER",
        "help": "where both files are written (default: here)",
    },
}


def run(arguments: argparse.Namespace) -> None:
    made = make_request(arguments.client, private(arguments.out))
    print(f"{made.with_suffix('.key')} stays here; send {made} to the study's lead")
    print(f"key {shown(requested(made, arguments.client))}: compare it with what `fdamed invite` shows the lead")
