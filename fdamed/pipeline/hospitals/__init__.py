"""A hospital in a study: its facts, its answers beside the steps, its resident process, its kit for a network."""
