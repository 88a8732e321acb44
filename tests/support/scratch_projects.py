"""A small copy of the project, with synthetic data, in which tests run the commands of the documentation.

The copy has fewer rounds, seeds and images and smaller networks. Commands, runs, layouts and the workflow are the same.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
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
"""Section -> values that replace those of every configuration with this section."""
SPLIT = {"per_class": 30, "labeled": LABELED, "val": 20, "test": 40}
"""Numbers of images, if a configuration has such keys; all hospitals have equal `shares`."""
MIDRC = SMALL["phantom"] | {"patients": 1600}
"""MIDRC's smallest state has 2 % of the patients: with fewer of them, a part of it would lack a class."""
FOR_STUDIES = {"batch_runs": 100}
"""Keys of every study: all runs in one process, because starting processes would take most of the time."""
NAMED = {"gp", "tca"}
"""Runs that commands name. Of the other runs of a file, the first two and the last are trained."""
SEEDS = {"config.yaml": [0, 1, 2], "classical.yaml": [0], "ten_seeds.yaml": [0, 1]}
"""Seeds by file name, otherwise [0]. Commands name the demo's seeds."""
TUNED = {
    "study": "tuned",
    "seeds": [0],
    "split": {"val": 80, "per_class": 20},
    "runs": {"gp_tuned": {"method": "gp", "tune": {"beta": [0.2, 0.5]}}},
}
"""The reader's file with a tuned run; a smaller validation part could not choose."""
FASHION = "data/fashion_mnist"
BENCHMARKS = {
    "bootstrap": {"= 5_000, 10_000, 200": "= 500, 1_000, 20"},
    "clients": {
        "= 60, 28, 64, 6, 10": "= 20, 28, 64, 2, 10",
        "(100, 10), (1000, 10), (1000, 100), (1000, 1000)]": "(100, 10)]",
        '["clients"] == 1000': '["clients"] == 100',
    },
    "calibrate_phantoms": {"[100, 101, 102, 103, 104]": "[100]"},
    "dag": {"list(range(15))": "list(range(2))", "in range(20)]": "in range(4)]"},
    "false_alarms": {"= 3, 0.014, 4000": "= 3, 0.014, 40"},
    "fashion": {"= 9, 93, 64": "= 2, 4, 64"},
    "label_leakage": {"= 200, (1,": "= 4, (1,"},
    "private_training": {"= 800, 28, 4,": "= 320, 28, 1,"},
    "secure_sums": {"728_000": "7_280", "11_200_000": "11_200"},
    "startup": {"REPEATS = 5": "REPEATS = 1", "code, folder, 2)": "code, folder, 1)", "in COMMANDS": "in COMMANDS[:3]"},
    "tca": {"= 3600, 4096, 100, 500": "= 360, 256, 20, 100", "TEXTBOOK = 1800": "TEXTBOOK = 180"},
    "validation": {"REPEATS = 2": "REPEATS = 1"},
}
"""Benchmark -> its sizes and their replacements: it runs completely, but measures nothing."""
STUB = """#!{python}
# Installs nothing: checks whether the pinned packages of the lock files are already installed.
import re, sys
from importlib.metadata import version
from pathlib import Path
files = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "-r"]
pins = re.findall(r"^([\\w.-]+)==([^\\s;]+)", "\\n".join(Path(f).read_text() for f in files), re.MULTILINE)
missing = [f"{{name}}=={{pin}}" for name, pin in pins if version(name) != pin]
sys.exit(f"not installed: {{missing}}" if missing or not pins else 0)
"""


