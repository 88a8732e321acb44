"""The model card of an exported model, in the order of Mitchell et al. (2019), filled from the study's files.

What the study did not measure is said to be not measured; counts and scores that tell of few persons are not here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.disclosure import vague
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.protocol import SPLITS
from fdamed.export.document import Block, Heading, Items, Table, Text
from fdamed.export.model_card_limits import MANY, limits, privacy
from fdamed.export.model_card_scores import NOT_MEASURED, calibration, scores, subgroups
from fdamed.report.formatting import count, megabytes


@dataclass(frozen=True)
class Facts:
    """What the card is written from; `about` is model.json."""

    config: Config
    about: Mapping[str, Any]
    paper: str
    labeled: int | float | str
    target_labels: bool
    """Whether the method uses the target's few labels."""
    every_label: bool
    parameters: int
    sizes: pd.DataFrame
    rejected: Sequence[tuple[str, str]]
    leakage: Mapping[str, Any] | None
    own: Mapping[str, float | str]
    """Score of the exported seed at the target, or why there is none."""
    over_seeds: Mapping[str, Interval]
    seeds: Sequence[int]
    elsewhere: Mapping[str, Mapping[str, float | str]]
    """The same for the other hospitals where the run was scored."""
    audit: Mapping[str, Any] | None
    sent: pd.DataFrame
    noise: float
    private: Mapping[str, Any] | None
    """`privacy` of run.json: what noise at the sources cost."""
    kept: bool
    """Whether the model never left its hospital in the study."""

    @property
    def study(self) -> Mapping[str, Any]:
        return dict(self.about["study"])

    @property
    def smallest(self) -> int:
        return self.config.privacy.smallest_cell


def blocks(facts: Facts) -> list[Block]:
    """The whole card."""
    study = facts.study
    out: list[Block] = [Heading(f"Model card: {study['title']} for {study['target']} ({study['study']})", 1)]
    if study["synthetic"]:
        told = "Trained on synthetic phantoms drawn by a program: nothing in this card is about real patients."
        out.append(Text(told, warning=True))
    return [
        *out,
        *_details(facts),
        *_use(facts),
        *_data(facts),
        *_sent(facts),
        *scores(facts),
        *subgroups(facts),
        *calibration(facts),
        *privacy(facts),
        *limits(facts),
        *_provenance(facts),
    ]


def _details(facts: Facts) -> list[Block]:
    about, study = facts.about, facts.study
    options = ", ".join(f"{k} {v}" for k, v in study["options"].items()) or "none"
    output, network = about["output"], about["network"]
    positive = f"; from {output['threshold']:g} on it is called positive" if output["threshold"] is not None else ""
    apart = "; ".join(f"{form} {value:.1g}" for form, value in about["parity"]["max_difference"].items())
    shape = " x ".join(map(str, about["input"]["shape"]))
    return [
        Heading("Model details"),
        Items(
            [
                f"Method: {study['title']} (`{study['method']}`; {facts.paper}), options: {options}.",
                f"Network: {network['backbone']}, width {network['width']:g}, {facts.parameters:,} parameters.",
                f"Input: `{about['input']['name']}`, {shape}, float32 in 0 to 1. How a DICOM, JPEG or PNG file becomes "
                "that is written in `preprocessing` of model.json; `fdamed predict` does it.",
                f"Output: `{output['name']}`, one probability each for: {', '.join(output['classes'])}{positive}.",
                f"Labels: {output['meaning']}.",
                f"Largest difference from the run's own model: {apart}; compared on {about['parity']['images']} images "
                f"of the hospital, which are not in this folder, and {about['parity']['random']} random ones.",
                f"Trained {str(study['trained'] or 'at an unknown time')[:10]} in {study['rounds']} rounds, "
                f"seed {study['seed']}.",
            ]
        ),
    ]


def _use(facts: Facts) -> list[Block]:
    output, target = facts.about["output"], facts.study["target"]
    views = facts.about["preprocessing"]["steps"][0]["views"] if facts.about["preprocessing"] else []
    kind = f"{' or '.join(views)} chest radiographs" if views else "images like those of the study"
    asked = output["positive"] or "the class"
    return [
        Heading("Intended use"),
        Items(
            [
                f"Research: to study how well {asked} can be told from {kind} at the hospital `{target}`, and what the "
                "labeled images of other hospitals add.",
                "Users: researchers and data scientists who know how the labels below were made.",
                "**Not** for diagnosis, triage or any decision about a patient: this is no medical device, and no "
                "clinical validation was done.",
                f"Not for other labels, other views or other hospitals than `{target}` without a new evaluation there.",
            ]
        ),
    ]


