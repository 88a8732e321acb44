"""Disclosure control: the one owner of what leaves the clients' folders.

Full counts and all scores are written below `clients/` only. Files outside that training writes have what `PUBLIC`
lists; views (report, tables, MLflow, model card, doctor) get counts and scores through the functions below, which hold
back those of small groups and everything they could be computed from. Training images are public by the protocol:
a client sends their number with every update. So are the sizes that the configuration asks for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fdamed.core.parts import TRAINED

if TYPE_CHECKING:
    import pandas as pd

LOCAL = "(kept local)"
LOCAL_KEYS = {"salt", "root", "allowed_roots", "uri", "weights", "results"}
"""Keys of the configuration whose text names this machine or a secret; data sets add their own."""
PATH = re.compile(r"^(/|~|[A-Za-z]:[\\/]|\\\\|[a-z][a-z0-9+.-]*://)")
PUBLIC = {
    "ingest.json": ("layout", "hash", "seconds"),
    "cohort.json": ("by", "rule", "seed", "asked", "notes", "hash", "clients"),
    "leakage.json": ("rule",),
    "counts.json": ("hash", "content", "images"),
}
"""File of full counts below `clients/` -> its keys that are written outside, too; of images, those of `TRAINED`."""
SCORES = ("val/", "test/")
"""How the scores of a round are called."""
SUPPRESSED = "suppressed"
RELEASED = "released"
"""In counts that came over a network: the hospital has held back what its own policy hides, counts and scores."""
ABOUT = ("study", "run", "method", "title", "target", "seed", "client", "split")
"""What a file of scores says about itself."""
COUNTED = ("n", "positives", "patients")
"""The counts in a file of scores."""
AUC = "auc"
"""The one score that says nothing about the share of positives: a model that finds all images negative has the
accuracy 1 - share, the average precision share, and if it is sure, that Brier score."""
STEP = "step"
"""In a file of scores that may be shown: the rounding step of its AUC, where it has fewer decimals than elsewhere."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")


def small(count: int, smallest: int) -> bool:
    """Whether a count could identify persons; zero cannot."""
    return 0 < count < smallest


def lacking(counts: Iterable[int], smallest: int) -> int:
    """How many must be added to counts of which only the sum is seen, so that it tells no small one."""
    return sum(smallest - n for n in counts if small(n, smallest))


def hides(n: int, positives: int | None, smallest: int, patients: int | None = None) -> bool:
    """Whether a score over `n` images, `positives` of them positive (None: several classes), must be suppressed."""
    cells = [n, n if patients is None else patients, *(() if positives is None else (positives, n - positives))]
    return any(small(cell, smallest) for cell in cells)


def hides_score(score: Mapping[str, Any], smallest: int) -> bool:
    """Whether a file of scores must be suppressed; one without counts was released by its own hospital."""
    return "n" in score and hides(score["n"], score.get("positives"), smallest, score.get("patients"))


def hides_part(counts: Mapping[str, Any], part: str, smallest: int) -> bool:
    """Whether scores on a part of a client must be suppressed; also where its counts are not known."""
    if counts.get(RELEASED):
        return False
    images, patients, positives = (_of(counts, key, part) for key in ("images", "patients", "positives"))
    if images is None or (positives is None and counts.get("positives") is not None):
        return smallest > 1
    return hides(images, positives, smallest, patients)


def hides_classes(counts: Mapping[str, Any], smallest: int) -> bool:
    """Whether the positives of a client are held back: of all parts if those of one are small, as parts are alike.

    Then every score from which they could be computed is held back, too: all but the AUC, and its last decimals.
    """
    if counts.get(RELEASED):
        return False
    if not counts:
        return smallest > 1
    positives = counts.get("positives")
    return positives is not None and any(hides(n, positives.get(p, 0), smallest) for p, n in counts["images"].items())


