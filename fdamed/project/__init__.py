"""The workflow of a study as files: Snakefile, rules, profiles, environments and example configurations.

In a clone they are links to the folders at its root, in a wheel the files themselves. The Snakefile that `fdamed new`
writes includes the one here, so that an upgrade of fdamed reaches every study.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
SNAKEFILE = str(FOLDER / "Snakefile")
