"""The values of a TorchTune run: the config's defaults, and the settings that override them."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.frameworks.torchtune.keys import COMPONENT, KeyTable
from stoker.plan.arguments import FlagTable, Setting, is_true

QUANTIZE = "model.quantize_base"


def keys_of(table: FlagTable) -> KeyTable:
    """Return a run's keys.

    Raises:
        TypeError: the table is not TorchTune's.
    """
    if not isinstance(table, KeyTable):
        raise TypeError(f"{table.trainer} is not TorchTune's table")
    return table


def value_of(keys: KeyTable, settings: Mapping[str, Setting], key: str) -> str | None:
    """Return a key's value as text: the setting, or else the config's default; None if it has none."""
    value = values_of(keys, settings).get(key)
    return None if value is None or value == "null" else joined(value)


def values_of(keys: KeyTable, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return the values that the recipe reads: the config's defaults, without removed keys, and the settings.

    The short form `dataset=<component>` counts as `dataset._component_=<component>`.
    """
    removed = tuple(name[1:] for name in settings if name.startswith("~"))
    sections = tuple(f"{key}." for key in removed)
    values = {key: v for key, v in keys.defaults.items() if key not in removed and not key.startswith(sections)}
    for name, setting in settings.items():
        if not name.startswith("~"):
            values[f"{name}.{COMPONENT}" if f"{name}.{COMPONENT}" in keys.defaults else name] = setting.value
    return values


def joined(value: object) -> str:
    """Return a value as one word of the command line."""
    return " ".join(value) if isinstance(value, tuple) else str(value)


def quantizes(keys: KeyTable, given: Mapping[str, str]) -> bool:
    """Return whether the model's weights are quantized, by `model.quantize_base`, or else by the model's builder.

    Args:
        keys: the run's keys, with the config's defaults.
        given: the settings that override them.
    """
    if is_quantization_set(keys, given):
        return is_true(given.get(QUANTIZE, str(keys.defaults.get(QUANTIZE))))
    return builder_of(keys).rpartition(".")[2].startswith("qlora")


def is_quantization_set(keys: KeyTable, given: Mapping[str, str]) -> bool:
    """Return whether the config or a setting has `model.quantize_base`."""
    return QUANTIZE in given or (QUANTIZE in keys.defaults and f"~{QUANTIZE}" not in given)


def builder_of(keys: KeyTable) -> str:
    """Return the function that builds the model: the setting, or else the config's default."""
    component = keys.flags.get(f"model.{COMPONENT}")
    return "" if component is None else str(component.default)
