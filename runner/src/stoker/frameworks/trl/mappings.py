"""Finds what is wrong in flags that hold a mapping as JSON: an unknown key is ignored, or refused late. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stoker.frameworks.trl.fsdp_options import wrong_options
from stoker.plan.arguments import FlagTable, Setting, is_none, is_true

_CHECKPOINTING = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
RECOMPUTING = ("activation_checkpointing", "gradient_checkpointing")
# Key of their `_kwargs` that torch does not have → the methods that have it. transformers takes the first two out as it
# turns recomputing on; other methods' trainers turn it off and on again, and then torch refuses them.
_BY_METHOD: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("every_n_layers", "offload"), ("sft", "orpo", "reward")),
    "selective": ("sft",),
}
# Flag → its keys, but for those that only some methods have.
KEYS: Mapping[str, tuple[str, ...]] = {
    "fsdp_config": (
        *("version", "min_num_params", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "cpu_offload"),
        *("reshard_after_forward", "activation_checkpointing", "state_dict_type", "cpu_ram_efficient_loading"),
        *("forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers"),
        *("xla", "xla_fsdp_settings", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"),
    ),
    "accelerator_config": (
        *("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking"),
        *("gradient_accumulation_kwargs", "use_configured_state"),
    ),
    **dict.fromkeys((f"{name}_kwargs" for name in RECOMPUTING), _CHECKPOINTING),
}
# Flags that may name a file with the mapping.
_FILES = ("fsdp_config", "accelerator_config", "deepspeed")


def mapping_in(settings: Mapping[str, Setting], flag: str) -> Mapping[str, Any]:
    """Return what a flag with a mapping holds, as `mapping_of`; empty without it."""
    return mapping_of(str(settings[flag].value)) if flag in settings else {}


def mapping_of(text: str) -> Mapping[str, Any]:
    """Return a mapping that is written as JSON; empty if it is none, which another check refuses."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def mapping_problems(table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each text that is no mapping, and for each key that nobody reads."""
    for name, setting in settings.items():
        flag = table.flags.get(name)
        if flag is None or flag.type != "json" or not isinstance(setting.value, str):
            continue
        where, text = f"--{name} ({setting.source})", setting.value.strip()
        if text.startswith("{"):
            try:
                content = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield f'{where} is not valid JSON: {error}: write {{"key": value}} on one line'
                continue
            yield from unknown_keys(where, name, content, table.method)
            if name.removesuffix("_kwargs") in RECOMPUTING:
                yield from (f"{where} has {problem}" for problem in _wrong_recomputing(content))
            if name == "fsdp_config":
                yield from (f"{where} has {problem}" for problem in wrong_options(content))
        elif text and not is_none(flag, (text,)) and name not in _FILES:
            yield f'{where} must be a mapping, not {text!r}: write {{"key": value}} on one line'


def keys_of(method: str, flag: str) -> tuple[str, ...]:
    """Return the keys of a method's flag; a test compares them with the classes and functions that take them."""
    more = _BY_METHOD.items() if flag.removesuffix("_kwargs") in RECOMPUTING else ()
    return (*KEYS.get(flag, ()), *(key for key, methods in more if method in methods))


def recomputing_problems(accelerator: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each key of recomputing that does not go with other settings, or with the device."""
    names = [name for name in RECOMPUTING if f"{name}_kwargs" in settings]
    options = _content(settings[f"{names[0]}_kwargs"]) if names else {}
    if accelerator == "cpu" and options.get("offload"):
        yield f"offload in --{names[0]}_kwargs needs a device to move from: leave it out, or choose a runtime with GPUs"
    switch = next((settings[name] for name in RECOMPUTING if name in settings), None)
    if options.get("selective") and switch is not None and not is_true(switch.value):
        yield (
            f"selective in --{names[0]}_kwargs needs recomputing, which --{switch.name} ({switch.source}) turns off: "
            "leave one of them out"
        )


def _content(setting: Setting) -> Mapping[str, Any]:
    """Return the mapping of a setting; empty if it holds none, which another check refuses."""
    try:
        content = json.loads(str(setting.value))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _wrong_recomputing(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong in the values of a mapping for recomputing."""
    layers = content.get("every_n_layers", 1)
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        yield f"every_n_layers {layers!r}: write a whole number, 1 or more"
    if content.get("selective") and content.get("use_reentrant"):
        yield "selective, which does not work with use_reentrant: leave one of them out"


def unknown_keys(where: str, flag: str, content: Mapping[str, Any], method: str = "") -> Iterator[str]:
    """Yield one problem for each key that nobody reads.

    Args:
        where: what messages call the mapping.
        flag: the flag that holds it.
        content: the mapping.
        method: the method, where its keys count.
    """
    known: Collection[str] = keys_of(method, flag)
    for key in content if known else ():
        # transformers takes both spellings.
        name = key.removeprefix("fsdp_") if flag == "fsdp_config" else key
        if name not in known and name in _BY_METHOD and flag.removesuffix("_kwargs") in RECOMPUTING:
            yield f"{where} has the key {key}, which {method} does not have: leave it out"
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            yield f"{where} has the unknown key {key}: {advice}"
