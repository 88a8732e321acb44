"""Sex, age, view, race and labels as tables and DICOM headers write them: one parser each.

A parser returns None where the value is missing or unknown, and raises ValueError where the text cannot be such a
value at all. A table's row with such a text is rejected; in a DICOM header the value counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

SEXES = ("F", "M")
VIEWS = ("frontal", "lateral")
RACES = ("White", "Black", "Asian", "Hispanic/Latino", "Native American", "Pacific Islander", "Other")
OLDEST = 90
"""Ages from here on are one class: a rarer age could identify a person."""
MAX_AGE = 120

UNKNOWN = frozenset({"", "unknown", "not reported", "not available", "n/a", "na", "nan", "none"})
_SEX = {"male": "M", "female": "F", "m": "M", "f": "F", "u": None, "o": None, "other": None}
_FLAG = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_UNITS = {"": 1.0, "Y": 1.0, "M": 12.0, "W": 52.1775, "D": 365.2425}
_FRONTAL = {"PA": "PA", "POSTEROANTERIOR": "PA", "AP": "AP", "ANTEROPOSTERIOR": "AP", "FRONTAL": None}
_LATERAL = {"LL": "LL", "LLAT": "LL", "RL": "RL", "RLAT": "RL", "LATERAL": "LATERAL", "LAT": "LATERAL"}
_OBLIQUE = frozenset({"LAO", "RAO", "LPO", "RPO", "LLO", "RLO"})
_NO_RACE = frozenset({"unknown", "refused", "declined", "unable", "reported"})
_RACE_WORDS: tuple[tuple[str | None, frozenset[str]], ...] = (
    (None, _NO_RACE),
    ("Black", frozenset({"black", "african"})),
    ("Pacific Islander", frozenset({"pacific", "hawaiian", "islander"})),
    ("Asian", frozenset({"asian"})),
    ("Native American", frozenset({"indian", "alaska", "native"})),
    ("White", frozenset({"white", "caucasian", "portuguese"})),
    ("Hispanic/Latino", frozenset({"hispanic", "latino", "latina"})),
    ("Other", frozenset({"other", "multiple"})),
)
"""Tried in this order, on whole words: "Caucasian" is not "Asian", and an "Asian Indian" is no Native American."""


ACCEPTED = {
    "sex": f"{', '.join(_SEX)} in any case",
    "age": f"years (62, 62.5, 62,5), or as in DICOM 062Y, 006M, 003W, 010D; at most {MAX_AGE}; from {OLDEST} one class",
    "view": f"{', '.join([*_FRONTAL, *_LATERAL, *sorted(_OBLIQUE)])} in any case; becomes {' or '.join(VIEWS)}",
    "race": f"any text; one that names {', '.join(RACES)} or a synonym (caucasian, african american) becomes that word",
    "burned_in": f"{', '.join(_FLAG)} in any case",
    "label": "1 (present), 0 (absent), -1 (uncertain), blank or unknown (not mentioned)",
}
"""Column of a table -> what it may contain; an unknown value is blank or one of UNKNOWN."""
CONTRACT = "contract."
"""Prefix of columns that a configured mapping makes."""


def _look_up(text: str, meanings: Mapping[str, T]) -> T | None:
    word = text.strip().lower()
    if word not in meanings and word not in UNKNOWN:
        raise ValueError("not one of the known words")
    return meanings.get(word)


def parse_sex(text: str) -> str | None:
    """F or M."""
    return _look_up(text, _SEX)


def parse_flag(text: str) -> bool | None:
    """Yes or no."""
    return _look_up(text, _FLAG)


def parse_age(text: str) -> float | None:
    """Years from `62`, `62.0`, `62,0`, `062Y`, `006M`, `003W` or `010D`; 90 is 90 and over, over 120 is no age."""
    if text.strip().lower() in UNKNOWN:
        return None
    match = re.fullmatch(r"\s*(\d{1,6}(?:[.,]\d{1,9})?)([YMWD]?)\s*", text.upper())
    years = float(match[1].replace(",", ".")) / _UNITS[match[2]] if match else MAX_AGE + 1.0
    if years > MAX_AGE:
        raise ValueError("not an age")
    return min(years, float(OLDEST))


def parse_view(text: str) -> tuple[str | None, str | None]:
    """View (frontal, lateral) and projection (PA, AP, LL, RL, LATERAL, an oblique); an unknown part is None."""
    words = re.split(r"[\s_,/-]+", text.strip().upper())
    if words[:2] in (["POSTERO", "ANTERIOR"], ["ANTERO", "POSTERIOR"]):
        words = ["".join(words[:2])]
    if words[0] in _FRONTAL:
        return "frontal", _FRONTAL[words[0]]
    if words[0] in _OBLIQUE:
        return None, words[0]
    side = "LATERAL" if words == ["L"] else next((_LATERAL[w] for w in words if w in _LATERAL), None)
    if side is None:
        return None, None
    if side == "LATERAL" and words[0] in ("LEFT", "RIGHT"):
        side = "LL" if words[0] == "LEFT" else "RL"
    return "lateral", side


def parse_known_view(text: str) -> str | None:
    """The view; a text that names neither a view nor a projection raises ValueError."""
    view, projection = parse_view(text)
    if view is None and projection is None and text.strip().lower() not in UNKNOWN:
        raise ValueError("not a view")
    return view


def parse_year(text: str) -> float | None:
    """The year of `20140915`, `1930` or `1930.0`."""
    text = text.strip().removesuffix(".0")
    if text.lower() in UNKNOWN:
        return None
    if not re.fullmatch(r"(1[89]|2\d)\d\d((0[1-9]|1[0-2])([0-2]\d|3[01]))?", text):
        raise ValueError("not a year")
    return float(text[:4])


def parse_race(text: str) -> str | None:
    """One of RACES, by whole words; "non-Hispanic" says nothing about the race."""
    plain = _without_negation(text)
    if re.fullmatch(r"\s*other\s*,\s*hispanic\s*|\s*south american\s*", plain):
        return "Hispanic/Latino"
    words = set(re.findall(r"[a-z]+", plain))
    return next((race for race, marks in _RACE_WORDS if words & marks), None)


def parse_race_or_text(text: str) -> str | None:
    """One of RACES if the text names one, else the text itself: a table may have groups of its own."""
    plain = _without_negation(text).strip()
    said = plain not in UNKNOWN and not set(re.findall(r"[a-z]+", plain)) & _NO_RACE
    return parse_race(text) or (text.strip() if said else None)


def _without_negation(text: str) -> str:
    return re.sub(r"(non|not)[ -]hispanic( or latino)?", "", text.lower())


def parse_label(text: str) -> float | None:
    """1, 0 or -1 (uncertain); None: blank or unknown."""
    match = re.fullmatch(r"([+-]?[01])([.,]0*)?|unknown|", text.strip().lower())
    if not match:
        raise ValueError("not a label")
    return float(match[1]) if match[1] else None


def lenient(parser: Callable[[str], T | None], text: str | None) -> T | None:
    """What a DICOM header says: a missing tag or an impossible value is None."""
    try:
        return parser(text or "")
    except ValueError:
        return None
