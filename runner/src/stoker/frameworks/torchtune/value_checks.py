"""Finds wrong values of TorchTune's keys. Pure.

TorchTune checks almost none of them: a wrong value fails in every process after the model is loaded, or trains
something else. Rules of torchtune 0.6.1 (its recipes, `torchtune.training.precision`, `torchtune.modules.peft`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from stoker.frameworks.torchtune.keys import COMPONENT, KeyTable, data
from stoker.frameworks.torchtune.values import QUANTIZE, joined
from stoker.plan.arguments import Setting
from stoker.plan.facts import MAX_DIGITS, whole_number

# Key, or its last part → its smallest whole number.
_COUNTS = {
    **dict.fromkeys(("epochs", "batch_size", "gradient_accumulation_steps", "max_steps_per_epoch"), 1),
    **dict.fromkeys(("log_every_n_steps", "lora_rank", "max_seq_len", "tensor_parallel_dim"), 1),
    **dict.fromkeys(("seed", "num_warmup_steps"), 0),
}
# Key, or its last part → its smallest and largest number; None for no bound.
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("lr", "weight_decay", "lora_alpha", "clip_grad_norm"), (0, None)),
    **dict.fromkeys(("lora_dropout", "kd_ratio"), (0, 1)),
}
_CHOICES = {
    # Every recipe refuses fp16; torchtune.training.precision has fp64 only for tests.
    "dtype": ("fp32", "bf16"),
    "device": ("cpu", "cuda", "xpu", "npu", "mps"),
}
_LORA_MODULES = ("q_proj", "k_proj", "v_proj", "output_proj")
_NULLS = ("null", "None", "~")
_NEEDED = ("epochs", "batch_size")
# Packages whose components are all in the table. Any other name there is wrong, or needs a package the image lacks.
_OWN_PACKAGES = ("torchtune.", "torch.optim.")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_OCTAL = re.compile(r"^[-+]?0[0-7]+$")


def value_problems(table: KeyTable, settings: Mapping[str, Setting], accelerator: str) -> Iterator[str]:
    """Yield one problem for each wrong value.

    Args:
        table: the run's keys, with the config's defaults.
        settings: the merged settings.
        accelerator: the runtime's accelerator profile.
    """
    values: dict[str, Any] = {name: joined(setting.value) for name, setting in settings.items()}
    if table.config not in data("configs"):
        # The values of a user's file are checked like settings.
        values = {**table.defaults, **values}
    for key, value in values.items():
        if key.startswith("~"):
            yield from _removed(table, key[1:])
        elif key == "epochs" and "${" in str(value):
            yield f"epochs is {value!r}: write a number, so that stoker knows when the run is finished"
        elif key == QUANTIZE and str(value).lower() not in ("true", "false"):
            yield f"{key} is {value!r}: write True or False, so that stoker can tell LoRA from QLoRA"
        elif isinstance(value, str) and "${" in value:
            yield from _references(table, settings, key, value)
        elif key.endswith(f".{COMPONENT}") or f"{key}.{COMPONENT}" in table.defaults:
            yield from _component(table, key, value)
        else:
            problem = _wrong(key, value, table.defaults.get(key))
            if problem:
                yield f"{key} {problem}"
    device = str(values.get("device", "cpu" if accelerator == "cpu" else "cuda"))
    if (accelerator == "cpu") != (device == "cpu"):
        where = "has no accelerator" if accelerator == "cpu" else f"is for {accelerator}"
        yield f"device is {device!r}, but the runtime {where}: leave it out, or choose another runtime"


def _wrong(key: str, value: Any, default: Any) -> str | None:
    """Return what is wrong with a key's value, as the end of a sentence; None if nothing is."""
    last = key.rpartition(".")[2]
    # TorchTune keeps the leading zeros of file numbers (`max_filename`).
    if isinstance(value, str) and _OCTAL.match(value) and "max_filename" not in key:
        return f"is {value}, but YAML reads it as the octal number {int(value, 8)}: leave out the leading zeros"
    if value is None or value in _NULLS:
        return "must be a whole number, 1 or more" if key in _NEEDED else None
    if last in _COUNTS:
        bound = f" and at most {MAX_DIGITS} digits" if len(str(value)) > MAX_DIGITS else ""
        wanted = f"must be a whole number, {_COUNTS[last]} or more{bound}, not {value!r}"
        return None if _is_count(value, _COUNTS[last]) else wanted
    if last in _NUMBERS or (isinstance(default, int | float) and not isinstance(default, bool)):
        return _wrong_number(value, default, *_NUMBERS.get(last, (None, None)))
    if key in _CHOICES and str(value).partition(":")[0] not in _CHOICES[key]:
        return f"must be one of {', '.join(_CHOICES[key])}, not {value!r}"
    if isinstance(default, list) or last == "lora_attn_modules":
        return _wrong_list(last, value)
    return None


def _wrong_number(value: Any, default: Any, least: float | None, greatest: float | None) -> str | None:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        as_in = "" if default is None else f" as in the config ({default})"
        return f"must be a number{as_in}, not {value!r}"
    if least is not None and number < least:
        return f"must be {least:g} or more, not {value}"
    if greatest is not None and number > greatest:
        return f"must be {greatest:g} or less, not {value}"
    return None


def _wrong_list(name: str, value: Any) -> str | None:
    try:
        items = yaml.safe_load(value) if isinstance(value, str) else value
    except (yaml.YAMLError, ValueError, RecursionError):
        items = None
    if not isinstance(items, list):
        return f"must be a list, not {value!r}: write [{str(value).strip('[]')}]"
    if name == "lora_attn_modules" and (not items or any(item not in _LORA_MODULES for item in items)):
        return f"must be a list of {', '.join(_LORA_MODULES)}, not {value!r}"
    return None


def _is_count(value: Any, least: int) -> bool:
    number = None if isinstance(value, bool) else whole_number(str(value))
    return number is not None and number >= least


def _removed(table: KeyTable, key: str) -> Iterator[str]:
    if key in data("recipes")[table.recipe]["needs"]:
        yield f"~{key} removes a key that {table.recipe} needs: write {key}=<value>"


def _references(table: KeyTable, settings: Mapping[str, Setting], key: str, value: str) -> Iterator[str]:
    known = {*table.defaults, *settings}
    for name in _REFERENCE.findall(value):
        # Only OmegaConf can check resolvers such as ${oc.env:HOME}, and nested and relative references.
        plain = re.fullmatch(r"[A-Za-z_][\w.]*", name) is not None
        if plain and not any(other == name or other.startswith(f"{name}.") for other in known):
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean ${{{close[0]}}}?" if close else "write the value"
            yield f"{key} refers to {name}, but the config has no such key: {advice}"
    if value.count("${") != len(_REFERENCE.findall(value)):
        yield f"{key} is {value!r}: write a reference as ${{key}}"


def _component(table: KeyTable, key: str, value: Any) -> Iterator[str]:
    path = str(value or "")
    known = data("components")
    if "." not in path.strip("."):
        yield f"{key} must be the dotted path of a component such as {_example(table, key)}, not {path!r}"
    elif path.startswith(_OWN_PACKAGES) and path not in known:
        close = difflib.get_close_matches(path, known, n=1)
        advice = f"did you mean {close[0]}?" if close else "choose another component"
        yield f"{key} is {path}, but {table.trainer} has no such component, or the image lacks its package: {advice}"


def _example(table: KeyTable, key: str) -> str:
    section = key.removesuffix(f".{COMPONENT}")
    return str(table.defaults.get(f"{section}.{COMPONENT}") or "torch.optim.AdamW")
