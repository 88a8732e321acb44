"""MONAI's ResNet without the rest of MONAI.

`import monai` loads every subpackage, MLflow and pyplot with them: about 5 s of CPU, which a study of a thousand
jobs would pay a thousand times. The network needs a dozen files of it, and none of what those would like to have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types

_WITHOUT = ("matplotlib", "pandas", "ignite", "tqdm", "scipy", "skimage", "tensorboard", "requests", "gdown")
"""What MONAI imports if it can; seconds, and nothing of it is in the network."""
_BARE = ("", ".networks", ".networks.nets", ".networks.layers", ".networks.blocks", ".apps", ".data", ".transforms")


def monai_module(wanted: str) -> types.ModuleType:
    """Import `monai.WANTED` with bare parent packages, and leave no trace: a later `import monai` is the whole one."""
    if "monai" in sys.modules:
        return importlib.import_module(f"monai.{wanted}")
    spec = importlib.util.find_spec("monai")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("MONAI is not installed")
    root = spec.submodule_search_locations[0]
    version = importlib.metadata.version("monai")
    hidden = {name: sys.modules.get(name) for name in _WITHOUT}
    for name in _WITHOUT:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails, as if it were not installed
    for suffix in _BARE:
        package = types.ModuleType(f"monai{suffix}")
        package.__path__ = [root + suffix.replace(".", "/")]
        package.__dict__["__version__"] = version
        sys.modules[package.__name__] = package
    try:
        return importlib.import_module(f"monai.{wanted}")
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        for loaded in [m for m in sys.modules if m == "monai" or m.startswith("monai.")]:
            del sys.modules[loaded]
