"""Attribute inference: how well sex, age, race and view can be predicted from the features.

One pass over at most `audit.images` images of the target with each finished model, and with the initial weights.
Features and predictions for single images stay in the client's folder; AUCs with intervals go out.

Examples:
    fdamed attributes --config config/config.yaml --target edema
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from fdamed.cli.options import add_config, add_threads, read_config
from fdamed.config.runs import Run
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic, digest, digest_file, write_json
from fdamed.pipeline.paths import FROZEN, Places, needed, rows_in, weights_in
from fdamed.pipeline.scoring import trained_model
from fdamed.pipeline.selection import StudyRun, check_known, is_classical

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fdamed.data.loader import Labeled
    from fdamed.evaluation.attribute_inference import Question
    from fdamed.models.flat import FlatModel

log = logging.getLogger(__name__)
GROUP = "analyze", 3
PRIVATE = True
SPLITS = ("train", "adapt", "val", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--target", required=True, metavar="CLIENT", help="the client whose images are embedded")
    add_threads(parser)


def run(arguments: argparse.Namespace) -> None:
    import torch

    config = read_config(arguments)
    check_known("target", arguments.target, config.split.targets)
    torch.set_num_threads(arguments.threads)
    content = probed(config, arguments.target)
    path = Places.of(config).root / "attributes" / f"{arguments.target}.json"
    write_json(path, content)
    log.info(f"{len(content['attributes'])} attributes: {path}")


def probed(config: Config, target: str) -> dict[str, Any]:
    """What probe/{target}.json holds."""
    from fdamed.core.rng import stream
    from fdamed.evaluation import attribute_inference as probe
    from fdamed.evaluation.intervals import LEVEL

    places = Places.of(config)
    rows = rows_in(places.client(target) / "order.parquet", "cache")
    here = probe.chosen(rows["patient"].tolist(), config.audit.images, stream(0, config.study, target, "probe"))
    asked = probe.questions(
        rows.iloc[here].reset_index(drop=True),
        config.privacy.smallest_cell,
        stream(0, config.study, target, "questions"),
    )
    content: dict[str, Any] = {"target": target, "level": LEVEL, "images": len(here), "attributes": {}}
    if not asked:
        return content
    read = _read(config, target, here, asked)
    content["runs"] = {name: sorted(by_seed) for name, by_seed in read.items()}
    content["attributes"] = {q.name: _told(config, q, i, read) for i, q in enumerate(asked)}
    return content


Read = dict[str, dict[int, list["NDArray[Any]"]]]
"""Run -> seed -> what was read, an array a question."""


def _read(config: Config, target: str, here: NDArray[Any], asked: list[Question]) -> Read:
    """What probes read from every model that is there; the same asked of the same weights is read once."""
    from fdamed.core.provenance import digest_code
    from fdamed.data.loader import Labeled, load
    from fdamed.evaluation.attribute_inference import UNTRAINED
    from fdamed.pipeline.clients import resident

    places = Places.of(config)
    whole = load(places.client(target), SPLITS, noise=config.split.noise)
    data = Labeled(whole.images[here], whole.y[here], {}, whole.noise)
    order, code = (
        digest_file(places.client(target) / "order.parquet"),
        digest_code("fdamed.evaluation.attribute_inference"),
    )
    questions = [(q.name, q.classes, len(q.rows)) for q in asked]
    same = digest([order, config.audit.images, config.split.noise, questions, code])
    model, out = resident(config), Read()
    federated = {n: r for n, r in config.expanded_runs().items() if not is_classical(r)}
    for name, spec in [(UNTRAINED, None), *federated.items()]:
        for seed in config.seeds:
            if not (places.weights(FROZEN if spec is None else name, target, seed)).exists():
                continue
            weights = _weights(config, spec, name, target, seed)
            kept = places.client(target) / "attributes" / name / target / f"{seed}.safetensors"
            about = {"weights": digest_file(weights), "asked": same}
            out.setdefault(name, {})[seed] = _kept(kept, about, len(asked)) or _probe(
                config, spec, name, target, seed, model, data, asked, kept, about
            )
    if not any(name != UNTRAINED for name in out):
        raise FdamedError("no run is finished at this target", target, "Run `fdamed federate` first.")
    return out


def _weights(config: Config, spec: Run | None, name: str, target: str, seed: int) -> Path:
    """The file that the features come from."""
    from fdamed.pipeline.personalized_models import own_path
    from fdamed.pipeline.phases import phases

    places = Places.of(config)
    if spec is not None and phases(config, spec)[-1].method.keeps:
        return needed(own_path(places, target, name, target, seed), "federate")
    return places.weights(FROZEN if spec is None else name, target, seed)


def _probe(
    config: Config,
    spec: Run | None,
    name: str,
    target: str,
    seed: int,
    model: FlatModel,
    data: Labeled,
    asked: list[Question],
    kept: Path,
    about: dict[str, str],
) -> list[NDArray[Any]]:
    from safetensors.numpy import save_file

    from fdamed.core.rng import stream
    from fdamed.evaluation.attribute_inference import read
    from fdamed.models.flat import FlatModel
    from fdamed.training.local import embed

    if spec is None:
        model.load(weights_in(Places.of(config).weights(FROZEN, target, seed), "init", model.layout))
    else:
        model = trained_model(StudyRun(config, name, target, seed, spec), target, model)
        inner = getattr(model.module, "network", None)  # where more than the network predicts, it is inside
        model = FlatModel(inner, model.theta.device) if inner is not None else model
    z = embed(model, data, rng=stream(seed, target, "probe", "noise")).numpy()
    found = [read(question, z) for question in asked]
    with atomic(kept) as draft:
        save_file({str(i): a for i, a in enumerate(found)}, draft, metadata=about)
    return found


def _kept(path: Path, about: dict[str, str], questions: int) -> list[NDArray[Any]] | None:
    """What was read before, if it was of these weights, images and questions; a damaged file is read anew."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            same = file.metadata() == about
            return [file.get_tensor(str(i)) for i in range(questions)] if same else None
    except SafetensorError:
        return None


def _told(config: Config, question: Question, place: int, read: Read) -> dict[str, Any]:
    """Run -> how well the attribute is read, with an interval over patients and seeds; and what auxiliary heads do."""
    import numpy as np

    from fdamed.core.disclosure import rounded
    from fdamed.evaluation.ablations import without_heads
    from fdamed.evaluation.attribute_inference import SHUFFLES, area, explained
    from fdamed.evaluation.comparisons import score, told
    from fdamed.evaluation.paired_tests import contrast

    areas, runs = {}, {}
    for name, by_seed in read.items():
        said = np.stack([found[place] for found in by_seed.values()])
        found = area(question, said[:, 0])
        if found is None:
            continue
        areas[name] = found
        nothing = [a.value for i in range(1, SHUFFLES + 1) if (a := area(question, said[:, i], i)) is not None]
        runs[name] = score(contrast([(1, found)])) | {"shuffled": float(np.mean(nothing)) if nothing else None}
        if question.name == "age":
            runs[name]["r2"] = float(explained(question, said[:, 0]).mean())
    specs = config.expanded_runs()
    heads = [
        {"run": name, "base": base, "heads": _heads(specs[name]), **told(contrast([(1, a), (-1, b)]))}
        for name, base in without_heads(specs).items()
        if (a := areas.get(name)) and (b := areas.get(base)) and read[name].keys() == read[base].keys()
    ]
    content: dict[str, Any] = rounded({"classes": list(question.classes), "runs": runs, "heads": heads})
    return content


def _heads(spec: Run) -> list[str]:
    return list(spec.auxiliary.heads) if spec.auxiliary else []
