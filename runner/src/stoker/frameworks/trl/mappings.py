"""Finds what is wrong in flags that hold a mapping as JSON: an unknown key is ignored, or refused late. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stoker.frameworks.trl.fsdp_options import wrong_options
from stoker.plan.arguments import FlagTable, Setting, is_none

_CHECKPOINTING = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
# Flag → its keys. A test compares them with the classes and functions that take them.
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
    "activation_checkpointing_kwargs": _CHECKPOINTING,
    "gradient_checkpointing_kwargs": _CHECKPOINTING,
}
# Flags that may name a file with the mapping.
_FILES = ("fsdp_config", "accelerator_config", "deepspeed")


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
            yield from unknown_keys(where, name, content)
            if name == "fsdp_config":
                yield from (f"{where} has {problem}" for problem in wrong_options(content))
        elif text and not is_none(flag, (text,)) and name not in _FILES:
            yield f'{where} must be a mapping, not {text!r}: write {{"key": value}} on one line'


def unknown_keys(where: str, flag: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield one problem for each key that nobody reads.

    Args:
        where: what messages call the mapping.
        flag: the flag that holds it.
        content: the mapping.
    """
    known: Collection[str] = KEYS.get(flag, ())
    for key in content if known else ():
        # transformers takes both spellings.
        name = key.removeprefix("fsdp_") if flag == "fsdp_config" else key
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            yield f"{where} has the unknown key {key}: {advice}"
