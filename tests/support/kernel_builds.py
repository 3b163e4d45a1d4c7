"""The build scripts of ir-kernels as modules: they lie beside the package, not in it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[2] / "packages" / "ir-kernels"


def load(name: str) -> ModuleType:
    """The module of one script, which finds its neighbours."""
    sys.path.insert(0, str(PACKAGE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(PACKAGE))
