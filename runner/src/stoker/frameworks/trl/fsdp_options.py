"""Finds values of `--fsdp_config` that transformers 5 or accelerate 1.15 refuse in every process. Pure.

The rules are those of `TrainingArguments._process_fsdp_args` and `FullyShardedDataParallelPlugin`. A test compares.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

_SWITCH = ("true", "false")
# How accelerate spells true and false as text, in any case.
_TRUTHS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_OF_BOTH: Mapping[str, tuple[str, ...]] = {
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    **dict.fromkeys(("activation_checkpointing", "cpu_ram_efficient_loading"), _SWITCH),
}
_SHARED_STATES = ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
# Version of FSDP → key → its words. Version 2 does not read the other keys of version 1.
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "1": {
        **_OF_BOTH,
        "state_dict_type": (*_SHARED_STATES, "LOCAL_STATE_DICT"),
        "reshard_after_forward": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
        "backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
        **dict.fromkeys(("forward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers"), _SWITCH),
    },
    "2": {**_OF_BOTH, "state_dict_type": _SHARED_STATES, "reshard_after_forward": _SWITCH},
}
# The version of a configuration that names none.
_DEFAULT_VERSION = "2"
# Words of --fsdp that need version 1.
WORDS_OF_1 = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")


def wrong_options(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with each value of an `fsdp_config`, as the end of a sentence."""
    named = {key.removeprefix("fsdp_"): value for key, value in config.items()}
    version = version_of(config)
    if version not in OPTIONS:
        yield f"version {named['version']!r}: write 2, or 1, which transformers will drop"
        return
    # XLA reads no other key.
    if named.get("xla"):
        return
    for key, words in OPTIONS[version].items():
        if key in named and not _is_one_of(key, named[key], words):
            yield f"{key} {_shown(named[key])}: {_advice(named[key], words)}"
    if type(named.get("min_num_params", 0)) is not int:
        yield f"min_num_params {_shown(named['min_num_params'])}: write a whole number"
    # As a text, any word would turn it on.
    if not isinstance(named.get("cpu_offload", False), bool):
        yield f"cpu_offload {_shown(named['cpu_offload'])}: write true or false, without quotes"
    layers = named.get("transformer_layer_cls_to_wrap")
    if layers is not None and not isinstance(layers, str) and not _is_of_texts(layers):
        yield f"transformer_layer_cls_to_wrap {_shown(layers)}: write a list of class names"


def version_of(config: Mapping[str, Any]) -> str:
    """Return the version of FSDP that an `fsdp_config` chooses."""
    return str({key.removeprefix("fsdp_"): value for key, value in config.items()}.get("version", _DEFAULT_VERSION))


def _is_one_of(key: str, value: Any, words: tuple[str, ...]) -> bool:
    if words is _SWITCH:
        return str(value).lower() in _TRUTHS
    if key == "auto_wrap_policy":
        return value in words
    # Without a value, accelerate has a default.
    return (value is None and key == "state_dict_type") or str(value).upper() in words


def _is_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else repr(value)


def _advice(value: Any, words: tuple[str, ...]) -> str:
    if words is _SWITCH:
        return "write true or false"
    close = difflib.get_close_matches(str(value).upper(), words, n=1)
    return f"did you mean {close[0]}?" if close else f"write one of {', '.join(words)}"
