"""What a hospital tells the server of itself before a run: read from its own folder, or, over a network, its answer."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any

from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import counts_of
from fdamed.core.disclosure import PUBLIC
from fdamed.core.errors import FdamedError
from fdamed.core.files import digest, digest_file, private, read_json, write_json, write_text
from fdamed.core.parts import TRAINED
from fdamed.pipeline.paths import Places, needed

FACTS = "facts.json"
"""What a hospital has answered, in the lead's folder for it."""
PLACE = "place"
CLOCK = 60.0
"""Seconds that the clock of a hospital may differ from the server's without a warning."""
log = logging.getLogger(__name__)


def fact_of(config: Config, client: str, what: str) -> Any:
    """One of the facts in `KNOWN`."""
    if config.train.transport == "network":
        return read_json(needed(Places.of(config).client(client) / FACTS, "lead"))[what]
    return KNOWN[what](config, client)


def local_facts(config: Config, client: str) -> dict[str, Any]:
    """All facts of a client whose folder is here."""
    return {what: read(config, client) for what, read in KNOWN.items()}


def _data(config: Config, client: str) -> str:
    """The digest of its rows and images."""
    return digest_file(needed(Places.of(config).client(client) / "order.parquet", "cache"))


def _heads(config: Config, client: str) -> list[str]:
    """Auxiliary heads of the study that it has labels for."""
    from fdamed.data.loader import known_labels

    folder = needed(Places.of(config).client(client) / "order.parquet", "cache").parent
    wanted = {h for run in config.expanded_runs().values() if run.auxiliary for h in run.auxiliary.heads}
    return sorted(h for h in wanted if known_labels(folder, h, config.model.races))


def _positives(config: Config, client: str) -> int | None:
    """Positive images that it trains on; None for public sets, which are partitioned as their study wants."""
    counts = counts_of(Places.of(config).root, client) if isinstance(config.split, Split) else {}
    return sum(int(counts["positives"].get(part, 0)) for part in TRAINED) if counts else None


def _release(config: Config, client: str) -> list[str]:
    """Kinds of values that its policy lets out."""
    return list(config.privacy.release)


def _place(config: Config, client: str) -> str:
    """A random name of the client's folder: two machines that serve under one name have two."""
    path = Places.of(config).client(client) / PLACE
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="utf-8")


KNOWN = {"data": _data, "heads": _heads, "positives": _positives, "release": _release, "place": _place}


def write_told(config: Config, told: dict[str, dict[str, Any]]) -> None:
    """Write what the hospitals have told, where a study on one machine has its own files."""
    places = Places.of(config)
    private(places.clients)
    for client, answer in told.items():
        _check_unchanged(places.client(client) / FACTS, client, answer["facts"])
    counts = {client: _public(answer.get("counts")) for client, answer in told.items()}
    for client, answer in told.items():
        write_json(places.client(client) / FACTS, answer["facts"])
        if answer.get("machine") != told[config.split.targets[0]].get("machine"):
            log.warning("%s has another machine or version than the target: the bits depend on it", client)
    split: Split = config.split  # type: ignore[assignment]  # a study over a network is of radiographs
    cohort = {"by": split.by, "rule": split.rule, "seed": split.seed, "asked": split.asked, "notes": []}
    content = digest({client: entry.get("content") for client, entry in counts.items()})
    write_json(places.root / "cohort.json", cohort | {"hash": content, "clients": counts})
    write_json(places.root / "leakage.json", {"rule": split.rule})


def _check_unchanged(path: Path, client: str, facts: dict[str, Any]) -> None:
    """Raise if a hospital is another one, or has other data, than when the study began: its runs would mix both."""
    before = read_json(path) if path.exists() else facts
    if before.get("place") != facts.get("place"):
        raise FdamedError(
            f"{client} answers from another folder than before: two `fdamed serve` may run under its name",
            f"hospital {client}",
            f"Stop one of them. If the hospital has moved: remove {path} and the folder runs/ to train all again.",
        )
    if before["data"] != facts["data"]:
        raise FdamedError(
            f"the data of {client} has changed since the study began",
            f"hospital {client}",
            f"Let it serve the data that it had, or begin a new study (another `study`), or remove {path} and the "
            "folder runs/ to train everything again.",
        )


def check_clocks(told: dict[str, dict[str, Any]], before: float, after: float) -> None:
    """Warn of a hospital whose clock differs from the server's, which has asked and got all answers at these times."""
    for client, answer in told.items():
        theirs = answer.get("time")
        if isinstance(theirs, int | float) and not before - CLOCK <= theirs <= after + CLOCK:
            apart = round(max(before - theirs, theirs - after) / 60)
            side = "behind" if theirs < before else "ahead of"
            log.warning(
                "the clock of %s is %d minutes %s the server's: compare times in logs with care", client, apart, side
            )


def _public(counts: Any) -> dict[str, Any]:
    """The counts of a hospital, without anything that it should not have told."""
    if not isinstance(counts, dict) or not isinstance(counts.get("images"), dict):
        raise FdamedError("a hospital did not report its number of images", "hello", "Use the same version of fdamed.")
    return {key: counts[key] for key in PUBLIC["counts.json"] if key in counts}
