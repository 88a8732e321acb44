"""Tuned runs: who chooses among their candidates, and the choice."""