def make(root: Path) -> Path:
    """Copy the tracked files of the working tree, with a `.venv` that cannot be changed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    for path in (p for p in files if p.is_file() or p.is_symlink()):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)
    link_environment(root / ".venv")
    (root / "home/.config/fish/completions").mkdir(parents=True)
    for path in (root / "config").rglob("*.yaml"):
        content = smaller(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader), path.name)
        path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, width=120), encoding="utf-8")
    for name, sizes in BENCHMARKS.items():
        path = root / f"benchmarks/{name}.py"
        text = path.read_text(encoding="utf-8")
        for size, small in sizes.items():
            assert size in text, f"{path.name} no longer has {size!r}: update BENCHMARKS"
            text = text.replace(size, small)
        path.write_text(text, encoding="utf-8")
    return root


def link_environment(place: Path) -> None:
    """Link the environment of this test, with a new stamp file and a pip that installs nothing."""
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
    """The environment of a shell after `source .venv/bin/activate`, with its own home folder."""
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


def smaller(content: dict[str, Any], file: str) -> dict[str, Any]:
    """A configuration that runs in seconds: the same hospitals, runs and rules on fewer and smaller images."""
    out = {key: value | SMALL.get(key, {}) if isinstance(value, dict) else value for key, value in content.items()}
    if content.get("model", {}).get("backbone") == "cnn":
        out["image"] = content["image"]
    if "split" in content:
        split = {k: v for k, v in content["split"].items() if k != "shares"}
        out["split"] = split | {k: n for k, n in SPLIT.items() if isinstance(split.get(k), int)}
    out |= few_runs(content)
    if "variants" in content:
        out["variants"] = {name: keys | few_runs(keys) for name, keys in content["variants"].items()}
    if "phantom" in content and content["data"]["layout"] == "midrc":
        out["phantom"] = content["phantom"] | MIDRC
    if "data" in content:
        out |= FOR_STUDIES | {"privacy": out.get("privacy", {}) | SMALL["privacy"]}
        for domain in out["data"].get("domains", {}).values():
            if "fashion" in domain.get("root", ""):
                domain["root"] = FASHION
    if "data" in content or file in SEEDS:
        out["seeds"] = SEEDS.get(file, [0])
    return out


def few_runs(content: dict[str, Any]) -> dict[str, Any]:
    """The sections `runs` and `published` of a study or a variant, with the runs that are trained."""
    if "runs" not in content:
        return {}
    runs = [(run, options) for run, options in content["runs"].items() if options is not None]
    removed = dict.fromkeys(run for run, options in content["runs"].items() if options is None)
    kept = {run for run, _ in (*runs[:2], *runs[-1:])} | NAMED
    out: dict[str, Any] = {"runs": removed | {run: smaller_run(options) for run, options in runs if run in kept}}
    if "published" in content:
        rows = content["published"]["values"]
        out["published"] = content["published"] | {"values": {r: v for r, v in rows.items() if r in rows_of(out)}}
    return out


def smaller_run(options: dict[str, Any]) -> dict[str, Any]:
    """At most one warm-up round, fewer labels than the split has, and the first two values of a sweep."""
    out = dict(options)
    if out.get("warmup"):
        given = out["warmup"]
        out["warmup"] = given | {"rounds": 1} if isinstance(given, dict) else min(given, 1)
    if out.get("labeled"):
        out["labeled"] = LABELED // 2
    if out.get("sweep"):  # null removes it
        few = {key: values[:2] for key, values in out["sweep"].items()}
        out["sweep"] = few | ({"labeled": [LABELED // 2, LABELED]} if "labeled" in few else {})
    return out


def rows_of(content: dict[str, Any]) -> set[str]:
    """The names of a configuration's runs after expanding its sweeps."""
    swept = {run: options.get("sweep") or {} for run, options in content["runs"].items() if options is not None}
    return set(swept) | {f"{run}-{key}-{v}" for run, keys in swept.items() for key, vs in keys.items() for v in vs}


# --- synthetic data ---------------------------------------------------------------------------------


def write_data(root: Path) -> None:
    """Synthetic data in the real layouts, in the places that the pages name."""
    phantom = Phantom(**SMALL["phantom"])
    write_phantom(phantom, "chexpert", root / "data/CheXpert-v1.0-small")
    write_phantom(phantom, "mimic", root / "data/mimic-cxr-jpg/2.1.0")
    (root / "data/mimiciv/3.1").mkdir(parents=True)
    shutil.move(root / "data/mimic-cxr-jpg/2.1.0/hosp", root / "data/mimiciv/3.1/hosp")
    write_phantom(Phantom(**MIDRC), "midrc", root / "data/midrc")
    for note in (root / "data").rglob(".phantom.json"):
        note.unlink()  # real data has none
    nih(root / "data/nih")
    write_idx(root / "data/mnist")
    usps(root / "data/usps")
    write_idx(root / FASHION)
    for path in (root / FASHION).glob("*-ubyte"):  # the released files are all zipped
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    table(root)
    (root / "tuned.yaml").write_text(yaml.safe_dump(TUNED), encoding="utf-8")
    radiographs(root)
    office(root / "office_caltech")


