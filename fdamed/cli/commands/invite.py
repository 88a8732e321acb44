"""Make the invitation of each hospital to a study over a network: certificate, study, and what will leave.

It signs the requests of the hospitals (`fdamed request`); their keys stay with them. Each folder below `invitations`
goes to one hospital.

Examples:
    fdamed invite --study study.yaml --kits kits --requests requests
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from fdamed.config.base import without_defaults
from fdamed.config.loader import dump
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import private, write_json, write_text
from fdamed.pipeline.hospitals.authority import requested, shown
from fdamed.pipeline.hospitals.kits import LEAD, close_kit, fingerprint_of, provision
from fdamed.pipeline.hospitals.site import network_study, study_digest
from fdamed.pipeline.phases import phases, steps_of

GROUP = "prepare", 12
OPTIONS = {
    "--study": {"type": "path", "required": True, "metavar": "FILE", "help": "the study's configuration"},
    "--kits": {"type": "path", "metavar": "FOLDER", "help": "the lead's own folder of keys (default: network.kits)"},
    "--requests": {
        "type": "path",
        "default": "requests",
        "metavar": "FOLDER",
        "help": "with CLIENT.csr of each hospital",
    },
}
HIDDEN = ("data", "phantom", "results", "tracking", "published", "advise")
"""Sections that are no hospital's business: they name the lead's files, or analyses of one machine."""
WORDS = {
    "weights": "a whole model, trained on the hospital's images",
    "update": "the change of a model by the hospital's training, or a gradient",
    "statistic": "averages over many images",
    "features": "one row of numbers for each image",
    "scalar": "single numbers, such as a loss",
    "count": "counts, such as the number of images trained on",
}


def run(arguments: argparse.Namespace) -> None:
    config, network = network_study(arguments.study)
    kits = (arguments.kits or Path(network.kits)).resolve()
    if (kits / "server").exists():
        fix = "Keep them, or remove the folder: all hospitals then need new invitations."
        raise FdamedError("there are kits already", str(kits), fix)
    requests = {client: arguments.requests / f"{client}.csr" for client in config.split.clients}
    made = provision(config.study, network.host, network.port, requests, kits)
    shutil.move(made / network.host, kits / "server")
    shutil.move(made / LEAD, kits / LEAD)
    close_kit(kits / "server")
    for client in config.split.clients:
        folder = private(kits / "invitations" / client)
        shutil.move(made / client, folder / "kit")
        close_kit(folder / "kit")
        write_invitation(config, client, folder)
        print(f"{client}: key {shown(requested(requests[client], client))}, {folder}")
    print(f"study {config.study}, digest {study_digest(config)}")
    print("compare the digest and each hospital's key with the hospital over another channel than the folder's")


def write_invitation(config: Config, client: str, folder: Path) -> None:
    """The study without the lead's own paths, what the hospital checks, and the page for its ethics board."""
    sections = {k: v for k, v in without_defaults(config).items() if k not in HIDDEN}
    sections["network"].pop("kits", None)
    write_text(folder / "study.yaml", dump(sections))
    facts = {
        "client": client,
        "digest": study_digest(config),
        "authority": fingerprint_of(folder / "kit" / "startup" / "rootCA.pem"),
        "certificate": fingerprint_of(folder / "kit" / "startup" / "client.crt"),
        "server": f"{config.network.host}:{config.network.port}" if config.network else "",
    }
    write_json(folder / "invitation.json", facts)
    write_text(folder / "what_leaves.md", page(config, client, facts))


def page(config: Config, client: str, facts: dict[str, Any]) -> str:
    """What leaves the hospital, by run and kind, in words that an ethics board can read."""
    role = "the target (few labels)" if config.split.targets == (client,) else "a source (labeled images)"
    lines = [
        f"# What leaves {client} in the study {config.study}",
        "",
        f"Digest of the study: `{facts['digest']}`. Server: `{facts['server']}`. {client} is {role} in this study.",
        "",
        "No image, no table and no patient identifier leaves the hospital. Its own computer trains, and answers the",
        "server's questions with the kinds of values below. The hospital's own policy (`privacy` in its `site.yaml`)",
        "holds whatever the study asks, and the hospital's file `released.jsonl` lists every answer. Its private key",
        "was made there and stays there: nobody else has it, not even the lead of the study.",
        "",
        f"Rounds of training: {config.train.rounds}. Minimum behind anything that is sent, by the study's policy:",
        f"{config.minimum.images} images, {config.minimum.steps} training steps in a round.",
        "",
        "| run | method | step | what leaves |",
        "|---|---|---|---|",
    ]
    kinds: set[str] = set()
    for name, spec in config.expanded_runs().items():
        titles = ", ".join(dict.fromkeys(type(phase.method).title for phase in phases(config, spec)))
        for step in steps_of(config, spec):
            kinds |= step.released_kinds
            lines.append(f"| {name} | {titles} | {step.name} | {', '.join(sorted(step.released_kinds)) or 'nothing'} |")
    lines += ["", "| kind | what it is |", "|---|---|", *(f"| {kind} | {WORDS[kind]} |" for kind in sorted(kinds))]
    if config.privacy.secure_aggregation:
        lines += ["", "What sources send, but for counts, is masked: the server learns only the mean over all sources."]
    lines += [
        "",
        "For the report the target also answers with scores (AUC, accuracy and others) of the models on its own test",
        "images, by round and by subgroup, with their intervals and paired differences, and how well a model reveals",
        "attributes; every hospital with how well a model reveals who trained it, and with counts of images, patients",
        "and positives by part. All are aggregates; those of groups below the hospital's `privacy.smallest_cell` stay.",
        *(["The finished models are sent to every hospital for this purpose."] if config.audit.membership else []),
        "A trained model can reveal something of the images that it was trained on: docs/explanation/privacy.md.",
    ]
    return "\n".join(lines) + "\n"
