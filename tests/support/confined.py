"""Reads raw trees in its own process and lists every file it opened: `python -m tests.support.confined JOBS.json`.

An audit hook cannot be taken away again, so it is set here and not in the tests' own process.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fdamed.config.datasets import Data, Domain
from fdamed.core.errors import FdamedError
from fdamed.data import cache
from fdamed.data.benchmark import sources as benchmark
from fdamed.data.image import Unreadable
from fdamed.data.ingestion import read_index
from fdamed.data.row_reader import Rejects
from fdamed.data.safe_paths import Roots

OURS = tuple(
    os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), Path(__file__).parents[2])
)
"""Where Python itself may read: modules that are imported late."""
opened: list[str] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith(OURS):
            opened.append(path)


def clinical(job: dict[str, Any]) -> dict[str, Any]:
    """What an adapter made of a tree: the images that it kept, and how often it refused for which reason."""
    data = TypeAdapter(Data).validate_python(job["data"])
    rejects = Rejects()
    frame = read_index(data, "salt", rejects)
    return {"kept": sorted(frame["image"]), "refused": rejects.counts()}


def images(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"kept": len(benchmark.read(Domain(kind="mnist_m", root=job["root"]), "data"))}
    except FdamedError as error:
        return {"error": error.what}


def manifest(job: dict[str, Any]) -> dict[str, Any]:
    """What the cache makes of paths that stand in a manifest, which somebody may have edited."""
    roots = Roots.of(job["root"])
    looked = [cache.entry_of(image, roots) for image in job["images"]]
    for entry in looked:
        if not entry.reason:
            try:
                Path(roots.locate(entry.image)).read_bytes()
            except Unreadable:
                raise SystemExit("looked at, but not located") from None
    return {"kept": [e.image for e in looked if not e.reason], "refused": len([e for e in looked if e.reason])}


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    sys.addaudithook(listen)
    lines = []
    for job in jobs:
        opened.clear()
        made = {"clinical": clinical, "images": images, "manifest": manifest}[job["kind"]](job)
        allowed = tuple(os.path.realpath(p) + "/" for p in job["roots"])
        lines.append(
            {
                "name": job["name"],
                **made,
                "inside": sum(p.startswith(allowed) for p in opened),
                "outside": sorted({p for p in opened if not p.startswith(allowed)}),
            }
        )
    print(json.dumps(lines))


if __name__ == "__main__":
    main()
