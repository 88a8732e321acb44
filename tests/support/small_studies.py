"""A shipped configuration as a study of seconds: the same clients, runs, recipes and rules on a few small images.

Radiographs start as an index with all that the split asks for, public sets as files of their kind.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from fdamed.cli.commands import init, partition
from fdamed.config.loader import parse
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.files import write_json
from fdamed.core.rng import stream
from fdamed.data.cache import in_order
from fdamed.data.manifest import as_index
from fdamed.data.splitting.cohort import build
from fdamed.pipeline.checks.cohort import describe
from fdamed.pipeline.paths import Places, write_rows
from tests.support.idx_files import write_idx

CLASSES = 5
"""Classes of sets in folders, at most."""
LABELED = 16


def smaller(raw: dict[str, Any], folder: Path) -> Config:
    """The configuration with fewer rounds, images and channels; batches, optimizers and options stay."""
    out = {
        k: v for k, v in raw.items() if k not in ("published", "advise", "variants", "phantom", "seeds", "batch_runs")
    }
    out |= {"results": str(folder / "results"), "seeds": [0]}
    privacy = {"smallest_images": 1, "smallest_steps": 1, "smallest_cell": 1}
    out["privacy"] = raw.get("privacy", {}) | privacy
    out["train"] = _short(raw.get("train", {})) | {"device": "cpu", "rounds": 1}
    out["runs"] = {name: _short_run(spec) for name, spec in raw["runs"].items() if spec is not None}
    model = out["model"] = {k: v for k, v in raw.get("model", {}).items() if k != "weights"}
    if model.get("backbone", "resnet18").startswith("resnet"):
        model["width"] = 0.0625
        out["image"] = raw.get("image", {}) | {"size": 32}
    elif model["backbone"] == "mlp":
        model |= {"inputs": 20, "layers": [16, 8, 8]}
    split = out["split"] = {k: v for k, v in raw["split"].items() if k != "shares"}
    few = {"labeled": LABELED, "per_class": 30, "per_source": 60, "n_clients": 4, "val": 10, "test": 20}
    split |= {k: n for k, n in few.items() if isinstance(split.get(k), int)}
    if raw["data"]["layout"] == "benchmark":
        out["data"] = raw["data"] | {"domains": _domains(raw["data"]["domains"], model, folder / "data")}
    return parse(out, "a small copy")


def _short(train: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in train.items() if k not in ("evaluate_every", "checkpoint_every", "rounds")}


def _short_run(spec: dict[str, Any]) -> dict[str, Any]:
    """One round of each phase, and one value of a sweep."""
    out = dict(spec)
    if "train" in out:
        out["train"] = _short(out["train"])
    if "warmup" in out:
        out["train"] = out.get("train", {}) | {"rounds": 2}
        out["warmup"] = out["warmup"] | {"rounds": 1} if isinstance(out["warmup"], dict) else 1
    if "then" in out:
        out["then"] = {k: v for k, v in out["then"].items() if k != "rounds"} | {
            "train": _short(out["then"].get("train", {})) | {"rounds": 1}
        }
    if "labeled" in out:
        out["labeled"] = LABELED // 2
    if out.get("sweep"):
        out["sweep"] = {
            k: [LABELED // 2 if k == "labeled" else values[len(values) // 2]] for k, values in out["sweep"].items()
        }
    return out


# --- radiographs ---


def write_clients(config: Config) -> None:
    """What `split` and `cache`, or `partition`, and `init` write."""
    places = Places.of(config)
    if isinstance(config.split, Split):
        manifests = build(index_of(config.split), config.split).manifests
        for client, frame in manifests.items():
            rows = in_order(frame)
            x = stream(0, client).numpy.integers(0, 200, (len(rows), config.image.size, config.image.size))
            x[rows["y"] == 1, 8:16] += 40
            images = x.astype(np.uint8)
            places.client(client).mkdir(parents=True)
            np.save(places.client(client) / "images.npy", images)
            write_rows(places.client(client) / "order.parquet", rows.assign(crc32=[crc32(i.tobytes()) for i in images]))
        entries = {client: describe(frame) for client, frame in manifests.items()}
        about = {"by": config.split.by, "rule": config.split.rule, "seed": config.split.seed, "notes": []}
        about["asked"] = config.split.asked
        write_counts(places.root, "cohort.json", about | {"clients": entries, "hash": "0"})
        write_json(places.root / "leakage.json", {})
    else:
        partition.write(config, places)
    init.write(config, 0, places.init(0))


def index_of(split: Split, patients: int = 500) -> pd.DataFrame:
    """An index in which every client of the split has patients of both classes."""
    rng = stream(0, "index").numpy
    by_condition = split.by == "condition"
    named = [*split.clients.values()] if by_condition else [str(split.label)]
    frame = pd.DataFrame({"image": [f"{i}.png" for i in range(patients)]})
    frame["patient"] = frame["study"] = frame["image"]
    frame["view"], frame["sex"] = "frontal", rng.choice(["F", "M"], patients)
    frame["projection"], frame["age"] = rng.choice(["AP", "PA"], patients), rng.integers(20, 90, patients)
    frame["race"] = rng.choice(["White", "Black", "Asian", "Hispanic/Latino"], patients)
    sites = [site for text in split.clients.values() for site in re.findall(r"site == '([^']*)'", text)]
    if split.by == "expression" and sites:
        frame["site"] = rng.choice(sites, patients)
    elif not by_condition and split.by != "expression":
        frame[split.by] = rng.choice(list(split.clients.values()), patients)
    for label in (name for value in named for name in value.split("|")):
        frame[f"label.{label}"] = rng.integers(0, 2, patients)
    clear = rng.random(patients) < 0.5
    if split.label == "No Finding":
        frame["label.No Finding"] = np.where(clear, 1, 0)
    else:
        frame["label.No Finding"] = np.where(clear, 1, np.nan)
        frame.loc[clear, [f"label.{n}" for value in named for n in value.split("|")]] = 0
    return as_index(frame)


# --- public sets ---


def _domains(domains: dict[str, dict[str, Any]], model: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    return {name: _domain(domain, model, folder / name) for name, domain in domains.items()}


def _domain(domain: dict[str, Any], model: dict[str, Any], place: Path) -> dict[str, Any]:
    """The domain with its root replaced by files of its kind."""
    kind, classes = domain["kind"], min(model["classes"], CLASSES if domain["kind"] == "folder" else 10)
    n, root = 40 * classes, place
    y, rng = np.arange(n) % classes, stream(0, place.name).numpy
    place.mkdir(parents=True, exist_ok=True)
    if kind in ("idx", "colored", "blended"):
        write_idx(place)
    elif kind == "npz" and model.get("backbone") == "mlp":
        x, root = rng.normal(size=(n, model["inputs"])), place / "set.npz"
        np.savez(root, x=x, y=y, x_test=x[:20], y_test=y[:20])
    elif kind == "cifar10":  # its reader wants 50,000 images
        x, kind, root = rng.integers(0, 255, (n, 32, 32, 3), dtype=np.uint8), "npz", place / "set.npz"
        np.savez(root, x=x, y=y, x_test=x[:20], y_test=y[:20])
    elif kind == "mat":
        for part, m in (("train", n), ("test", 40)):
            x = rng.integers(0, 255, (32, 32, 3, m), dtype=np.uint8)
            savemat(place / f"{part}_32x32.mat", {"X": x, "y": np.where(y[:m] == 0, 10, y[:m])[:, None]})
    elif kind == "usps":
        root = place / "usps.h5"
        with h5py.File(root, "w") as file:
            for part, m in (("train", n), ("test", 40)):
                file[f"{part}/data"], file[f"{part}/target"] = rng.random((m, 256)), y[:m]
    elif kind == "folder":
        for i, label in enumerate(y):
            _write_image(rng, place / f"class_{label:02d}" / f"{i}.png")
    elif kind == "mnist_m":
        for part, m in (("train", n), ("test", 40)):
            for i in range(m):
                _write_image(rng, place / f"mnist_m_{part}" / f"{i:08d}.png")
            lines = "".join(f"{i:08d}.png {y[i]}\n" for i in range(m))
            (place / f"mnist_m_{part}_labels.txt").write_text(lines, encoding="ascii")
    return domain | {"kind": kind} | ({"root": str(root)} if "root" in domain else {})


def _write_image(rng: np.random.Generator, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image: NDArray[np.uint8] = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(image).save(path)
