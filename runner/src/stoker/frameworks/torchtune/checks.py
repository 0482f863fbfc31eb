"""Values of TorchTune's keys that cannot be meant. Pure.

TorchTune checks next to nothing of them: a wrong one fails once the model is loaded, in every process, or trains
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
from stoker.plan.arguments import Setting

# Key, or the last part of one → the least whole number that it takes.
_COUNTS = {
    **dict.fromkeys(("epochs", "batch_size", "gradient_accumulation_steps", "max_steps_per_epoch"), 1),
    **dict.fromkeys(("log_every_n_steps", "lora_rank", "max_seq_len", "tensor_parallel_dim"), 1),
    **dict.fromkeys(("seed", "num_warmup_steps"), 0),
}
# Key, or the last part of one → the least and the greatest number that it takes; None is no bound.
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("lr", "weight_decay", "lora_alpha", "clip_grad_norm"), (0, None)),
    **dict.fromkeys(("lora_dropout", "kd_ratio"), (0, 1)),
}
_CHOICES = {
    # fp16 is refused by every recipe; fp64 is in torchtune.training.precision for tests alone.
    "dtype": ("fp32", "bf16"),
    "device": ("cpu", "cuda", "xpu", "npu", "mps"),
}
_LORA_MODULES = ("q_proj", "k_proj", "v_proj", "output_proj")
_NULLS = ("null", "None", "~")
_NEEDED = ("epochs", "batch_size")
# Where every component is in the table: one of these that is not does not exist, or needs a package of its own.
_OWN_PACKAGES = ("torchtune.", "torch.optim.")
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_OCTAL = re.compile(r"^[-+]?0[0-7]+$")
_MAX_DIGITS = 18


def value_problems(table: KeyTable, settings: Mapping[str, Setting], accelerator: str) -> Iterator[str]:
    """Yield one problem for each value that cannot be meant.

    Args:
        table: the run's keys, with the config's values.
        settings: what the layers came to.
        accelerator: the runtime's accelerator profile.
    """
    values: dict[str, Any] = {name: _text(setting.value) for name, setting in settings.items()}
    if table.config not in data("configs"):
        # A user's own file is judged as what is laid over it.
        values = {**table.defaults, **values}
    for key, value in values.items():
        if key.startswith("~"):
            yield from _removed(table, key[1:])
        elif key == "epochs" and "${" in str(value):
            yield f"epochs is {value!r}: write the number itself, by which the run is told to be finished"
        elif key == "model.quantize_base" and str(value).lower() not in ("true", "false"):
            yield f"{key} is {value!r}: write True or False, by which LoRA is told from QLoRA"
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
    """Say what is wrong with a key's value, as the end of a sentence; None if nothing is."""
    last = key.rpartition(".")[2]
    # Numbers of files (`max_filename`) are left as they are written, by TorchTune too.
    if isinstance(value, str) and _OCTAL.match(value) and "max_filename" not in key:
        return f"is {value}, which YAML takes for the octal number {int(value, 8)}: leave out the zeros in front"
    if value is None or value in _NULLS:
        return "needs a whole number, 1 or more" if key in _NEEDED else None
    if last in _COUNTS:
        bound = f" and of at most {_MAX_DIGITS} digits" if len(str(value)) > _MAX_DIGITS else ""
        wanted = f"takes a whole number, {_COUNTS[last]} or more{bound}, not {value!r}"
        return None if _is_count(value, _COUNTS[last]) else wanted
    if last in _NUMBERS or (isinstance(default, int | float) and not isinstance(default, bool)):
        return _wrong_number(value, default, *_NUMBERS.get(last, (None, None)))
    if key in _CHOICES and str(value).partition(":")[0] not in _CHOICES[key]:
        return f"takes one of {', '.join(_CHOICES[key])}, not {value!r}"
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
        return f"takes a number{as_in}, not {value!r}"
    if least is not None and number < least:
        return f"takes {least:g} or more, not {value}"
    if greatest is not None and number > greatest:
        return f"takes {greatest:g} or less, not {value}"
    return None


def _wrong_list(name: str, value: Any) -> str | None:
    try:
        items = yaml.safe_load(value) if isinstance(value, str) else value
    except (yaml.YAMLError, ValueError, RecursionError):
        items = None
    if not isinstance(items, list):
        return f"takes a list, not {value!r}: write [{str(value).strip('[]')}]"
    unknown = [str(item) for item in items if item not in _LORA_MODULES] if name == "lora_attn_modules" else []
    if unknown or not items:
        return f"takes a list of {', '.join(_LORA_MODULES)}, not {value!r}" if name == "lora_attn_modules" else None
    return None


def _is_count(value: Any, least: int) -> bool:
    text = "" if isinstance(value, bool) else str(value)
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) >= least


def _removed(table: KeyTable, key: str) -> Iterator[str]:
    if key in data("recipes")[table.recipe]["needs"]:
        yield f"~{key}: {table.recipe} needs that key, give it a value instead: {key}=<value>"


def _references(table: KeyTable, settings: Mapping[str, Setting], key: str, value: str) -> Iterator[str]:
    known = {*table.defaults, *settings}
    for name in _REFERENCE.findall(value):
        # A resolver such as ${oc.env:HOME} is OmegaConf's own business, as are nested and relative ones.
        plain = re.fullmatch(r"[A-Za-z_][\w.]*", name) is not None
        if plain and not any(other == name or other.startswith(f"{name}.") for other in known):
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean ${{{close[0]}}}?" if close else "write the value"
            yield f"{key} refers to {name}, which the config has not: {advice}"
    if value.count("${") != len(_REFERENCE.findall(value)):
        yield f"{key} is {value!r}: a reference is written ${{key}}"


def _component(table: KeyTable, key: str, value: Any) -> Iterator[str]:
    path = str(value or "")
    known = data("components")
    if "." not in path.strip("."):
        yield f"{key} takes the dotted path of a component, e.g. {_example(table, key)}, not {path!r}"
    elif path.startswith(_OWN_PACKAGES) and path not in known:
        close = difflib.get_close_matches(path, known, n=1)
        advice = f": did you mean {close[0]}?" if close else ""
        yield f"{key} is {path}, which {table.trainer} has not, or not without a package that the image lacks{advice}"


def _example(table: KeyTable, key: str) -> str:
    section = key.removesuffix(f".{COMPONENT}")
    return str(table.defaults.get(f"{section}.{COMPONENT}") or "torch.optim.AdamW")


def _text(value: str | tuple[str, ...]) -> str:
    return " ".join(value) if isinstance(value, tuple) else value
