"""A scratch copy of the project in which the documentation's commands can be run: small, with stand-ins for the data.

What is smaller there is declared here, once: rounds, seeds, images and networks of the configurations. Commands, runs,
layouts and the workflow are those of the reader.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image
from scipy.io import savemat

from fdamed.config.datasets import Phantom
from fdamed.data.phantom import write as write_phantom
from tests.support import dicom_files, raw_trees
from tests.support.idx_files import write_idx

ROOT = Path(__file__).parents[2]
LABELED = 10
SMALL: dict[str, dict[str, Any]] = {
    "train": {"rounds": 2, "device": "cpu"},
    "image": {"size": 32},
    "model": {"width": 0.0625},
    "phantom": {"patients": 500, "size": 64},
    "privacy": {"smallest_images": 1, "smallest_steps": 1, "smallest_batch": 1, "smallest_cell": 1},
}
"""Section -> what every configuration that has it gets."""
CUT = {"per_class": 60, "labeled": LABELED}
"""Numbers of images, where a configuration has such numbers; all hospitals have equal `shares`."""
STATES = {state: {"weight": 1.0} for state in ("IL", "NC", "CA", "IN", "TX")}
"""As many patients in each of MIDRC's states: of a few hundred the smallest would have none."""
FOR_STUDIES = {"batch_runs": 100}
"""What a whole study gets: its runs one after the other in one process, whose start would else cost most."""
NAMED = {"gp", "tca"}
"""Runs that commands name. Of the others of a file the first two and the last are trained."""
SEEDS = {"config.yaml": [0, 1, 2]}
"""Seeds by file name; [0] in all others. The demo's are named by commands."""
FASHION = "data/fashion_mnist"
BENCHMARKS = {
    "clients": {
        "= 60, 28, 64, 6, 10": "= 20, 28, 64, 2, 10",
        "(100, 10), (1000, 10), (1000, 100), (1000, 1000)]": "(100, 10)]",
        '["clients"] == 1000': '["clients"] == 100',
    },
    "fashion": {"= 9, 93, 64": "= 2, 4, 64"},
    "guard": {"REPEATS = 2": "REPEATS = 1"},
    "label_leak": {"= 200, (1,": "= 4, (1,"},
    "private": {"= 800, 28, 4,": "= 320, 28, 1,"},
    "startup": {"REPEATS = 5": "REPEATS = 1"},
    "tca": {"= 3600, 4096, 100, 500": "= 360, 256, 20, 100", "TEXTBOOK = 1800": "TEXTBOOK = 180"},
}
"""Benchmark -> its sizes and what becomes of them: they go their whole way, but measure nothing."""
STUB = """#!{python}
# Nothing is installed from here: says whether what a command would install is there already, as the lock file pins it.
import re, sys
from importlib.metadata import version
from pathlib import Path
files = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "-r"]
pins = re.findall(r"^([\\w.-]+)==([^\\s;]+)", "\\n".join(Path(f).read_text() for f in files), re.MULTILINE)
missing = [f"{{name}}=={{pin}}" for name, pin in pins if version(name) != pin]
sys.exit(f"not installed: {{missing}}" if missing or not pins else 0)
"""


def make(root: Path) -> Path:
    """The tracked files as they are in the working tree, and a `.venv` that nothing is put into."""
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = [ROOT / name for name in told.split("\0") if name]
    for path in (p for p in files if p.is_file()):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    link_environment(root / ".venv")
    (root / "home/.config/fish/completions").mkdir(parents=True)
    for path in (root / "config").rglob("*.yaml"):
        content = smaller(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader), path.name)
        path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, width=120), encoding="utf-8")
    for name, sizes in BENCHMARKS.items():
        path = root / f"benchmarks/{name}.py"
        text = path.read_text(encoding="utf-8")
        for size, small in sizes.items():
            assert size in text, f"{path.name} has no {size!r} any more: mend BENCHMARKS"
            text = text.replace(size, small)
        path.write_text(text, encoding="utf-8")
    return root


