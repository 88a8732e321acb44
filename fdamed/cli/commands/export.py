"""Export the adapted model of one run as ONNX and safetensors, with preprocessing and model card.

No image, no patient and no path of this machine goes into the folder.

Examples:
    fdamed export results/demo/runs/gp/edema/0 --out edema_model
    fdamed export --config config/config.yaml --run gp --target edema --seed 0 --out gp_edema_0
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed import __version__
from fdamed.cli.options import add_config, add_run, read_config
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest_file, write_json, write_text
from fdamed.export.bundle import ABOUT, FORMAT, ONNX, WEIGHTS, Exported, rebuilt
from fdamed.pipeline.finished_runs import Chosen, by_folder, of_study
from fdamed.pipeline.paths import needed, tensors_in

if TYPE_CHECKING:
    from torch import Tensor

    from fdamed.export.runtime import Floats

log = logging.getLogger(__name__)
GROUP = "use the model", 1
CHECKED, RANDOM = 64, 8
"""Cached images, and random ones, on which the forms of the model are compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="results/COHORT/runs/RUN/TARGET/SEED, or:")
    add_config(parser, required=False)
    add_run(parser, required=False)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="new or empty folder to write")
    parser.add_argument("--without-onnx", action="store_true", help="safetensors alone, for use with fdamed and torch")
    parser.add_argument("--json", action="store_true", help="print model.json on standard output")


def run(arguments: argparse.Namespace) -> None:
    from fdamed.export.onnx_file import LIMIT, can_write_onnx

    chosen = find(arguments)
    if not arguments.without_onnx and not can_write_onnx():
        fix = "pip install 'fdamed[export]', or write safetensors alone with --without-onnx."
        raise FdamedError("onnx and onnxruntime are not installed", "export", fix)
    if arguments.out.exists() and (not arguments.out.is_dir() or any(arguments.out.iterdir())):
        raise FdamedError("the folder is not empty", str(arguments.out), "Name a new one; nothing is overwritten.")
    about = write(chosen, arguments.out, not arguments.without_onnx)
    if chosen.method is not None and chosen.method.keeps:
        told = "this model was kept inside the hospital during the study; who passes the folder on lets it out"
        log.warning(told)
    if arguments.json:
        print(json.dumps(about, indent=1, ensure_ascii=False))
        return
    print(f"{chosen.record.key}: {', '.join(about['files'])}, {ABOUT}, model_card.md in {arguments.out}")
    for form, apart in about["parity"]["max_difference"].items():
        print(f"largest difference of {form} from the run's model: {apart:.2g} (limit {LIMIT:g})")


def find(arguments: argparse.Namespace) -> Chosen:
    """The run that the command line names, if it is finished and has a model of its own."""
    one = (arguments.run_name, arguments.target, arguments.seed)
    if arguments.folder:
        if one != (None, None, None):
            fix = "Give the run's folder, or --config with --run, --target and --seed."
            raise FdamedError("a run was named twice", "command line", fix)
        return by_folder(Path(arguments.folder))
    if None in one or not arguments.config:
        fix = "Give the run's folder, or --config with --run, --target and --seed."
        raise FdamedError("no run was named", "command line", fix)
    config = read_config(arguments)
    return of_study(config, *one)


def write(chosen: Chosen, out: Path, onnx: bool) -> dict[str, Any]:
    """Make all files beside `out`, compare the forms of the model, and only then put the folder in its place."""
    from safetensors.torch import save_file

    from fdamed.export.onnx_file import held_to_limit, write_onnx

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
        draft = Path(name)
        tensors = tensors_of(chosen)
        with atomic(draft / WEIGHTS) as part:
            save_file({k: v.contiguous() for k, v in tensors.items()}, part, metadata={"format": "pt"})
        network = rebuilt(chosen.config.model, chosen.method, tensors)
        batches, images = samples(chosen)
        about = describe(chosen)
        if onnx:
            import torch

            told = {k: about[k] for k in ("study", "input", "output", "preprocessing")}
            write_onnx(network, torch.from_numpy(batches[0]), draft / ONNX, {"fdamed": __version__} | told)
        about["files"] = {p.name: digest_file(p) for p in sorted(draft.iterdir())}
        found = compared(Exported(draft, about), network, batches)
        held_to_limit(found)
        about["parity"] = {"images": images, "random": RANDOM, "max_difference": found}
        write_json(draft / ABOUT, about)
        _card(chosen, about, draft)
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o777 & ~umask)
        if out.exists():
            out.rmdir()
        draft.rename(out)
        draft.mkdir()  # what the temporary folder's end removes
    return about


