"""Samples of public sets -> clients: equal parts, few classes each, Dirichlet shares, label shift, one set each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fdamed.config.split import Partition
from fdamed.core.errors import FdamedError
from fdamed.core.rng import Stream, stream
from fdamed.data.benchmark.samples import Samples, numbered_alike
from fdamed.data.manifest import TYPES

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """One client: its samples in the order train, adapt, val, test, and its rows for order.parquet."""

    x: NDArray[Any]
    order: pd.DataFrame


def partition(sets: dict[str, Samples], split: Partition) -> dict[str, Part]:
    """Every client of the partition."""
    out, sets = {}, numbered_alike(sets)
    for client, name, chosen, test in _chosen(sets, split):
        samples, rng = sets[name], stream(split.seed, "partition", client)
        is_target = client in split.targets
        pool = rng.child("pool").numpy.permutation(chosen)
        if split.per_source is not None:
            pool = pool[: split.per_source + (_labeled(split, len(pool)) if is_target else 0)]
        parts = _parts(pool, test, split, client) if is_target else {"train": pool}
        # A sample that was shifted is the sample it was made from.
        known_as = split.sources if split.sources and _same_files(sets, split) else name
        out[client] = _part(samples, known_as, {s: np.sort(rows) for s, rows in parts.items()})
    return out


def _same_files(sets: dict[str, Samples], split: Partition) -> bool:
    """Whether sources and target are split from the same samples, shifted or not."""
    return sets[str(split.sources)].origin == sets[split.target].origin


def _chosen(sets: dict[str, Samples], split: Partition) -> list[tuple[str, str, Ints, Ints]]:
    """(client, its set, its rows outside the released test, the rows of the released test)."""
    if split.by == "domain":
        return [(d, d, np.flatnonzero(~sets[d].test), np.flatnonzero(sets[d].test)) for d in split.domains]
    if not split.sources and (len(sets) != 1 or len(split.targets) != 1):
        fix = "Name one set and one target, or use domain."
        raise FdamedError(f"`by: {split.by}` splits one set for one target", "data.domains", fix)
    name, target = split.sources or next(iter(sets)), split.targets[0]
    samples, own = sets[name], sets[target if split.sources else name]
    clients = [p for p in split.clients if p != target]
    rng = stream(split.seed, "partition")
    rows = rng.child("all").numpy.permutation(np.flatnonzero(~samples.test))
    if split.by == "label_shift":
        rows, for_target = _shifted(rows, samples.y, split, rng)
    elif not split.sources:
        size = len(rows) // split.n_clients
        rows, for_target = rows[: size * len(clients)], rows[-size:]
    elif _same_files(sets, split):
        # The same samples for the target whatever the number of clients; the released test part, which no source sees.
        size = round(split.target_share * len(rows))
        rows, for_target = rows[:-size], rows[-size:]
    else:
        for_target = np.flatnonzero(~own.test)
    shares = dict(zip(clients, _shares(rows, samples.y, len(clients), split, rng), strict=True))
    test, none = np.flatnonzero(own.test), np.empty(0, np.int64)
    sources = {p: (p, name, share, none) for p, share in shares.items()}
    places = sources | {target: (target, target if split.sources else name, for_target, test)}
    return [places[p] for p in split.clients]


def _shares(rows: Ints, y: Ints, clients: int, split: Partition, rng: Stream) -> list[Ints]:
    """The sources' rows, one array a source."""
    if split.by == "classes" and split.classes_each is not None:
        return few_classes(rows, y, clients, split.classes_each, rng)
    if split.by == "dirichlet":
        return dirichlet(rows, y, clients, split.concentration, rng)
    return [np.asarray(p) for p in np.array_split(rows, clients)]


def few_classes(rows: Ints, y: Ints, clients: int, each: int, rng: Stream) -> list[Ints]:
    """Quantity-based label imbalance (Li et al. 2022): client i has class i mod C and others drawn, shared equally."""
    classes = np.unique(y[rows])
    if each > len(classes):
        raise FdamedError(f"there are only {len(classes)} classes", "split.classes_each", "Ask for fewer.")
    generator = rng.child("classes").numpy
    has = np.zeros((clients, len(classes)), dtype=bool)
    for i in range(clients):
        first = i % len(classes)
        others = generator.permutation(np.delete(np.arange(len(classes)), first))[: each - 1]
        has[i, [first, *others]] = True
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for c, label in enumerate(classes):
        holders = np.flatnonzero(has[:, c])
        if len(holders):
            for i, piece in zip(holders.tolist(), np.array_split(rows[y[rows] == label], len(holders)), strict=True):
                parts[i].append(piece)
    return [np.concatenate(p) for p in parts]


