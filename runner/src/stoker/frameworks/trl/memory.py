"""What TRL's flags say of the memory of a run. Pure.

The types are those of TRL 1.16, PEFT 0.21 and accelerate 1.15.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from stoker.plan.arguments import FlagTable, Setting, is_true
from stoker.plan.estimate import Training, Way
from stoker.plan.interfaces import Asked
from stoker.plan.model_shape import BYTES, ModelShape

# Optimizer → bytes for each trained weight, given the bytes of that weight. Those that are not here are not known.
_OPTIMIZERS: Mapping[str, Callable[[float], float]] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_apex_fused"), lambda width: 2 * width),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit"), lambda width: 2.0),
    "adamw_torch_4bit": lambda width: 1.0,
    **dict.fromkeys(("adagrad", "rmsprop", "lion_32bit"), lambda width: width),
    "lion_8bit": lambda width: 1.0,
    # Adafactor keeps a row and a column of each matrix.
    **dict.fromkeys(("sgd", "adafactor"), lambda width: 0.0),
}
# bitsandbytes keeps a float32 for each 64 weights of 4 bits; nested, a byte for each, and a float32 for 256 of those.
_FOUR_BITS = 0.5 + 4 / 64
_FOUR_BITS_NESTED = 0.5 + 1 / 64 + 4 / (64 * 256)
# Methods that keep a frozen copy of a model that is trained whole, and those that do so for a penalty (beta).
_WITH_REFERENCE = ("dpo", "kto")
_WITH_PENALTY = ("grpo", "grpo_async", "rloo")
# Bytes that an adapter's weight has beside quantized weights (TRL makes it bfloat16), and else (PEFT makes it float32).
_QUANTIZED_ADAPTER, _ADAPTER = 2, 4


# Layers on which `all-linear` puts an adapter.
_ALL = "all-linear"
_ADAPTED = {"use_peft": "true", "load_in_4bit": "false", "load_in_8bit": "false"}
# What to write → the flags that it means.
_TUNINGS: Mapping[str, Mapping[str, str]] = {
    "": {},
    "--use_peft": _ADAPTED,
    "--use_peft --load_in_4bit": {**_ADAPTED, "load_in_4bit": "true"},
}
_SHARDED = {"fsdp": "true"}


def ways_of(asked: Asked, table: FlagTable, settings: Mapping[str, Setting], shape: ModelShape) -> tuple[Way, ...]:
    """Return the way that was asked for, and others that need less memory.

    Empty if flags move weights to where this arithmetic does not follow.
    """
    own = {name: str(setting.value) for name, setting in settings.items() if isinstance(setting.value, str)}
    values = {**{name: flag.default or "" for name, flag in table.flags.items()}, **own}
    if values.get("deepspeed") or "device_map" in values.get("model_init_kwargs", "") or _offloads(values):
        return ()
    named = settings["lora_target_modules"].value if "lora_target_modules" in settings else _ALL
    targets = (named,) if isinstance(named, str) else named
    chosen = () if _ALL in targets else targets
    dtype = settings.get("dtype")
    ways = [Way(_training(asked, values, shape, chosen))]
    for write, flags in _TUNINGS.items():
        other = {**values, **flags}
        if flags and (dtype is None or dtype.source == "recipe"):
            other["dtype"] = "bfloat16"
        sharded = f"STOKER_SHARDING=full{f' and {write}' if write else ''}"
        for text, values_of_it in ((write, other), (sharded, {**other, **_SHARDED})):
            way = Way(_training(asked, values_of_it, shape, chosen), text)
            if way.training not in [known.training for known in ways]:
                ways.append(way)
    return tuple(ways)


def _training(asked: Asked, values: Mapping[str, str], shape: ModelShape, targets: Sequence[str]) -> Training:
    def on(name: str) -> bool:
        return is_true(values.get(name, ""))

    sharers = asked.world_size if values.get("fsdp", "") not in ("", "false") else 1
    dtype = values.get("dtype", "")
    width = float(BYTES.get(shape.dtype if dtype in ("auto", "") else dtype, BYTES["float32"]))
    optimizer = _OPTIMIZERS.get(values.get("optim", ""))
    if not on("use_peft"):
        # It stays in its type where accelerate keeps the trained weights of a sharded run in float32.
        reference = width if _has_reference(asked.method, values) else 0
        if sharers > 1 and (on("bf16") or on("fp16")):
            width = BYTES["float32"]
        return Training(
            "full", width, width, optimizer and optimizer(width), reference_bytes=reference, sharers=sharers
        )
    quantized = on("load_in_4bit") or on("load_in_8bit")
    linear = width
    if quantized:
        four_bits = _FOUR_BITS_NESTED if on("use_bnb_nested_quant") else _FOUR_BITS
        linear = four_bits if on("load_in_4bit") else 1.0
    adapter = float(_QUANTIZED_ADAPTER if quantized else _ADAPTER)
    return Training(
        "qlora" if quantized else "lora",
        width,
        linear,
        optimizer and optimizer(adapter),
        rank=int(values.get("lora_r") or 0),
        adapter_bytes=adapter,
        targets=tuple(targets),
        sharers=sharers,
    )


def _has_reference(method: str, values: Mapping[str, str]) -> bool:
    """Return whether TRL loads a second model to compare the trained one with."""
    if method in _WITH_PENALTY:
        return float(values.get("beta") or 0) != 0
    return method in _WITH_REFERENCE and not is_true(values.get("precompute_ref_log_probs", ""))


def _offloads(values: Mapping[str, str]) -> bool:
    """Return whether FSDP keeps weights in host memory, or its configuration lies in a file that was not read."""
    if "offload" in values.get("fsdp", "").split():
        return True
    try:
        options = json.loads(values.get("fsdp_config") or "{}")
    except (ValueError, RecursionError):
        return True
    return isinstance(options, dict) and any(
        str(options.get(name, "")).lower() in ("true", "1") for name in ("cpu_offload", "fsdp_cpu_offload")
    )
