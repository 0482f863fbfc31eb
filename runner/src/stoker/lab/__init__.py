"""Train and serve in one Python API: TRL and PEFT train, vLLM generates, and the charts serve what was trained.

Names are loaded when they are used, so that importing this package loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.lab.config import LoRATrainConfig
    from stoker.lab.errors import LabError

# The module of each public name.
_MODULES = {
    "LabError": "errors",
    "LoRATrainConfig": "config",
}

__all__ = ["LabError", "LoRATrainConfig"]


def __getattr__(name: str) -> Any:
    """Load the module of a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return sorted({*globals(), *_MODULES})
