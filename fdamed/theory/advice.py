"""Recommend a method, its beta and the sources from a survey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fdamed.theory.delta_error import Moments, Rule, auto_betas, error

if TYPE_CHECKING:
    from fdamed.theory.survey import Findings

BETAS = tuple(round(0.05 * i, 2) for i in range(1, 21))
"""The grid for the best beta."""
LEVEL = 0.9
"""Coverage of the intervals."""


@dataclass(frozen=True)
class Sample:
    """The moments of all points: the estimate (index 0) or one resample."""

    points: tuple[Moments, ...]
    samples: tuple[int, ...]

    def mean(self, value: Callable[[Moments], float]) -> float:
        """The mean of a value over the points: the L^pi norm."""
        return float(np.mean([value(m) for m in self.points]))

    def error(self, rule: Rule) -> float:
        """Delta^2 of a rule."""
        return self.mean(lambda m: error(rule, m, self.samples))

    def without(self, source: int) -> Sample:
        rest = tuple(n for i, n in enumerate(self.samples) if i != source)
        return Sample(tuple(m.without(source) for m in self.points), rest)


def advise(findings: Findings, runs: Mapping[str, Rule]) -> dict[str, Any]:
    """The advice as it is written to a file; `runs`: the study's runs that the theory covers."""
    drawn = [Sample(points, findings.samples) for points in zip(*findings.points, strict=True)]
    best = {m: min(BETAS, key=lambda b, m=m: drawn[0].error(Rule(m, b, W[m]))) for m in ("fedda", "fedgp")}  # type: ignore[misc]
    candidates = {
        "target_only": Rule("target_only"),
        "fedavg": Rule("fedavg", weighting="samples"),
        "fedda_auto": Rule("fedda_auto", weighting="samples"),
        "fedgp_auto": Rule("fedgp_auto"),
    }
    for method in ("fedda", "fedgp"):
        for beta in sorted({0.5, best[method]}):
            candidates[f"{method}({beta:g})"] = Rule(method, beta, W[method])
    ranking = ranked(drawn, candidates)
    chosen = candidates[ranking[0]["name"]]
    norm2 = _interval([s.mean(lambda m: m.norm2) for s in drawn])
    return {
        "recommended": {"method": chosen.method, "beta": _beta(chosen, drawn[0], findings.sources)},
        "ranking": ranking,
        "runs": {row["name"]: row for row in ranked(drawn, runs)} if runs else {},
        "sources": [_source(drawn, i, name, chosen) for i, name in enumerate(findings.sources)],
        "target": {
            "labeled": findings.labeled,
            "sigma2": _interval([s.mean(lambda m: m.sigma2) for s in drawn]),
            "norm2": norm2,
            "m": drawn[0].mean(lambda m: m.sigma2 / max(float(np.diag(m.cov).mean()), 1e-300)),
        },
        "weak": bool(norm2["low"] <= 0.0),
        "best_beta": best,
        "resamples": len(drawn) - 1,
        "level": LEVEL,
    }


W = {"fedda": "samples", "fedgp": "uniform"}
"""Default weighting of each method."""


def ranked(drawn: Sequence[Sample], rules: Mapping[str, Rule]) -> list[dict[str, Any]]:
    """Each rule with its predicted error, interval and share of resamples in which it is the best; best first."""
    errors = {name: [s.error(rule) for s in drawn] for name, rule in rules.items()}
    table = np.array(list(errors.values()))[:, 1:]
    firsts = np.bincount(table.argmin(0), minlength=len(rules)) / max(table.shape[1], 1)
    rows = [
        {"name": name, "method": rules[name].method, "beta": rules[name].beta, "best_share": float(share)}
        | {"error": _interval(values)}
        for (name, values), share in zip(errors.items(), firsts, strict=True)
    ]
    return sorted(rows, key=lambda row: (row["error"]["value"], row["name"]))


def _source(drawn: Sequence[Sample], i: int, name: str, rule: Rule) -> dict[str, Any]:
    """A source's distances, and whether it lowers the error of the chosen rule (FedDA if that is target only)."""
    judged = rule if rule.method != "target_only" else Rule("fedda", 0.5, "samples")
    gain = [s.without(i).error(judged) - s.error(judged) for s in drawn]
    interval = _interval(gain)
    verdict = "helps" if interval["low"] > 0 else "hurts" if interval["high"] < 0 else "unclear"

    def over_points(value: Callable[[Moments], float]) -> dict[str, float]:
        return _interval([s.mean(value) for s in drawn])

    return {
        "source": name,
        "verdict": verdict,
        "gain": interval,
        "d2": over_points(lambda m: m.distance2[i]),
        "tau2": over_points(lambda m: min(m.beside2[i] / m.distance2[i], 1.0) if m.distance2[i] > 0 else 0.0),
        "delta": over_points(lambda m: m.delta[i]),
        "cosine": over_points(lambda m: float(np.clip(m.t[i] / max(m.norm2, 1e-300) ** 0.5, -1.0, 1.0))),
    }


def _beta(rule: Rule, found: Sample, sources: Sequence[str]) -> float | dict[str, float] | None:
    """The beta to set; for an auto-weighted rule the one it is expected to choose for each source."""
    if not rule.method.endswith("_auto"):
        return rule.beta
    bias2 = [m.distance2 if rule.method == "fedda_auto" else m.beside2 for m in found.points]
    betas = [auto_betas(m.sigma2, bias) for m, bias in zip(found.points, bias2, strict=True)]
    return dict(zip(sources, np.mean(betas, axis=0).tolist(), strict=True))


def _interval(values: Sequence[float]) -> dict[str, float]:
    """The estimate (first) and the percentiles of its resamples, widened to hold it."""
    value, again = values[0], np.array(values[1:] or values[:1])
    low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": value, "low": min(float(low), value), "high": max(float(high), value)}