def _data(facts: Facts) -> list[Block]:
    config, study = facts.config, facts.study
    layout = config.data.layout + (", synthetic" if study["synthetic"] else "")
    head = ["hospital", "role", *(f"{s}: images (positive)" for s in SPLITS)]
    rows = []
    hospitals = {str(client): frame for client, frame in facts.sizes.groupby("hospital", sort=False)}
    for client in _few(list(hospitals), study["target"]):
        frame = hospitals[client]
        cells = {str(row["split"]): row for row in frame.to_dict("records")}
        role = "target" if client == study["target"] else "source"
        rows.append([client, role, *(_cell(cells[s]) for s in SPLITS)])
    told = [
        *_rest(len(hospitals), len(rows)),
        f"Data set: {layout}; hospitals cut by {config.split.by}.",
        f"{_learns(facts)} It is judged on `test`, which no training and no choice has seen.",
    ]
    if isinstance(config.split, Split):
        told.append(f"Rows kept: {config.split.where or 'all'}; images a class and hospital: {config.split.per_class}.")
    if facts.leakage is None:
        told.append(f"Patients in two splits or hospitals: {NOT_MEASURED}.")
    else:
        names = ("patients_in_two_splits", "patients_in_two_clients", "near_duplicates")
        splits, clients, alike = (vague(int(facts.leakage[name]), facts.smallest) for name in names)
        told.append(
            f"Patients in two splits: {splits}, at two hospitals: {clients}; look-alikes in two splits: {alike}."
        )
    refused = ", ".join(f"{reason} {n}" for reason, n in facts.rejected) or "none"
    told.append(f"Refused files and rows: {refused}.")
    return [Heading("Training and evaluation data"), Table(head, rows), Items(told)]


def _learns(facts: Facts) -> str:
    if facts.every_label:
        return "The target learns from all its labels (`train` and `adapt`), as no real target could."
    if facts.target_labels:
        return f"The target learns from labeled images: {facts.labeled} (`adapt`)."
    return "The target's labels are not used for learning."


def _cell(row: Mapping[Hashable, Any]) -> str:
    rate = row["rate"]
    share = f" ({rate:.0%})" if isinstance(rate, float) else f" ({rate})" if rate else ""
    return f"{count(row['images'])}{share}"


def _sent(facts: Facts) -> list[Block]:
    out: list[Block] = [Heading("What left each hospital")]
    if facts.sent.empty:
        return [*out, Text("Nothing: this run learned inside one hospital.")]
    sums = facts.sent.pivot_table(index="hospital", columns="kind", values="bytes", aggfunc="sum", fill_value=0.0)
    order = sums.loc[_few([str(name) for name in sums.index], facts.study["target"])]
    rows = [
        [str(name), *(megabytes(float(v) / 1e6) if v else "-" for v in cells)]
        for name, cells in zip(order.index, order.to_numpy(), strict=True)
    ]
    steps = sorted({str(step).rpartition(".")[2] for step in facts.sent["step"]})
    told = [
        f"Steps in which it was sent: {', '.join(steps)}. Receiver: the server; rows of `server` are models of single "
        "hospitals that it passed on.",
        *_rest(len(sums), len(rows)),
    ]
    begin = "Images, reports and patient identifiers left no hospital. What did leave, in the whole run, by the ledger:"
    return [*out, Text(begin), Table(["from", *(str(kind) for kind in sums.columns)], rows), Items(told)]


def _few(names: Sequence[str], target: str) -> list[str]:
    """All hospitals, or where they are many the target and the first of the others."""
    return list(names) if len(names) <= MANY else [target, *(n for n in names if n != target)][:MANY]


def _rest(there: int, shown: int) -> list[str]:
    return [f"{there - shown} more hospitals are not shown here."] if there > shown else []


def _provenance(facts: Facts) -> list[Block]:
    versions, study = facts.about["versions"], facts.study
    trained = versions.get("trained_with") or {}
    here = {k: v for k, v in versions.items() if k not in ("trained_with", "commit") and v is not None}
    again = f"`fdamed export --config CONFIG --run {study['run']} --target {study['target']} --seed {study['seed']}`"
    rows = [
        ["study, run, target, seed", f"{study['study']}, {study['run']}, {study['target']}, {study['seed']}"],
        ["seeds of the study", ", ".join(map(str, facts.seeds))],
        ["trained with", ", ".join(f"{k} {v}" for k, v in trained.items()) or "not recorded"],
        ["exported with", ", ".join(f"{k} {v}" for k, v in here.items())],
        ["git commit of the export", versions["commit"] or "not in a git checkout"],
        *([f"digest: {name}", f"`{value}`"] for name, value in facts.about["digests"].items()),
        *([f"digest: {name}", f"`{value}`"] for name, value in facts.about["files"].items()),
        ["made by", again],
    ]
    return [Heading("Provenance"), Table(["what", "value"], rows)]
