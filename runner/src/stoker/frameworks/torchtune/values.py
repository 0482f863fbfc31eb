"""What the keys of a TorchTune run come to: the config's own values, and what is laid over them."""

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
    """Return a key's value as text: what was laid over the config, else the config's own."""
    value = values_of(keys, settings).get(key)
    return None if value is None or value == "null" else joined(value)


def values_of(keys: KeyTable, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return what the recipe reads: the config's values, less those taken out, and what is laid over them.

    `dataset=<component>` counts as what it is short for.
    """
    gone = tuple(name[1:] for name in settings if name.startswith("~"))
    kept = {k: v for k, v in keys.defaults.items() if k not in gone and not k.startswith(tuple(f"{g}." for g in gone))}
    for name, setting in settings.items():
        if not name.startswith("~"):
            kept[f"{name}.{COMPONENT}" if f"{name}.{COMPONENT}" in keys.defaults else name] = setting.value
    return kept


def joined(value: object) -> str:
    """Return a value as one word of the command line."""
    return " ".join(value) if isinstance(value, tuple) else str(value)


def quantizes(keys: KeyTable, given: Mapping[str, str]) -> bool:
    """Say whether the model's weights are quantized: as its builder is told, else as the builder does by itself.

    Args:
        keys: the run's keys, with the config's values.
        given: what is laid over them.
    """
    if is_told(keys, given):
        return is_true(given.get(QUANTIZE, str(keys.defaults.get(QUANTIZE))))
    return builder_of(keys).rpartition(".")[2].startswith("qlora")


def is_told(keys: KeyTable, given: Mapping[str, str]) -> bool:
    """Return whether the config, or what is laid over it, says if the model is quantized."""
    return QUANTIZE in given or (QUANTIZE in keys.defaults and f"~{QUANTIZE}" not in given)


def builder_of(keys: KeyTable) -> str:
    """Return what makes the model: the config's builder, or the one laid over it."""
    component = keys.flags.get(f"model.{COMPONENT}")
    return "" if component is None else str(component.default)