def link_environment(place: Path) -> None:
    """This test's own environment by links, with a stamp that is newer than all it is made of, and without pip."""
    (place / "bin").mkdir(parents=True)
    for path in Path(sys.prefix).iterdir():
        if path.name not in ("bin", "made", "audit", "slurm"):
            (place / path.name).symlink_to(path)
    for path in (Path(sys.prefix) / "bin").iterdir():
        if not path.name.startswith("pip"):
            (place / "bin" / path.name).symlink_to(path)
    pip = place / "bin/pip"
    pip.write_text(STUB.format(python=sys.executable), encoding="utf-8")
    pip.chmod(0o755)
    (place / "made").touch()


def environment(root: Path) -> dict[str, str]:
    """What a reader's shell has after `source .venv/bin/activate`, with a home of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "FDAMED", "SNAKEMAKE"))}
    return kept | {
        "PATH": f"{root}/.venv/bin{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "home/.cache"),
        "EDITOR": "cat",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
    }


def smaller(content: dict[str, Any], name: str) -> dict[str, Any]:
    """A configuration that is done in seconds: the same hospitals, runs and rules on fewer and smaller images."""
    out = {key: value | SMALL.get(key, {}) if isinstance(value, dict) else value for key, value in content.items()}
    if content.get("model", {}).get("backbone") == "cnn":
        out["image"] = content["image"]
    if "split" in content:
        cut = {k: v for k, v in content["split"].items() if k != "shares"}
        out["split"] = cut | {k: n for k, n in CUT.items() if isinstance(cut.get(k), int)}
    if "runs" in content:
        runs = list(content["runs"].items())
        kept = {run for run, _ in (*runs[:2], runs[-1])} | NAMED
        out["runs"] = {run: smaller_run(options) for run, options in runs if run in kept}
    if "published" in content and "runs" in content:
        rows = content["published"]["values"]
        out["published"] = content["published"] | {"values": {r: v for r, v in rows.items() if r in rows_of(out)}}
    if "phantom" in content and content["data"]["layout"] == "midrc":
        out["phantom"]["domains"] = STATES
    if "data" in content:
        out |= FOR_STUDIES | {"seeds": SEEDS.get(name, [0]), "privacy": out.get("privacy", {}) | SMALL["privacy"]}
        for domain in out["data"].get("domains", {}).values():
            if "fashion" in domain.get("root", ""):
                domain["root"] = FASHION
    return out


def smaller_run(options: dict[str, Any]) -> dict[str, Any]:
    """At most one round of warm-up, labels below those of the cut, and of a sweep its first two values."""
    out = dict(options)
    if "warmup" in out:
        out["warmup"] = min(out["warmup"], 1)
    if "labeled" in out:
        out["labeled"] = LABELED // 2
    if "sweep" in out:
        few = {key: values[:2] for key, values in out["sweep"].items()}
        out["sweep"] = few | ({"labeled": [LABELED // 2, LABELED]} if "labeled" in few else {})
    return out


def rows_of(content: dict[str, Any]) -> set[str]:
    """The names of a configuration's runs after its sweeps over one key."""
    swept = {run: options.get("sweep", {}) for run, options in content["runs"].items()}
    return set(swept) | {f"{run}-{key}-{v}" for run, keys in swept.items() for key, vs in keys.items() for v in vs}


# --- stand-ins for what a reader has ---------------------------------------------------------------------------------


def stand_ins(root: Path) -> None:
    """Synthetic data in the real layouts, where the pages tell the reader to put the real ones."""
    phantom = Phantom(**SMALL["phantom"])
    write_phantom(phantom, "chexpert", root / "data/CheXpert-v1.0-small")
    write_phantom(phantom, "mimic", root / "data/mimic-cxr-jpg/2.1.0")
    (root / "data/mimiciv/3.1").mkdir(parents=True)
    shutil.move(root / "data/mimic-cxr-jpg/2.1.0/hosp", root / "data/mimiciv/3.1/hosp")
    write_phantom(Phantom.model_validate(SMALL["phantom"] | {"domains": STATES}), "midrc", root / "data/midrc")
    for note in (root / "data").rglob(".phantom.json"):
        note.unlink()  # real data has none
    nih(root / "data/nih")
    write_idx(root / FASHION)
    for path in (root / FASHION).glob("*-ubyte"):  # the released files are all zipped
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    table(root)
    films(root)
    office(root / "office_caltech")


