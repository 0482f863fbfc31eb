"""The optional Python packages that components of TorchTune need. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.frameworks.torchtune.keys import COMPONENT, KeyTable
from stoker.frameworks.torchtune.values import joined, values_of
from stoker.plan.arguments import Setting

_OWN_LOGGERS = "torchtune.training.metric_logging."
# Logger → the package that it imports when it is made (torchtune/training/metric_logging.py).
_LOGGERS = {
    "CometLogger": "comet_ml",
    "MLFlowLogger": "mlflow",
    "TensorBoardLogger": "tensorboard",
    "WandBLogger": "wandb",
}
# Every package that a component may need. A component of any other package is a user's own.
ALL_PACKAGES = frozenset({"bitsandbytes", *_LOGGERS.values()})


def needed_packages(keys: KeyTable, settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return the packages that components need: package → the setting or the config's default."""
    needed = {}
    for key, value in values_of(keys, settings).items():
        path = joined(value) if key.endswith(f".{COMPONENT}") else ""
        package = _LOGGERS.get(path.removeprefix(_OWN_LOGGERS)) or path.partition(".")[0]
        if package in ALL_PACKAGES:
            needed[package] = f"{key}={path}"
    return needed
