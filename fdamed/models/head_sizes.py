"""How many classes the auxiliary heads tell apart; apart from the heads themselves, so that counting needs no torch."""

from __future__ import annotations

CLASSES = {"sex": 2, "age": 10, "view": 2}
"""Head -> classes (age in decades); race has as many as the configuration names."""
