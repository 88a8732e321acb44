"""Checks of the runs against the sizes of the parts: what every training job of them would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fdamed.config.loader import catalog
from fdamed.config.policy_checks import check_minimum
from fdamed.config.study import Config
from fdamed.core.counts import Counts
from fdamed.core.errors import FdamedError
from fdamed.pipeline.tuning.validation_parts import choosers


def below_minimum(config: Config, counts: Mapping[str, Counts]) -> Iterator[FdamedError]:
    """The runs for which a client has too few images or steps; `counts`: those of every client in full."""
    images = {client: found["images"] for client, found in counts.items()}
    for name, run in config.trained_runs().items():
        try:
            check_minimum(name, run, config, catalog(), images, "privacy")
        except FdamedError as error:
            yield error


def check_plan(config: Config, counts: Mapping[str, Counts]) -> None:
    """Raise before the first training if a run could not be trained."""
    for error in below_minimum(config, counts):
        raise error
    for name, run in config.expanded_runs().items():
        for target in config.split.targets if run.tune and run.select == "validation" else ():
            choosers(config, name, target, counts)
