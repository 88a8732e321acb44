"""Writes the folder of an exported model: ONNX and safetensors, model.json and the model card."""

from __future__ import annotations

import importlib.metadata
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from fdamed import __version__
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.files import atomic, digest_file, umask, write_json, write_text
from fdamed.core.parts import TRAINED
from fdamed.core.provenance import commit
from fdamed.core.rng import stream
from fdamed.data.loader import load
from fdamed.evaluation.metrics import THRESHOLD
from fdamed.export import monai_bundle, runtime
from fdamed.export.bundle import ABOUT, FORMAT, ONNX, WEIGHTS, network_of, rebuilt
from fdamed.export.cautions import cautions
from fdamed.export.input import Preparation
from fdamed.export.model_card import render
from fdamed.export.onnx_file import OPSET, furthest, held_to_limit, in_torch, write_onnx
from fdamed.export.runtime import INPUT, OUTPUT, Floats
from fdamed.training.input import as_input

if TYPE_CHECKING:
    from fdamed.pipeline.finished_runs import Chosen

CHECKED, RANDOM = 64, 8
"""Cached images, and random ones, on which the forms of the model are compared."""

NEGATIVES = {
    "zero": "the label is 0",
    "blank": "the label is blank",
    "no_finding": "No Finding is 1",
}
UNCERTAIN = {"ones": "count as positive", "zeros": "count as negative", "ignore": "are excluded"}


def write(chosen: Chosen, out: Path, onnx: bool, bundle: bool = False) -> dict[str, Any]:
    """Write all files beside `out`, compare the forms of the model, and only then move the folder to its place.

    `bundle`: also as a MONAI bundle.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
        draft = Path(name)
        tensors = {name: tensor.contiguous() for name, tensor in chosen.tensors().items()}
        with atomic(draft / WEIGHTS) as part:
            save_file(tensors, part, metadata={"format": "pt"})
        network = rebuilt(chosen.config.model, chosen.method, tensors)
        batches, images = samples(chosen)
        about = describe(chosen)
        if onnx:
            shown = {k: about[k] for k in ("study", "input", "output", "preprocessing")}
            write_onnx(network, torch.from_numpy(batches[0]), draft / ONNX, {"fdamed": __version__} | shown)
        about["files"] = {p.name: digest_file(p) for p in sorted(draft.iterdir())}
        found = compared(draft, about, network, batches)
        held_to_limit(found)
        about["parity"] = {"images": images, "random": RANDOM, "max_difference": found}
        about["cautions"] = cautions(chosen.config, chosen.record)
        write_json(draft / ABOUT, about)
        cards = render(chosen.config, chosen.record, about, chosen.keeps)
        for kind, text in zip(("md", "html"), cards, strict=True):
            write_text(draft / f"model_card.{kind}", text)
        if bundle:
            monai_bundle.write(draft, about, network, cards[0])
        draft.chmod(0o777 & ~umask())
        if out.exists():
            out.rmdir()
        draft.rename(out)
        draft.mkdir()  # the context manager removes it
    return about


def samples(chosen: Chosen) -> tuple[list[Floats], int]:
    """Inputs for the comparison: random ones and, if the cache exists, images the target trains on; none is kept."""
    shape = input_shape(chosen.config)
    batches = [stream(0, "export").numpy.random((RANDOM, *shape), dtype=np.float32)]
    folder = chosen.places.client(chosen.record.target)
    if not (folder / "images.npy").is_file():
        return batches, 0
    data = load(folder, parts=TRAINED)
    images = as_input(torch.from_numpy(data.batch(np.arange(min(CHECKED, len(data)))))).numpy()
    return [*batches, images[:1], images], len(images)


def input_shape(config: Config) -> tuple[int, ...]:
    """One input of the network, without the batch."""
    if config.model.backbone == "mlp":
        return (config.model.inputs,)
    return (config.model.channels, config.image.size, config.image.size)


def compared(folder: Path, about: dict[str, Any], network: Any, batches: list[Floats]) -> dict[str, float]:
    """Form -> largest difference of its probabilities from those of the run's model."""
    forms = {"safetensors": in_torch(network_of(about["network"], about["predictor"], folder / WEIGHTS))}
    if ONNX in about["files"]:
        forms["ONNX"] = runtime.in_onnxruntime(folder / ONNX)
    return {form: furthest(in_torch(network), score, batches) for form, score in forms.items()}


