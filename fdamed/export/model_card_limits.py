"""What a model card says of privacy and of limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdamed.config.datasets import Benchmark, DataSet
from fdamed.config.split import Split
from fdamed.export.document import Block, Heading, Items
from fdamed.export.model_card_scores import NOT_MEASURED
from fdamed.report.formatting import MODES

if TYPE_CHECKING:
    from fdamed.export.model_card import Facts

MANY = 20
"""Hospitals that a table or a sentence of the card shows at most."""


def privacy(facts: Facts) -> list[Block]:
    floor = facts.config.floor
    kept = "This model was kept inside the hospital during the study; passing this folder on lets it out."
    return [
        Heading("Privacy"),
        Items(
            [
                f"Kinds of knowledge that the hospitals allowed out: {', '.join(facts.config.privacy.release)}.",
                *([kept] if facts.kept else []),
                f"The floor: nothing computed on fewer than {floor.images} images, and no model of fewer than "
                f"{floor.steps} local steps a round, left a hospital.",
                noise(facts.private),
                "Weights are not anonymous by themselves: a trained network can give away facts about its training "
                "images. The export adds no noise of its own.",
                f"Membership inference and reconstruction from this model: {NOT_MEASURED}.",
                f"Counts from 1 to {facts.smallest - 1} and scores of groups that small are not shown."
                if facts.smallest > 1
                else "Small counts are shown: `privacy.smallest_cell` of the study is 1.",
                "This folder holds no image, no patient identifier and no path of the machine that made it.",
            ]
        ),
    ]


def noise(private: Mapping[str, Any] | None) -> str:
    """What noise at the sources cost their patients in this training."""
    if not private:
        return "No noise was added at the sources: this model is not differentially private."
    costs = {str(client): (float(c["epsilon"]), float(c["delta"])) for client, c in private["sources"].items()}
    shown = sorted(costs, key=lambda client: -costs[client][0])[:MANY]
    told = ", ".join(f"{client} {costs[client][0]:.2f} (delta {costs[client][1]:.1e})" for client in shown)
    more = f" and at most as much at {len(costs) - len(shown)} others" if len(costs) > len(shown) else ""
    return (
        f"Differential privacy for each {private['unit']} of a source, epsilon of this one training: {told}{more}. "
        f"{MODES[private['mode']].capitalize()}. The target's own images have no noise."
    )


def limits(facts: Facts) -> list[Block]:
    config, study = facts.config, facts.study
    out = [f"One seed of {len(facts.seeds)} is exported; the spread over seeds stands with the scores above."]
    if study["synthetic"]:
        out.append("Phantoms are simpler than patients: every figure here says that the software works, no more.")
    elif isinstance(config.data, DataSet) and config.data.labels_from_reports:
        out.append(
            "The labels were read out of reports by a program; its errors are in the training and in the scores."
        )
    if isinstance(config.split, Split) and (config.split.per_class != "all" or config.split.balanced):
        out.append("The study drew its images class by class: at another prevalence the probabilities are off.")
    if not isinstance(config.data, Benchmark):
        out.append(f"The threshold of {facts.about['output']['threshold']} was not tuned for any use.")
    if facts.noise:
        out.append(
            f"The study added Gaussian noise ({facts.noise:g}) to the target's pixels, also when it was judged; "
            "`fdamed predict` adds none."
        )
    if not facts.elsewhere:
        out.append(f"Scores at hospitals other than the target: {NOT_MEASURED}.")
    out += [
        f"Other scanners, hospitals, years and age groups than those of the target's test split: {NOT_MEASURED}.",
        f"Comparison with radiologists, benefit to patients, drift over time: {NOT_MEASURED}.",
    ]
    return [Heading("Limits"), Items(out)]
