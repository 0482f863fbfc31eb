"""The flags that make TRL shard a run (STOKER_SHARDING=full), and what cannot be sharded. Pure.

FSDP2 as accelerate 1.15 and transformers 5 drive it. `stoker.frameworks.trl.sharded` is its part in the processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.frameworks.trl.fsdp_options import WORDS_OF_1, version_of
from stoker.frameworks.trl.mappings import RECOMPUTING
from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.interfaces import Asked

FULL = "full"
_WHY = "STOKER_SHARDING=full: all processes share weights, gradients and optimizer"


def shards(asked: Asked) -> bool:
    """Return whether the processes of a run share the model's state; a single process has nobody to share it with."""
    return asked.sharding == FULL and asked.world_size > 1


def recomputes_by_choice(asked: Asked) -> bool:
    """Return whether the user says if, or how, the trainer recomputes activations."""
    return any(name in asked.values for flag in RECOMPUTING for name in (flag, f"{flag}_kwargs"))


def uses_fsdp(settings: Mapping[str, Setting]) -> bool:
    """Return whether `--fsdp` is on; without it, nobody reads `--fsdp_config`."""
    return "fsdp" in settings and str(settings["fsdp"].value).lower() not in ("", "false")


def fsdp_version(settings: Mapping[str, Setting]) -> str:
    """Return the version of FSDP that an `fsdp_config` chooses; empty if that is not known, as with a file."""
    config = _config(_fsdp_config(settings))
    return "" if config is None else version_of(config)


def sharding_recipe(asked: Asked, tuning: str) -> dict[str, tuple[str, str]]:
    """Return the flags that shard a run: flag → (value, why).

    Args:
        asked: what the user asks for.
        tuning: `full`, `lora` or `qlora`.
    """
    if not shards(asked):
        return {}
    # With FSDP's own recomputing, PEFT finds no weight by its name: it would save an empty adapter, and resume none.
    recomputed = tuning == "full" and not recomputes_by_choice(asked)
    if "fsdp_config" in asked.values:
        recomputed = _recomputes(" ".join(asked.values["fsdp_config"]))
    config = {
        "version": 2,
        "reshard_after_forward": True,
        # FSDP's own recomputing gathers a layer's weights once less than the trainer's.
        "activation_checkpointing": recomputed,
        # Each rank writes its part. A whole checkpoint would pass through the memory of rank 0.
        "state_dict_type": "SHARDED_STATE_DICT",
        # Rank 0 hands out the weights, so that new ones (a reward model's head) are the same everywhere. Quantized
        # weights cannot be handed out; each rank loads them.
        "cpu_ram_efficient_loading": tuning != "qlora",
    }
    recipe = {"fsdp": ("true", _WHY), "fsdp_config": (json.dumps(config), _WHY)}
    if recomputed:
        recipe["activation_checkpointing"] = ("false", "fsdp_config turns on FSDP's, which gathers weights less often")
    if tuning == "qlora":
        recipe["bnb_4bit_quant_storage"] = ("bfloat16", "only weights stored as floating-point numbers can be sharded")
    return recipe


def sharding_notices(asked: Asked) -> tuple[str, ...]:
    """Return what a user should know about the sharding of a run."""
    if asked.sharding == FULL and not shards(asked):
        return ("STOKER_SHARDING=full has no effect on a single process, which holds the whole model",)
    return ()


def sharding_problems(
    asked: Asked, table: FlagTable, settings: Mapping[str, Setting], on: Callable[[str], bool]
) -> Iterator[str]:
    """Yield one problem for each setting that a sharded run cannot have, whoever shards it."""
    if uses_fsdp(settings):
        yield from _fsdp_problems(asked, table, settings, on)
    if not shards(asked):
        return
    if "fsdp" in settings and not uses_fsdp(settings):
        yield f"{table.spell('fsdp')} turns off what STOKER_SHARDING=full turns on: write STOKER_SHARDING=none"
    if "deepspeed" in settings:
        yield f"{table.spell('deepspeed')} and STOKER_SHARDING=full both share the model: leave one of them out"
    if on("load_in_8bit"):
        yield "8-bit weights cannot be sharded (STOKER_SHARDING=full): write --load_in_4bit, or leave sharding out"


def _fsdp_problems(
    asked: Asked, table: FlagTable, settings: Mapping[str, Setting], on: Callable[[str], bool]
) -> Iterator[str]:
    """Yield one problem for each setting that does not go with `--fsdp`, which is on."""
    setting, flag = settings["fsdp"], table.spell("fsdp")
    text = _fsdp_config(settings)
    # XLA may shard within a single process.
    if asked.world_size == 1 and asked.accelerator != "tpu" and not _turns_on(text, "xla"):
        leave = f"write {flag} false" if setting.source == "runtime" else f"leave out {flag}"
        yield (
            f"{flag} ({setting.source}) shards a model over several processes, but this run has one: request more "
            f"devices, or {leave}"
        )
    yield from _version_problems(asked, str(setting.value), fsdp_version(settings))
    if on("use_peft") and _recomputes(text):
        yield (
            "activation_checkpointing in --fsdp_config leaves an empty adapter (peft 0.21): take it out of there, and "
            "write --activation_checkpointing"
        )


def _version_problems(asked: Asked, words: str, version: str) -> Iterator[str]:
    """Yield what the version of FSDP cannot do; nothing if it is not known."""
    if version == "1" and asked.accelerator == "cpu":
        yield "version 1 of FSDP (--fsdp_config) needs GPUs: leave the version out, or choose a runtime with GPUs"
    for word in words.split() if version == "2" else ():
        if word in WORDS_OF_1:
            yield f"--fsdp {word} is for version 1 of FSDP, and this is 2: write full_shard or shard_grad_op"


def _fsdp_config(settings: Mapping[str, Setting]) -> str:
    return str(settings["fsdp_config"].value) if "fsdp_config" in settings else "{}"


def _recomputes(text: str) -> bool:
    """Return whether an `fsdp_config` turns on FSDP's own recomputing."""
    return _turns_on(text, "activation_checkpointing")


def _turns_on(text: str, key: str) -> bool:
    """Return whether an `fsdp_config` turns on a key, in either spelling."""
    config = _config(text) or {}
    return any(str(config.get(name, "")).lower() in ("true", "1") for name in (key, f"fsdp_{key}"))


def _config(text: str) -> dict[str, Any] | None:
    """Return an `fsdp_config`; None if it is a file's name, or what the trainer refuses."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None
