"""NVIDIA FLARE as an engine: the extra `network`."""
