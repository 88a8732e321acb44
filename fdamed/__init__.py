"""fdamed: federated domain adaptation for chest radiographs."""

__version__ = "0.1.0"