def nih(folder: Path, films: int = 420) -> None:
    """NIH's table and pictures; every sixth patient has no finding."""
    findings = ["No Finding", "Nodule|Mass", "Consolidation", "Infiltration", "Effusion", "Atelectasis"]
    rng, rows = np.random.default_rng(0), []
    (folder / "images").mkdir(parents=True)
    for i in range(films):
        name, sex, view = f"{i + 1:08d}_000.png", "MF"[i // 6 % 2], ("PA", "AP")[i // 12 % 2]
        rows.append([name, findings[i % 6], "0", str(i + 1), str(20 + i % 60), sex, view, "2500,2048", "0.168,0.168"])
        Image.fromarray(rng.integers(0, 255, (64, 64), dtype=np.uint8)).save(folder / "images" / name)
    raw_trees.write_table(folder / "Data_Entry_2017_v2020.csv", raw_trees.NIH_HEADER, rows)


def table(root: Path, films: int = 240) -> None:
    """The configuration that docs/data/table.md shows, whole, and the images that it describes."""
    shown = re.findall(r"^```yaml\n(.*?)^```", (root / "docs/data/table.md").read_text(encoding="utf-8"), re.M | re.S)
    content = {
        "study": "ours",
        **yaml.safe_load(shown[0]),
        "image": {},
        "model": {},
        "train": {},
        "runs": {"fedavg": {}},
    }
    content["split"]["labeled"] = LABELED
    for name in ("ours.yaml", "config/ours.yaml"):
        (root / name).write_text(yaml.safe_dump(smaller(content, name), sort_keys=False), encoding="utf-8")
    rng, rows = np.random.default_rng(1), []
    (root / "data/ours").mkdir(parents=True)
    for i in range(films):
        sick = ("present", "absent")[i % 2]
        rows.append(
            (f"{i}.png", f"p{i}", 1 + i // 2 % 2, 30 + i % 50, "AP", ("north", "south", "east")[i % 3], "A", sick)
        )
        Image.fromarray(rng.integers(0, 255, (64, 64), dtype=np.uint8)).save(root / f"data/ours/{i}.png")
    columns = ["file", "pid", "gender", "years", "projection", "hospital", "model", "pneu"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["normal"] = (frame["pneu"] == "absent").astype(int)
    frame.to_csv(root / "data/ours/images.csv", index=False)


def films(root: Path) -> None:
    """Films that an exported model has never seen: pictures, DICOM files, and one that is none."""
    pictures = sorted((root / "data/CheXpert-v1.0-small").rglob("view1_frontal.jpg"))[:3]
    for folder in ("films", "new", "more_films", "archive/2026"):
        (root / folder).mkdir(parents=True)
        for i, picture in enumerate(pictures):
            shutil.copy(picture, root / folder / f"film_{i + 1}.jpg")
        dicom_files.write(root / folder / "film.dcm", dicom_files.dataset(dicom_files.thorax()))
    (root / "new/readme.txt").write_text("not an image", encoding="utf-8")


def office(folder: Path, samples: int = 30, words: int = 800) -> None:
    """Four domains of three classes that are apart, each with a mean of its own."""
    folder.mkdir()
    for seed, name in enumerate(("amazon", "Caltech10", "dslr", "webcam")):
        y = np.arange(samples) % 3
        x = np.random.default_rng(seed).random((samples, words)) + 3.0 * (np.arange(words) % 3 == y[:, None]) + seed
        savemat(folder / f"{name}_SURF.mat", {"feas": x, "label": y[:, None] + 1})
