"""The workflow of a study as files: Snakefile, rules, profiles, environments and example configurations.

In a clone they are links to the folders at its root, in a wheel the files themselves. The Snakefile that `fdamed new`
writes includes the one here, so that an upgrade of fdamed reaches every study.
"""

from pathlib import Path
from typing import Any

import yaml

from fdamed import __version__

FOLDER = Path(__file__).parent
SNAKEFILE = str(FOLDER / "Snakefile")


def environment() -> dict[str, Any]:
    """envs/fdamed.yaml for Snakemake, which copies it elsewhere, without the files that it names: with full paths.

    fdamed itself comes from the clone, or by its version where it was installed.
    """
    envs = (FOLDER / "envs").resolve()
    content: dict[str, Any] = yaml.safe_load((envs / "fdamed.yaml").read_text(encoding="utf-8"))
    clone = (envs.parent / "pyproject.toml").is_file()
    lines = [f"-r {envs / 'requirements.lock'}", f"-e {envs.parent}" if clone else f"fdamed=={__version__}"]
    return content | {"dependencies": [d if isinstance(d, str) else {"pip": lines} for d in content["dependencies"]]}
