"""The parts of a client's images that training uses."""

from __future__ import annotations

TRAINED = ("train", "adapt")