def describe(chosen: Chosen) -> dict[str, Any]:
    """model.json without its `files` and `parity`."""
    config, record, facts = chosen.config, chosen.record, chosen.record.facts
    classes, meaning = output_of(config, record.target)
    preparation = preparation_of(config, chosen.places.client(record.target) / "order.parquet")
    phase = record.phases[-1]
    packages = ("torch", "monai", "numpy", "onnx", "onnxruntime")
    return {
        "format": FORMAT,
        "study": {
            "study": config.study,
            "run": record.run,
            "method": record.method,
            "title": facts["title"],
            "options": facts["options"],
            "target": record.target,
            "sources": facts["sources"],
            "seed": record.seed,
            "rounds": facts["rounds"],
            "trained": str(record.timing[0]["started"]) if record.timing else None,
            "synthetic": config.phantom is not None,
        },
        "input": {"name": INPUT, "shape": ["batch", *input_shape(config)], "type": "float32", "range": [0, 1]},
        "output": {
            "name": OUTPUT,
            "shape": ["batch", config.model.classes],
            "classes": classes,
            "meaning": meaning,
            "positive": classes[1] if len(classes) == 2 else None,
            "threshold": THRESHOLD if len(classes) == 2 else None,
        },
        "preprocessing": preparation.described() if preparation else None,
        # Without the path, which says how images were normalized, too.
        "network": config.model.model_copy(
            update={"weights": None, "normalize": "imagenet" if config.model.imagenet else None}
        ).model_dump(mode="json"),
        "predictor": {"method": phase["method"], "options": phase["options"]} if chosen.method else None,
        "digests": facts["digests"] | {"weights": record.weights, "run": record.digest},
        "versions": {
            "trained_with": facts.get("versions"),
            "fdamed": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in packages},
            "opset": OPSET,
            "commit": commit(),
        },
    }


def output_of(config: Config, target: str) -> tuple[list[str], str]:
    """The classes by name, in the order of the output, and what counted as positive and as negative in training."""
    split = config.split
    if not isinstance(split, Split):
        return [str(n) for n in range(config.model.classes)], "the numbered classes of a public benchmark set"
    label = split.label or split.clients[target]
    if split.positive_is == 0:
        return [label, f"no {label}"], f"positive: {label} is 0 in the data set's labels; negative: {label} is 1"
    meaning = f"positive: {label} is 1 in the data set's labels; negative: {NEGATIVES[split.negatives]}"
    uncertain = UNCERTAIN[split.uncertain]
    return [f"no {label}", label], f"{meaning}; uncertain labels {uncertain}"


def preparation_of(config: Config, order: Path) -> Preparation | None:
    """The preprocessing; None for public sets, whose arrays are used as they are."""
    if not isinstance(config.split, Split):
        return None
    return Preparation(config.image.size, config.image.equalize, _views(order))


def _views(path: Path) -> tuple[str, ...]:
    """The views of the images in a client's order.parquet, if all of them are known."""
    if not path.is_file() or "view" not in pq.ParquetFile(path).schema_arrow.names:
        return ()
    found = set(pq.ParquetFile(path).read(columns=["view"])["view"].to_pylist())
    return tuple(sorted(v for v in found if v)) if None not in found else ()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def save_for_mlflow(chosen: Chosen, folder: Path, identity: str) -> None:
    """Write MLflow's model folder: ONNX with signature, an input example that is nobody's image, and the model card."""
    import mlflow.onnx
    import onnx
    from mlflow.models import Model, infer_signature

    with tempfile.TemporaryDirectory(prefix="fdamed-export-") as scratch:
        out, config = Path(scratch) / "model", chosen.config
        write(chosen, out, onnx=True)
        example = np.zeros((1, *input_shape(config)), dtype=np.float32)
        answer = np.full((1, config.model.classes), 1 / config.model.classes, dtype=np.float32)
        mlflow.onnx.save_model(
            onnx.load(str(out / ONNX)),
            folder,
            mlflow_model=Model(model_id=identity),
            signature=infer_signature(example, answer),
            input_example=example,
            pip_requirements=["onnxruntime", "numpy"],
            save_as_external_data=False,
        )
        for name in (ABOUT, "model_card.md", "model_card.html"):
            (folder / name).write_bytes((out / name).read_bytes())