def dirichlet(rows: Ints, y: Ints, clients: int, concentration: float, rng: Stream, least: int = 10) -> list[Ints]:
    """Distribution-based label imbalance: each class in shares from Dir(concentration), till all have some."""
    for attempt in range(1000):
        generator = rng.child("dirichlet", attempt).numpy
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        for label in np.unique(y[rows]):
            own = rows[y[rows] == label]
            cuts = np.cumsum(generator.dirichlet(np.full(clients, concentration)))[:-1] * len(own)
            for i, piece in enumerate(np.split(own, cuts.astype(np.int64))):
                parts[i].append(piece)
        if min(sum(map(len, p)) for p in parts) >= min(least, len(rows) // (2 * clients)):
            return [np.concatenate(p) for p in parts]
    raise FdamedError("some clients stay empty", "split.concentration", "Raise it, or have fewer clients.")


def _shifted(rows: Ints, y: Ints, split: Partition, rng: Stream) -> tuple[Ints, Ints]:
    """(sources', target's): eta of the first group and 1 - eta of the second, and the other way round."""
    first = np.isin(y[rows], split.first_group)
    a, b = rows[first], rows[~first]
    i, j = round(split.eta * len(a)), round((1 - split.eta) * len(b))
    mix = rng.child("shift").numpy
    return mix.permutation(np.concatenate([a[:i], b[:j]])), mix.permutation(np.concatenate([a[i:], b[j:]]))


def _labeled(split: Partition, n: int) -> int:
    """Labeled samples of n."""
    if split.labeled == "all":
        return n
    return round(split.labeled * n) if isinstance(split.labeled, float) else split.labeled


def _parts(pool: Ints, test: Ints, split: Partition, client: str) -> dict[str, Ints]:
    """Labeled, validation, test and the rest of a target's samples."""
    n = len(pool)
    if split.test != "release":
        held = round(split.test * n)
        test, pool = pool[:held], pool[held:]
    val, pool = pool[: round(split.val * n)], pool[round(split.val * n) :]
    wanted = _labeled(split, len(pool) if split.labeled == "all" else n)
    if wanted > len(pool) or not len(test):
        what = f"{client} has {len(pool)} samples to label and {len(test)} to test on; labeled asks for {wanted}"
        fix = "Ask for fewer labeled samples, or for a share as the test."
        raise FdamedError(what, "split.labeled, split.test", fix)
    return {"train": pool[wanted:], "adapt": pool[:wanted], "val": val, "test": test}


def _part(samples: Samples, name: str, parts: dict[str, Ints]) -> Part:
    rows = np.concatenate(list(parts.values()))
    x = samples.x[rows]
    identity = pd.Series([f"{name}/{r}" for r in rows], dtype="str")
    order = pd.DataFrame({"image": identity, "patient": identity})
    order[["sex", "age", "race", "view"]] = np.nan
    order = order.astype({c: TYPES[c] for c in ("sex", "age", "race", "view")})
    order["y"] = samples.y[rows].astype("int16")
    order["split"] = np.repeat(list(parts), [len(r) for r in parts.values()])
    order["crc32"] = np.array([crc32(np.ascontiguousarray(i).data) for i in x], dtype=np.int64)
    return Part(x, order)


def repeated(parts: dict[str, Part]) -> dict[str, int]:
    """Number of test samples that are also, bit for bit, among the training samples, by client."""
    found = {}
    for client, part in parts.items():
        tested = set(part.order.loc[part.order["split"] == "test", "crc32"])
        for other, learned in parts.items() if tested else ():
            trained = learned.order.loc[learned.order["split"].isin(("train", "adapt")), "crc32"]
            found[f"test of {client} and training of {other}"] = len(tested.intersection(trained))
    return {where: n for where, n in found.items() if n}
