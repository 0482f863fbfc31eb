"""Finds what would fail in a TorchTune run, before it uses a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stoker.frameworks.torchtune.keys import COMPONENT, KeyTable, reserved_keys, unknown_keys
from stoker.frameworks.torchtune.read import is_own_file
from stoker.frameworks.torchtune.value_checks import value_problems
from stoker.frameworks.torchtune.values import (
    QUANTIZE,
    builder_of,
    is_quantization_set,
    joined,
    keys_of,
    quantizes,
    value_of,
)
from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.interfaces import Asked, Checker


class TorchTuneChecker(Checker):
    """Checks a TorchTune run's settings."""

    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return one problem for each key that is unused, missing or wrong, or that contradicts another."""
        keys = keys_of(table)
        return [*_missing(keys, settings), *_contradictions(asked, keys, settings)]


def _missing(keys: KeyTable, settings: Mapping[str, Setting]) -> list[str]:
    """Return one problem for each unused key in a user's config, and for each key that the recipe lacks."""
    own_file = is_own_file(str(keys.config))
    if keys.unread:
        return []
    problems = [*unknown_keys(keys), *reserved_keys(keys)] if own_file else []
    for name, short in settings.items():
        if "=" in joined(short.value):
            problems.append(
                f"the value of {name} ({short.source}) contains '=', which TorchTune cannot read: "
                "write it in a --config file"
            )
        long = settings.get(f"{name}.{COMPONENT}")
        if long is not None and long.value != short.value:
            both = f"{name}={short.value} ({short.source}) and {long.name}={long.value} ({long.source})"
            problems.append(f"{both} name the same component: keep one of them")
    if "epochs" not in {*keys.defaults, *settings}:
        problems.append("the number of epochs is missing: write epochs=<whole number>")
    if value_of(keys, settings, "dataset.packed") in ("True", "true") and not value_of(
        keys, settings, "tokenizer.max_seq_len"
    ):
        problems.append("dataset.packed=True needs a length: write tokenizer.max_seq_len=<tokens>")
    return problems


def _contradictions(asked: Asked, keys: KeyTable, settings: Mapping[str, Setting]) -> list[str]:
    """Return one problem for each wrong value, and for a method that does not match the quantization."""
    problems = [*value_problems(keys, settings, asked.accelerator)]
    given = {name: joined(setting.value) for name, setting in settings.items()}
    is_quantized = quantizes(keys, given)
    if asked.method == "qlora" and not is_quantized:
        off = f"{QUANTIZE}={given.get(QUANTIZE)}, but the method is qlora"
        problems.append(f"{off}: leave it out, or choose the method lora and one of its configs")
    if asked.method == "lora" and is_quantized:
        what = f"{QUANTIZE} is true" if is_quantization_set(keys, given) else f"{builder_of(keys)} quantizes the model"
        problems.append(f"{what}, but the method is lora: set STOKER_METHOD=qlora, or turn off quantization")
    return problems