def auc_decimals(images: int, smallest: int, folds: int = 1) -> int:
    """Decimals of an AUC over so many images, from which the number of positives among them cannot be found.

    It is a number of pairs out of smallest * (images - smallest) or more: rounded more coarsely than one pair, it fits
    every number of positives that could be shown. Within `folds` there are fewer pairs.
    """
    return min(4, int(math.log10(max(1, smallest * (images - smallest) // folds))))


def released_attack(attack: Mapping[str, Any], patients: int, smallest: int) -> dict[str, Any]:
    """A membership inference attack on a hospital of whose parts one has few patients.

    A share of the members has their number as its denominator, and the AUC the product of members and others. The
    patients of the small part would follow, as those of the other parts are shown. So only the AUC is left, with few
    decimals.
    """
    decimals = auc_decimals(patients, smallest)
    return {name: rounded(found, decimals) if name == AUC else None for name, found in attack.items()}


def _of(counts: Mapping[str, Any], key: str, part: str) -> int | None:
    found = counts.get(key)
    return None if found is None else found.get(part, 0)


def outside(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """What of a file of full counts may be written outside `clients/`."""
    kept = {key: content[key] for key in PUBLIC[name] if key in content}
    if "images" in kept:
        kept["images"] = {part: n for part, n in kept["images"].items() if part in TRAINED}
    if "clients" in kept:
        kept["clients"] = {client: outside("counts.json", counts) for client, counts in kept["clients"].items()}
    return kept


def released_counts(counts: Mapping[str, Any], smallest: int) -> dict[str, Any]:
    """A client's images, patients and positives by part; None where they are held back.

    Held back are small counts of images (but of those trained on) and of patients, and the positives of all parts if
    those of one are small: it would follow from the others. No total is released while a part of it is not.
    """
    out = dict(counts)
    if counts.get(RELEASED):
        return out
    out["images"] = {p: None if p not in TRAINED and small(n, smallest) else n for p, n in counts["images"].items()}
    out["patients"] = {
        p: None if out["images"].get(p) is None or small(n, smallest) else n for p, n in counts["patients"].items()
    }
    if counts["positives"] is not None:
        hidden = hides_classes(counts, smallest)
        out["positives"] = {part: None if hidden else n for part, n in counts["positives"].items()}
    return out


def released_total(counts: Mapping[str, Any], what: str, smallest: int) -> int | None:
    """Images, patients or positives of all parts of a client; None while one part is held back, or is not known."""
    if not counts.get(what):
        return None
    parts = released_counts(counts, smallest)[what].values()
    return None if None in parts else sum(parts)


def released_reasons(counts: Mapping[str, int], smallest: int) -> dict[str, int | None]:
    """Counts by reason; None where one is small."""
    return {reason: None if small(n, smallest) else n for reason, n in counts.items()}


def hides_flow(
    left_out: Mapping[str, Mapping[str, int]], counts: Mapping[str, Mapping[str, Any]], by: str | None, smallest: int
) -> set[str]:
    """The clients of which neither all rows nor those left out may be shown: one count among them is held back.

    These are all clients if one is, unless they are split by a column: conditions share all rows and expressions some,
    so that the rows of one client are those of another.
    """
    hidden = {
        client
        for client, reasons in left_out.items()
        if released_total(counts.get(client, {}), "images", smallest) is None
        or any(small(n, smallest) for n in reasons.values())
    }
    return set(left_out) if hidden and by in (None, "condition", "expression") else hidden


def too_small(smallest: int) -> str:
    """Why a score is hidden."""
    return f"fewer than {smallest} patients, or images of a class"


def released_score(score: Mapping[str, Any], hidden: str, smallest: int, classes: bool = False) -> dict[str, Any]:
    """A file of scores as it may be shown: without its counts, and without any score if there is a reason to hide them.

    `classes`: the positives of the client are held back; then only the AUC is left, with few decimals.
    """
    if not hidden and not classes:
        return {key: value for key, value in score.items() if key not in COUNTED}
    names = [k for k, v in score.items() if k not in (*ABOUT, *COUNTED) and not isinstance(v, dict)]
    about = {k: score[k] for k in ABOUT if k in score}
    if hidden:
        return about | dict.fromkeys(names) | {"why": dict.fromkeys(names, f"{SUPPRESSED}: {hidden}")}
    decimals, drawn = auc_decimals(score["n"], smallest), score.get("bootstrap") or {}
    why = dict.fromkeys(names, f"{SUPPRESSED}: the number of positives, which is hidden, would follow from it")
    why |= {AUC: score["why"].get(AUC, "")}
    intervals = {AUC: rounded(list(ends), decimals)} if (ends := drawn.get("intervals", {}).get(AUC)) else {}
    return (
        about
        | dict.fromkeys(names)
        | {AUC: rounded(score[AUC], decimals), STEP: 10.0**-decimals, "why": {k: v for k, v in why.items() if v}}
        | {"bootstrap": {k: drawn[k] for k in ("level", "replicates") if k in drawn} | {"intervals": intervals}}
    )


def released_round(row: Mapping[str, Any], counts: Mapping[str, Any], smallest: int) -> dict[str, Any]:
    """The line of a round with those scores on the parts of a client that may be shown."""
    out, classes = dict(row), hides_classes(counts, smallest)
    for prefix in SCORES:
        part, key = prefix.rstrip("/"), f"{prefix}{AUC}"
        if hides_part(counts, part, smallest):
            out = without_scores(out, (prefix,))
        elif classes:
            kept = {key: rounded(out[key], auc_decimals(counts["images"].get(part, 0), smallest))} if key in out else {}
            out = without_scores(out, (prefix,)) | kept
    return out


def without_scores(row: Mapping[str, Any], prefixes: tuple[str, ...] = SCORES) -> dict[str, Any]:
    """A line of a round without its scores."""
    return {key: value for key, value in row.items() if not key.startswith(prefixes)}


def only_scores(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The scores of all rounds that have any, which stay in the client's folder."""
    lines = [{key: value for key, value in row.items() if key == "round" or key.startswith(SCORES)} for row in rows]
    return [line for line in lines if len(line) > 1]


def vague(count: int, smallest: int) -> str:
    """A count as text; a small one only as a range."""
    return f"1 to {smallest - 1}" if small(count, smallest) else f"{count:,}"


def vague_reasons(counts: Mapping[str, int], smallest: int, hidden: bool = False) -> str:
    """What was left out, by reason, as text; small counts as a range, and none where they are held back."""
    if hidden:
        return ", ".join(reason for reason, n in counts.items() if n)
    return ", ".join(f"{reason} ({vague(n, smallest)})" for reason, n in counts.items() if n)


def formula_safe(cell: object) -> object:
    """Prefix text that a spreadsheet would evaluate with an apostrophe; numbers stay numbers."""
    return "'" + cell if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def cell_safe(cell: str) -> str:
    """`formula_safe` for CSV files: NUL is escaped, and a lone carriage return starts no row."""
    return str(formula_safe(cell)).replace("\r", " ").replace("\0", "\\0")


def shareable(content: Any, key: str = "") -> Any:
    """A JSON value without secrets, local paths and addresses."""
    if isinstance(content, Mapping):
        return {k: shareable(v, str(k)) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [shareable(v, key) for v in content]
    hidden = isinstance(content, str) and (key in LOCAL_KEYS or PATH.match(content))
    return LOCAL if hidden else content


def rounded(content: Any, decimals: int = 4) -> Any:
    """A JSON value with all floats rounded."""
    if isinstance(content, dict):
        return {key: rounded(value, decimals) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value, decimals) for value in content]
    return round(content, decimals) if isinstance(content, float) else content


def to_csv(frame: pd.DataFrame) -> str:
    """CSV in which no cell is a formula; numbers keep six digits."""
    import pandas as pd

    safe = frame.rename(columns=lambda c: cell_safe(str(c)))
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(lambda v: cell_safe(v) if isinstance(v, str) else v)
    return safe.to_csv(index=False, float_format="%.6g", lineterminator="\n")
