"""The `split` section: how data become clients; radiographs by a `Split`, public sets by a `Partition`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from fdamed.config.base import Name, Share, Strict, not_removed
from fdamed.core.errors import nearest

Size = Share | Annotated[int, Field(ge=2, strict=True)]
"""A share below 1 of a client's images in all parts, or a whole number of images."""


class Split(Strict):
    """How the index is split into clients."""

    by: str
    """`condition`, or a column of the row contract such as race, site, view, projection, scanner."""
    clients: Annotated[dict[Name, str], BeforeValidator(not_removed, json_schema_input_type=dict[Name, str | None])]
    """Client -> its condition or value of the column; with `by: expression`, an expression such as
    "race == 'Asian' and age >= 40". `name: null` in a later file or a variant removes a client."""
    target: str
    """The client to adapt to; `each`: every client in turn."""
    label: str | None = None
    """The label to predict; with `by: condition` it is each client's own condition."""
    positive_is: Literal[1, 0] = 1
    """0 inverts the label: with label `No Finding`, 0 makes `finding` the positive class."""
    negatives: Literal["zero", "blank", "no_finding"] = "zero"
    """Which rows are negatives: label 0; label blank (the published reference code); No Finding = 1."""
    uncertain: Literal["ones", "zeros", "ignore"] = "ignore"
    """What label -1 counts as."""
    where: str | None = None
    """Keep only the rows for which this expression holds, e.g. "view == 'frontal'"."""
    per_class: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """Images of each class that a client trains on (train and adapt parts together), beside those of val and test;
    `all`: everything that val and test leave over. Patients are kept whole, so this and the sizes of val and test are
    met to within one patient."""
    balanced: bool = True
    """Equally many images of both classes in every part: the larger class is reduced to the size of the smaller one."""
    labeled: Annotated[int, Field(ge=2)] = 100
    """Labeled images of a client when it is the target (adapt part), of those that it trains on; with `balanced` half
    of each class, else with the client's share of positives."""
    val: Size = 0.1
    """Images to choose a round by: a share below 1 of the client's images in all parts, or a number of images."""
    test: Size | Literal["rest"] = 0.2
    """Images to test on: a share, a number, or `rest`: all that `per_class` and `val` leave over."""
    held_out: Literal["all", "targets"] = "all"
    """Who has val and test parts. targets: sources train on all their images; then their patients cannot be attacked
    (membership inference) and no model can be tested there."""
    rule: Literal["disjoint", "reference"] = "disjoint"
    """disjoint: a patient is at one client and in one part; reference: the published rule, which leaks."""
    shares: dict[Name, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default={})
    """For patients who fit several clients: the relative probability of each; empty: equal."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Gaussian noise on the target's pixels (standard deviation, pixels in 0..1), drawn again at each access."""
    seed: int = 0
    """Seed of the random assignment to parts and clients."""

    @model_validator(mode="after")
    def _fits(self) -> Split:
        if self.target != "each" and self.target not in self.clients:
            near = nearest(self.target, self.clients)
            raise ValueError(f"target {self.target!r} is not one of the clients: {', '.join(self.clients)}, each{near}")
        if len(self.clients) < 2:
            raise ValueError("at least two clients are needed: one source and the target")
        if self.by != "condition" and self.label is None:
            raise ValueError("unless `by` is condition, `label` is required: the label to predict")
        stray = [p for p in self.shares if p not in self.clients]
        if stray:
            raise ValueError(f"shares names {', '.join(stray)}, which is not a client")
        if sum(size for size in (self.val, self.test) if isinstance(size, float)) >= 0.9:
            raise ValueError("val + test leave nothing to train on")
        if isinstance(self.per_class, int) and self.labeled > 2 * self.per_class:
            raise ValueError(f"labeled: {self.labeled} is more than both classes of per_class: {self.per_class} have")
        if self.test == "rest" and self.per_class == "all":
            raise ValueError("`test: rest` and `per_class: all` both ask for all images: give one of them a number")
        return self

    @property
    def asked(self) -> dict[str, Any]:
        """The sizes as the configuration has them; what was obtained stands beside each client."""
        return {key: getattr(self, key) for key in ("per_class", "labeled", "val", "test", "held_out")}

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.clients) if self.target == "each" else (self.target,)


PARTITIONS = ("iid", "classes", "dirichlet", "label_shift", "domain")


