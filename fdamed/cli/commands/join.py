"""Check an invitation to a study over a network, item by item, and write this hospital's file for it.

Examples:
    fdamed join --invitation invitations/north --digest 0123456789ab --key north.key --data own.yaml
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdamed.config.loader import catalog, dump, read
from fdamed.config.policy_checks import policy_problems
from fdamed.config.privacy import Privacy
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json, write_text
from fdamed.pipeline.hospitals.authority import public_key, shown
from fdamed.pipeline.hospitals.kits import certified_key, check_kit, fingerprint_of
from fdamed.pipeline.hospitals.site import load_site, own_config, shared_study, study_digest
from fdamed.pipeline.phases import steps_of

GROUP = "prepare", 13
OPTIONS = {
    "--invitation": {"type": "path", "required": True, "metavar": "FOLDER", "help": "as it came from the lead"},
    "--digest": {"required": True, "help": "the study's digest, which the lead gave over another channel"},
    "--key": {"type": "path", "required": True, "metavar": "FILE", "help": "this hospital's, of `fdamed request`"},
    "--data": {"type": "path", "required": True, "metavar": "FILE", "help": "this hospital's `data` and `privacy`"},
    "--out": {"type": "path", "default": "site.yaml", "metavar": "FILE", "help": "the hospital's file to write"},
}


def run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.invitation
    facts, study = read_json(folder / "invitation.json"), shared_study(folder / "study.yaml")
    own = read(arguments.data)
    items: dict[str, Callable[[], Any]] = {
        "the digest is the one that the lead gave": lambda: _equal(facts["digest"], arguments.digest),
        "the study's file has this digest": lambda: _equal(study_digest(study), facts["digest"]),
        "the certificate is this hospital's, of the study's authority": lambda: _kit(folder, facts),
        "the certificate is for this hospital's key": lambda: _key(folder, arguments.key),
        "the study names this hospital": lambda: _equal(facts["client"] in study.split.clients, True),
        "this hospital's policy allows every run": lambda: _policy(study, own.get("privacy", {})),
    }
    refused = [text for text, check in items.items() if not _shown(text, check)]
    if refused:
        raise FdamedError(f"{len(refused)} of {len(items)} items are not right", str(folder), "Ask the study's lead.")
    shutil.copy(arguments.key, folder / "kit" / "startup" / "client.key")  # with its permissions
    away = Path(os.path.relpath(folder, arguments.out.parent))
    site = {"study": str(away / "study.yaml"), "client": facts["client"], "digest": facts["digest"]}
    site |= {"kit": str(away / "kit"), "authority": facts["authority"], **own}
    write_text(arguments.out, dump(site))
    own_config(load_site(arguments.out), study)
    print(f"joined as {facts['client']}: start `fdamed serve --site {arguments.out}`")


def _shown(text: str, check: Callable[[], Any]) -> bool:
    try:
        check()
    except FdamedError as error:
        print(f"no   {text}: {error.what}")
        return False
    print(f"yes  {text}")
    return True


def _equal(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise FdamedError(f"it is {found}, not {wanted}", "invitation", "Ask the study's lead.")


def _kit(folder: Path, facts: dict[str, Any]) -> None:
    check_kit(folder / "kit", facts["client"], facts["authority"])
    _equal(fingerprint_of(folder / "kit" / "startup" / "client.crt"), facts["certificate"])


def _key(folder: Path, key: Path) -> None:
    _equal(shown(certified_key(folder / "kit" / "startup" / "client.crt")), shown(public_key(key)))


def _policy(study: Config, privacy: Any) -> None:
    """Raise for the first run that the hospital's own policy would refuse."""
    mine = study.model_copy(update={"privacy": Privacy.model_validate(privacy)})
    for name, spec in mine.expanded_runs().items():
        asked = {kind for step in steps_of(mine, spec) for kind in step.released_kinds}
        if withheld := sorted(asked - set(mine.privacy.release)):
            what = f"`runs.{name}` may ask for {', '.join(withheld)}"
            raise FdamedError(what, "privacy.release", "Ask the lead.")
        for what, fix in policy_problems(name, spec, mine, catalog()):
            raise FdamedError(what, "privacy", fix)
