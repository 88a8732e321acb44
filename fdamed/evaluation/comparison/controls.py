"""Controls: what the target reaches with its own labels or images alone, beside the methods that use them.

Target only is the control of every method that trains on the target's labels; with the share of the target's step that
a projection with this beta takes (beta = 0.5: half a step), it is that method's own control. AdaBN is the control of
every method that trains on the target's unlabeled images.
"""

from __future__ import annotations

from collections.abc import Mapping

from fdamed.config.loader import catalog
from fdamed.config.runs import Run


def is_control(run: Run) -> bool:
    """Whether the run is a baseline that uses the target's labels without sources, or its images without labels."""
    entry = catalog()[run.method]
    alone = entry["target_labels"] != entry["asks_sources"]
    return bool(entry["baseline"] and entry["asks_target"] and not entry["every_target_label"] and alone)


def controls(runs: Mapping[str, Run]) -> dict[str, str]:
    """Run -> its control, for every run that has one among `runs`."""
    known = {name: run for name, run in runs.items() if is_control(run)}
    found = {name: _control(run, known) for name, run in runs.items() if name not in known}
    return {name: control for name, control in found.items() if control}


def _control(run: Run, known: Mapping[str, Run]) -> str:
    entries = [catalog()[phase.method] for phase in (run, run.then) if phase]
    if not any(e["asks_target"] for e in entries) or any(
        e["every_target_label"] or e.get("classical") for e in entries
    ):
        return ""
    labels = any(e["target_labels"] for e in entries)
    alike = {
        name: control
        for name, control in known.items()
        if catalog()[control.method]["target_labels"] == labels
        and (control.labeled, control.noise) == (run.labeled, run.noise)
    }
    beta = float(_option(run, "beta", 0.0))
    steps = {name: abs(float(_option(control, "server_step", 1.0)) - (1 - beta)) for name, control in alike.items()}
    return min(steps, key=lambda name: steps[name], default="")


def _option(run: Run, name: str, otherwise: float) -> float:
    """The value of an option, its default, or `otherwise` where the method has no such option."""
    options = catalog()[run.method]["options"]
    value = run.options.get(name, options[name]["default"]) if name in options else otherwise
    return value if isinstance(value, int | float) else otherwise