class Partition(Strict):
    """How the samples of public sets are split into clients."""

    by: Literal["iid", "classes", "dirichlet", "label_shift", "domain"]
    """iid: equal parts; classes: `classes_each` classes per source, all at the target; dirichlet: class shares drawn
    with `concentration`; label_shift: two groups of classes mixed by `eta`; domain: each set is a client."""
    n_clients: Annotated[int, Field(ge=2)] = 10
    """Clients C0, C1, ... of which the last is the target; with `sources` all are sources; not with `by: domain`."""
    domains: tuple[Name, ...] = ()
    """With `by: domain`: the sets that take part."""
    sources: Name | None = None
    """Split this set into `n_clients` sources; the target is then another set, named by `target`."""
    target_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """With `sources` of the same files as the target's set: share of the training part that is the target's alone."""
    target: str = ""
    """Default: the last client."""
    classes_each: Annotated[int, Field(ge=1)] | None = None
    """With `by: classes`: how many classes each source has."""
    concentration: Annotated[float, Field(gt=0)] = 0.5
    """Of the Dirichlet distribution; the smaller, the more the clients' classes differ."""
    eta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With label_shift: share of the first group at the sources, of the second at the target."""
    first_group: tuple[int, ...] = ()
    """With label_shift: the classes of the first group."""
    per_source: Annotated[int, Field(ge=2)] | None = None
    """Training samples of a source at most."""
    labeled: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | Literal["all"] = 100
    """Labeled samples of the target, their share of its part, or all that are not to validate or test."""
    val: Share = 0.0
    """Share of the target's samples to choose a round by."""
    test: Literal["release"] | Share = "release"
    """The test part that the set ships, or a share of the target's own samples."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Gaussian noise on the target's pixels (standard deviation, pixels in 0..1), drawn again at each access."""
    seed: int = 0
    """Seed of the random assignment to parts and clients."""

    @model_validator(mode="after")
    def _fits(self) -> Partition:
        if self.by == "domain" and len(self.domains) < 2:
            raise ValueError("by: domain needs `domains`, at least two of them")
        if self.by == "domain" and not self.target:
            raise ValueError("by: domain needs a `target`, one of the domains or `each`")
        if (self.by == "classes") != (self.classes_each is not None):
            raise ValueError("by: classes needs `classes_each`, and no other `by` has it")
        if self.by == "label_shift" and not self.first_group:
            raise ValueError("by: label_shift needs `first_group`, the classes of the first group")
        if self.by == "label_shift" and self.test == "release":
            raise ValueError("by: label_shift needs `test` as a share: the released test part has other class shares")
        if self.sources:
            self._sources_fit()
        if self.target and self.target != "each" and self.target not in self.clients:
            raise ValueError(f"target {self.target!r} is not one of: {', '.join(self.clients)}, each")
        return self

    def _sources_fit(self) -> None:
        if self.by in ("domain", "label_shift"):
            raise ValueError(f"`sources` goes with by: iid, classes or dirichlet, not with {self.by}")
        if not self.target or self.target in ("each", self.sources):
            raise ValueError("with `sources`, `target` names another set")
        if self.target in self._clients:
            raise ValueError(f"the target's set cannot be called {self.target}: that is a client's name")

    @property
    def clients(self) -> dict[str, str]:
        """Client -> the set that it comes from, or "" for a part of the one set."""
        if self.by == "domain":
            return {d: d for d in self.domains}
        if self.sources:
            return dict.fromkeys(self._clients, self.sources) | {self.target: self.target}
        return dict.fromkeys(self._clients, "")

    @property
    def _clients(self) -> list[str]:
        width = len(str(self.n_clients - 1))
        return [f"C{i:0{width}d}" for i in range(self.n_clients)]

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets it names; empty: the only set."""
        return (self.sources, self.target) if self.sources else self.domains

    @property
    def targets(self) -> tuple[str, ...]:
        names = tuple(self.clients)
        return names if self.target == "each" else (self.target or names[-1],)


def _which(value: Any) -> str:
    by = value.get("by") if isinstance(value, dict) else getattr(value, "by", None)
    return "partition" if by in PARTITIONS else "split"


Hospitals = Annotated[Annotated[Split, Tag("split")] | Annotated[Partition, Tag("partition")], Discriminator(_which)]
