"""Which of TorchTune's keys a resumed run may change, beside those of the fingerprint (`decide`). Pure.

docs/reference/resume.md lists them; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.frameworks.torchtune.keys import COMPONENT, KeyTable
from stoker.frameworks.torchtune.values import joined, values_of
from stoker.plan.arguments import Setting

# By the first part of a key. TorchTune takes the optimizer's state and the seed from the checkpoint, whatever is set.
FIXED = ("optimizer", "lr_scheduler", "clip_grad_norm", "seed")
# What is logged, and how long the run is.
FREE = ("epochs", "output_dir", "metric_logger", "metric_logger.*", "log_*", "profiler", "profiler.*")


def fixed_settings(keys: KeyTable, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return every key that must stay as it is on resume, with its value or that of the config."""
    values = values_of(keys, settings)
    # Also parameters that nobody sets: a value for one of them would be another run.
    names = {name for name in (*keys.flags, *values) if name.partition(".")[0] in FIXED}
    # The table takes every value for the name of a component; and `optimizer=…` is short for `optimizer._component_=…`.
    names -= {name for name in names if name.endswith(f".{COMPONENT}") and name not in values}
    return {name: _read(values.get(name)) for name in sorted(names) if f"{name}.{COMPONENT}" not in names}


def _read(value: object) -> object:
    """Return a value as YAML reads it, so that two spellings of one value are equal."""
    word = joined(value)
    if value is None or word in ("null", "None", ""):
        return None
    if word in ("True", "true", "False", "false"):
        return word in ("True", "true")
    try:
        return float(word)
    except ValueError:
        return word
