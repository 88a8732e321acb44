"""Numbers of classes of the auxiliary heads, in a module that does not import torch."""

from __future__ import annotations

CLASSES = {"sex": 2, "age": 10, "view": 2}
"""Head -> classes (age in decades); race has as many as the configuration names."""