def tensors_of(chosen: Chosen) -> dict[str, Tensor]:
    """What the model consists of: the run's weights, or what the target keeps of its own."""
    from fdamed.federation.client_state import read_memory
    from fdamed.pipeline.personalized_models import own_path

    record = chosen.record
    if chosen.method is None or not chosen.method.keeps:
        return tensors_in(chosen.folder / "theta.safetensors", "federate")
    path = needed(own_path(chosen.places, record.target, record.run, record.target, record.seed), "federate")
    kept = read_memory(path)
    if not all(name in kept for name in chosen.method.keeps):
        fix = "Look into the run's log for the messages that it missed; more rounds may help."
        raise FdamedError(f"{record.target} has no whole model of its own in this run", str(path), fix)
    return kept


def samples(chosen: Chosen) -> tuple[list[Floats], int]:
    """Inputs for the comparison: random ones, and where the cache is there, images of the target; none is kept."""
    import numpy as np
    import torch

    from fdamed.core.rng import stream
    from fdamed.data.loader import load
    from fdamed.training.local import as_input

    shape = input_shape(chosen.config)
    batches = [stream(0, "export").numpy.random((RANDOM, *shape), dtype=np.float32)]
    folder = chosen.places.client(chosen.record.target)
    if not (folder / "images.npy").is_file():
        return batches, 0
    data = load(folder, splits=("test",))
    images = as_input(torch.from_numpy(data.batch(np.arange(min(CHECKED, len(data)))))).numpy()
    return [*batches, images[:1], images], len(images)


def input_shape(config: Config) -> tuple[int, ...]:
    """One input of the network, without the batch."""
    if config.model.backbone == "mlp":
        return (config.model.inputs,)
    return (config.model.channels, config.image.size, config.image.size)


def compared(exported: Exported, network: Any, batches: list[Floats]) -> dict[str, float]:
    """Form -> how far the model as it was written is from the run's own."""
    from fdamed.export.onnx_file import furthest, in_torch

    reference = in_torch(network)
    forms = {"safetensors": "torch"} | ({"ONNX": "onnxruntime"} if ONNX in exported.about["files"] else {})
    return {form: furthest(reference, exported.scorer(runtime)[1], batches) for form, runtime in forms.items()}


def describe(chosen: Chosen) -> dict[str, Any]:
    """model.json without its `files` and `parity`."""
    from fdamed.core.provenance import commit
    from fdamed.evaluation.metrics import THRESHOLD
    from fdamed.export.onnx_file import OPSET
    from fdamed.export.runtime import INPUT, OUTPUT
    from fdamed.export.semantics import classes_of, meaning_of, preparation_of

    config, record, facts = chosen.config, chosen.record, chosen.record.facts
    classes = classes_of(config, record.target)
    preparation = preparation_of(config, record.target)
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
            "meaning": meaning_of(config, record.target),
            "positive": classes[1] if len(classes) == 2 else None,
            "threshold": THRESHOLD if len(classes) == 2 else None,
        },
        "preprocessing": preparation.described() if preparation else None,
        "network": config.model.model_copy(update={"weights": None}).model_dump(mode="json"),
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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _card(chosen: Chosen, about: dict[str, Any], folder: Path) -> None:
    from fdamed.export.document import to_html, to_markdown
    from fdamed.export.model_card import blocks
    from fdamed.export.model_card_facts import facts_of

    kept = chosen.method is not None and bool(chosen.method.keeps)
    content = blocks(facts_of(chosen.config, chosen.record, about, kept))
    write_text(folder / "model_card.md", to_markdown(content))
    write_text(folder / "model_card.html", to_html(content, f"Model card: {chosen.record.key}"))
