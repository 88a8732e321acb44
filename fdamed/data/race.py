"""Race as registries write it -> the words that the cuts and the race head use."""

from __future__ import annotations

import re

RACES = ("White", "Black", "Asian", "Hispanic/Latino", "Native American", "Pacific Islander", "Other")

_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("unknown", "refused", "declined", "unable", "reported")),
    ("Black", ("black", "african")),
    ("Pacific Islander", ("pacific", "hawaiian", "islander")),
    ("Native American", ("indian", "alaska", "native")),
    ("Asian", ("asian",)),
    ("White", ("white", "caucasian")),
    ("Hispanic/Latino", ("hispanic", "latino", "latina")),
    ("Other", ("other", "multiple")),
)
"""Tried in this order, on whole words: "Caucasian" is not "Asian", and "non-Hispanic" says nothing of the race."""


def race_of(text: str) -> str | None:
    """The race that a text names, by whole words; None when it names none."""
    plain = re.sub(r"(non|not)[ -]hispanic( or latino)?", "", text.lower())
    if re.fullmatch(r"\s*other\s*,\s*hispanic\s*", plain):
        return "Hispanic/Latino"
    words = set(re.findall(r"[a-z]+", plain))
    for race, marks in _WORDS:
        if words.intersection(marks):
            return race or None
    return None
