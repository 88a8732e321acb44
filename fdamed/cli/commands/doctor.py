"""Check the configuration, the data and the machine before any job runs.

Nothing is written.

Examples:
    fdamed doctor
    fdamed doctor --config config/config.yaml --cluster --json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from fdamed.cli.options import print_json, read_config
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.progress import console
from fdamed.data.manifest import PARTS
from fdamed.pipeline.checks import machine
from fdamed.pipeline.checks.data import Findings, check_data

GROUP = "prepare", 3
PRIVATE = True
OPTIONS = {
    "--config": "",
    "--cluster": {"action": "store_true", "help": "the study will run on SLURM: check sbatch, too"},
    "--json": "",
}


def run(arguments: argparse.Namespace) -> None:
    findings = examine(read_config(arguments), arguments.cluster)
    if arguments.json:
        print_json({"ok": findings.ok, **asdict(findings)})
    else:
        show(findings)
    if not findings.ok:
        faults = [c for c in findings.checks if c["status"] == "fail"]
        what = f"the study would fail: {', '.join(c['check'] for c in faults)}"
        fixes = [c["fix"] if len(faults) == 1 else f"{c['check']}: {c['fix']}" for c in faults]
        raise FdamedError(what, ", ".join(arguments.config), " ".join(fixes))


def examine(config: Config, cluster: bool) -> Findings:
    """All checks, in the order in which the steps would fail."""
    findings = Findings(machine=machine.describe(config))
    machine.check_machine(config, findings.add, findings.machine, cluster)
    check_data(config, findings)
    return findings


def show(findings: Findings) -> None:
    out = console()
    table = Table("", "check", "result", title="fdamed doctor")
    marks = {"ok": Text("ok", "green"), "warn": Text("warn", "yellow"), "fail": Text("FAIL", "red")}
    for check in findings.checks:
        cure = f". {check['fix']}" if check["fix"] and check["status"] == "warn" else ""
        table.add_row(marks[check["status"]], check["check"], Text(check["detail"] + cure))
    table.add_row(marks["ok"], "machine", ", ".join(f"{k} {v}" for k, v in findings.machine.items()))
    out.print(table)
    if findings.clients:
        wanted = {"train": f"per_class {findings.asked['per_class']}", "adapt": f"labeled {findings.asked['labeled']}"}
        wanted |= {part: str(findings.asked[part]) for part in ("val", "test")}
        heads = (f"{part} (positive)\nasked: {wanted[part]}" for part in PARTS)
        table = Table("hospital", "images", "patients", "positive", *heads)
        for client, entry in findings.clients.items():
            cells = [f"{n} ({entry['positives'][p]})" for p, n in entry["parts"].items()]
            rate = entry["positive"]
            share = f"{rate:.0%}" if isinstance(rate, float) else str(rate)
            table.add_row(client, str(entry["images"]), str(entry["patients"]), share, *cells)
        out.print(table)
        if any("hidden" in str(entry) for entry in findings.clients.values()):
            out.print("hidden: small enough to identify persons; exact in clients/*/counts.json after the split")