def usps(folder: Path, train: int = 400, test: int = 100) -> None:
    """USPS's HDF5 file; a digit is its own stripe on noise, as in `write_idx`."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    with h5py.File(folder / "usps.h5", "w") as file:
        for part, n in (("train", train), ("test", test)):
            y, x = np.arange(n) % 10, 0.2 * rng.random((n, 16, 16))
            x[np.arange(n), y + 3] = 1.0
            file[f"{part}/data"], file[f"{part}/target"] = x.reshape(n, 256), y


def nih(folder: Path, images: int = 420) -> None:
    """NIH's table and images; every sixth patient has no finding."""
    findings = ["No Finding", "Nodule|Mass", "Consolidation", "Infiltration", "Effusion", "Atelectasis"]
    rng, rows = np.random.default_rng(0), []
    (folder / "images").mkdir(parents=True)
    for i in range(images):
        name, sex, view = f"{i + 1:08d}_000.png", "MF"[i // 6 % 2], ("PA", "AP")[i // 12 % 2]
        rows.append([name, findings[i % 6], "0", str(i + 1), str(20 + i % 60), sex, view, "2500,2048", "0.168,0.168"])
        Image.fromarray(rng.integers(0, 255, (64, 64), dtype=np.uint8)).save(folder / "images" / name)
    raw_trees.write_table(folder / "Data_Entry_2017_v2020.csv", raw_trees.NIH_HEADER, rows)


def table(root: Path, images: int = 240) -> None:
    """The configuration of the example config/table.yaml with one run, and the images that it describes."""
    content = yaml.safe_load((root / "config/table.yaml").read_text(encoding="utf-8")) | {"runs": {"fedavg": {}}}
    (root / "config/ours.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    rng, rows = np.random.default_rng(1), []
    (root / "data/ours").mkdir(parents=True)
    for i in range(images):
        sick = ("present", "absent")[i % 2]
        rows.append(
            (
                f"{i}.png",
                f"p{i}",
                1 + i // 2 % 2,
                30 + i % 50,
                "AP",
                ("north", "south", "east")[i % 3],
                "A",
                "White",
                sick,
            )
        )
        Image.fromarray(rng.integers(0, 255, (64, 64), dtype=np.uint8)).save(root / f"data/ours/{i}.png")
    columns = ["file", "pid", "gender", "years", "projection", "hospital", "model", "race", "pneu"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["normal"] = (frame["pneu"] == "absent").astype(int)
    frame.to_csv(root / "data/ours/images.csv", index=False)


def radiographs(root: Path) -> None:
    """Radiographs that an exported model has never seen: JPEG and DICOM files, and one file that is no image."""
    images = sorted((root / "data/CheXpert-v1.0-small").rglob("view1_frontal.jpg"))[:3]
    for folder in ("new", "more_images", "archive/2026"):
        (root / folder).mkdir(parents=True)
        for i, image in enumerate(images):
            shutil.copy(image, root / folder / f"image_{i + 1}.jpg")
        dicom_files.write(root / folder / "image.dcm", dicom_files.dataset(dicom_files.thorax()))
    (root / "new/readme.txt").write_text("not an image", encoding="utf-8")


def office(folder: Path, samples: int = 30, words: int = 800) -> None:
    """Four domains of three separable classes, each with its own mean."""
    folder.mkdir()
    for seed, name in enumerate(("amazon", "Caltech10", "dslr", "webcam")):
        y = np.arange(samples) % 3
        x = np.random.default_rng(seed).random((samples, words)) + 3.0 * (np.arange(words) % 3 == y[:, None]) + seed
        savemat(folder / f"{name}_SURF.mat", {"feas": x, "label": y[:, None] + 1})
