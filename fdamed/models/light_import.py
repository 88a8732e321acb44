"""MONAI's ResNet without the rest of MONAI.

`import monai` loads every subpackage, MLflow and pyplot with them: about 5 s of CPU, which a study of a thousand
jobs would pay a thousand times. The network needs a dozen files of it (about 1 s).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types

_BARE = ("", ".networks", ".networks.nets", ".networks.layers", ".networks.blocks", ".apps", ".data", ".transforms")


def monai_module(name: str) -> types.ModuleType:
    """Import `monai.NAME` with bare parent packages, and leave no trace: a later `import monai` is the whole one."""
    if "monai" in sys.modules:
        return importlib.import_module(f"monai.{name}")
    spec = importlib.util.find_spec("monai")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("MONAI is not installed")
    root = spec.submodule_search_locations[0]
    version = importlib.metadata.version("monai")
    for suffix in _BARE:
        package = types.ModuleType(f"monai{suffix}")
        package.__path__ = [root + suffix.replace(".", "/")]
        package.__dict__["__version__"] = version
        sys.modules[package.__name__] = package
    try:
        return importlib.import_module(f"monai.{name}")
    finally:
        for loaded in [m for m in sys.modules if m == "monai" or m.startswith("monai.")]:
            del sys.modules[loaded]
