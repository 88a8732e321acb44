"""Checks of a study before any job runs: `fdamed doctor`."""
