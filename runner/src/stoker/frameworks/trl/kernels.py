"""What makes a run on an NVIDIA GPU faster without training another model: kernels, packing, workers. Pure.

Everything here needs Ampere or newer, and to know the device: elsewhere TRL's own defaults stay. The rules are those of
TRL 1.16 and transformers 5. Fused AdamW is TRL's own default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.frameworks.command_line import evaluates
from stoker.frameworks.trl.known_words import VARLEN
from stoker.frameworks.trl.mappings import mapping_of
from stoker.frameworks.trl.memory import ways_of
from stoker.frameworks.trl.sharding import recomputes_by_choice, shards
from stoker.plan.arguments import FlagTable, Setting, is_true
from stoker.plan.estimate import Training, estimate
from stoker.plan.interfaces import Asked
from stoker.plan.model_shape import ModelShape
from stoker.plan.shared_memory import shared_memory_needed

Recipe = dict[str, tuple[str, str]]
_AMPERE = 8
_FLASH, _LIGER = "flash-attn", "liger-kernel"
# Methods that read a whole data set of fixed rows.
_OF_ROWS = ("sft", "dpo", "kto", "orpo", "reward")
_LOADERS, _TOKENIZERS = 2, 16
# Bytes that a token leaves behind for the backward pass, for each number that goes into a linear layer or comes out: in
# bfloat16, with a float32 copy for a norm, and as much again for what lies between the layers.
_KEPT = 8
# With Liger's layers an H200 kept 2.0 for Qwen3 8B with an adapter, and 1.7 for all of Qwen3 1.7B in float32 (8192
# tokens, torch 2.11). Dropout before an adapter keeps its mask and its result too, for what goes in.
_KEPT_FUSED, _KEPT_WIDE, _KEPT_DROPPED = 2.5, 3.0, 4.0
_USABLE = 0.9
_RESHAPING = ("fsdp", "deepspeed", "auto_find_batch_size")
# torch's own attention, transformers' default but for families whose scores it cannot cap; those have the other.
_SDPA, _EAGER, _CAPPED = "sdpa", "eager", ("gemma2",)
_DROPOUT = "attention_dropout"
# The first torch whose FlashAttention of packed rows takes fewer keys than queries, and the heads that it takes.
_VARLEN_TORCH, _VARLEN_HEADS = (2, 13), range(8, 257, 8)
# Masked attention may add this much to the linear layers' arithmetic. Padding seldom costs so little.
_MASKED = 0.1


def speed_recipe(asked: Asked, table: FlagTable, recipe: Recipe) -> Recipe:
    """Return the flags that make a run faster: flag → (value, why).

    Args:
        asked: what the user asks for, and what is known of machine and model.
        table: the method's flags.
        recipe: the rest of the recipe.
    """
    if asked.accelerator != "nvidia" or (asked.machine.cuda_generation or 0) < _AMPERE:
        return {}
    kernels = _kernels(asked)
    return {
        **kernels,
        **_attention(asked, table),
        **_workers(asked),
        **_recomputing(asked, table, recipe, fused="use_liger_kernel" in kernels),
    }


def skips_other_samples(attention: str) -> bool:
    """Return whether a kernel computes nothing between the samples of a row: FlashAttention's know their ends.

    For other kernels transformers masks the other samples, and they compute what the mask hides.
    """
    return attention == VARLEN or ("flash" in attention and ("attention" in attention or "attn" in attention))


def _kernels(asked: Asked) -> Recipe:
    found: Recipe = {}
    if not _says(asked, "bf16", "false") and not _says(asked, "fp16", "true"):
        found["tf32"] = ("true", "matrices that stay float32 are multiplied several times faster")
    # In other methods the flag means another loss. Liger 0.8 has the layers of every family with a known shape.
    is_fused = asked.method == "sft" and asked.shape is not None and _LIGER in asked.machine.kernel_packages
    rivals = ("use_liger_kernel", "liger_kernel_config", "torch_compile", "torch_compile_backend", "torch_compile_mode")
    if is_fused and not any(name in asked.values for name in rivals) and "use_kernels" not in _model_options(asked):
        found["use_liger_kernel"] = ("true", "fused layers; the image has them, nothing is downloaded")
    return found


def masked_share(shape: ModelShape, tokens: int) -> float:
    """Return how much attention over a whole row costs, as a share of what the linear layers compute for it.

    Args:
        shape: the model.
        tokens: tokens of the row, which holds all samples of a process's batch.
    """
    heads = sum(linear.inputs * linear.count for linear in shape.linears if linear.name == "o_proj")
    return 2 * tokens * heads / sum(linear.weights for linear in shape.linears)


def _attention(asked: Asked, table: FlagTable) -> Recipe:
    """Return packing where it pays, and FlashAttention: that of a package where it is installed, else torch's."""
    if asked.shape is None:
        return {}
    found: Recipe = {}
    attention = chosen_attention(asked)
    if not attention and _FLASH in asked.machine.kernel_packages and not _says(asked, "bf16", "false"):
        attention = "flash_attention_2"
        found["attn_implementation"] = (attention, "flash-attn is installed, nothing is downloaded")
    is_free = not attention and bool(asked.machine.torch) and not any(varlen_problems(asked))
    why = _reason_to_pack(asked, table, asked.shape, VARLEN if is_free else attention)
    if why:
        found["packing"] = ("true", why)
    is_packed = why or any(_says(asked, name, "true") for name in ("packing", "padding_free"))
    if is_free and asked.method == "sft" and is_packed:
        found["attn_implementation"] = (VARLEN, "torch's own FlashAttention, which needs no package")
    return found


def varlen_problems(asked: Asked) -> Iterator[str]:
    """Yield why torch's FlashAttention cannot compute packed rows, as far as machine and model are known."""
    generation, shape = asked.machine.cuda_generation, asked.shape
    if asked.accelerator != "nvidia" or (generation is not None and generation < _AMPERE):
        yield "needs an NVIDIA GPU of Ampere or newer"
    if asked.machine.torch and asked.machine.torch < _VARLEN_TORCH:
        yield f"needs torch {'.'.join(map(str, _VARLEN_TORCH))} or newer"
    if _computes_in_float32(asked):
        yield "computes in bfloat16 or float16 only, and --bf16 is false"
    if shape is not None and shape.family in _CAPPED:
        yield f"cannot cap the scores of {shape.family}"
    options = _model_options(asked)
    if _DROPOUT in options:
        # It replaces the one in config.json.
        drops, where = bool(options[_DROPOUT]), "--model_init_kwargs"
    else:
        drops, where = shape is not None and shape.drops_attention, "the model's config.json"
    if drops:
        yield f"cannot drop scores ({_DROPOUT} in {where})"
    if shape is not None and shape.head_size not in _VARLEN_HEADS:
        largest = _VARLEN_HEADS[-1]
        yield f"takes heads of up to {largest} numbers, a multiple of 8, and the model's have {shape.head_size}"


def _reason_to_pack(asked: Asked, table: FlagTable, shape: ModelShape, attention: str) -> str:
    """Return why the samples of a run are packed; empty if they are not."""
    if asked.method != "sft" or _is_shaped(asked):
        return ""
    if asked.former is not None:
        # What may change on resume, such as evaluation, must not change this: the run would be refused.
        return "the run began packed" if asked.former.get("packing") else ""
    if "eval_packing" in asked.values:
        return ""
    if skips_other_samples(attention):
        return f"{attention} keeps the samples of a row apart, so none needs padding"
    tokens = _rows(asked, table) * _number(asked, table, "max_length")
    if attention not in ("", _SDPA) or shape.family in _CAPPED or not tokens:
        return ""
    share = masked_share(shape, tokens)
    return (
        "" if share > _MASKED else f"{_SDPA} masks the other samples of a row, for {share:.0%} more arithmetic at most"
    )


def _rows(asked: Asked, table: FlagTable) -> int:
    """Return the rows that a process trains on, or evaluates, at once: TRL lays packed ones end to end."""
    also = ("per_device_eval_batch_size",) if evaluates(_settings(asked)) else ()
    return max(_number(asked, table, name) for name in ("per_device_train_batch_size", *also))


def _is_shaped(asked: Asked) -> bool:
    """Return whether a flag says how rows are made, or makes them in a way that cannot be packed."""
    names = ("packing", "packing_strategy", "padding_free", "dataset_kwargs")
    # Packing keeps the start of a long sample, whatever truncation_mode says.
    ends = asked.values.get("truncation_mode") == ("keep_end",)
    return ends or _streams(asked) or any(name in asked.values for name in names) or _says(asked, "max_length", "none")


def _streams(asked: Asked) -> bool:
    """Return whether rows are read one by one: of one data set, or of a mixture."""
    return any(_says(asked, name, "true") for name in ("dataset_streaming", "streaming"))


def _workers(asked: Asked) -> Recipe:
    machine = asked.machine
    if asked.method not in _OF_ROWS or machine.cpus is None or _streams(asked):
        return {}
    found: Recipe = {}
    if (share := min(_TOKENIZERS, machine.cpus)) > 1:
        found["dataset_num_proc"] = (str(share), f"the pod requests {machine.cpus} CPUs, and one process tokenizes")
    loaders = min(_LOADERS, machine.cpus // machine.processes - 1)
    needed = shared_memory_needed(asked.accelerator, machine.processes, loaders)
    if loaders > 0 and (machine.shm_bytes is None or needed <= machine.shm_bytes):
        found["dataloader_num_workers"] = (str(loaders), "the next batch is made while the device computes")
    return found


def _recomputing(asked: Asked, table: FlagTable, recipe: Recipe, fused: bool) -> Recipe:
    """Return no recomputing where the device has room for all activations: it costs a fourth of the speed."""
    shape, device = asked.shape, asked.machine.device_bytes
    chosen = recomputes_by_choice(asked) or any(name in asked.values for name in _RESHAPING)
    if asked.method != "sft" or shape is None or shape.experts or device is None or chosen or shards(asked):
        return {}
    if (chosen_attention(asked) or (_EAGER if shape.family in _CAPPED else _SDPA)) == _EAGER:
        return {}  # it keeps all scores, which grow with the square of the length
    tokens = _number(asked, table, "per_device_train_batch_size") * _number(asked, table, "max_length")
    settings = {name: Setting(name, value, "recipe") for name, (value, _) in recipe.items()}
    ways = ways_of(asked, table, {**settings, **_settings(asked)}, shape)
    if not tokens or not ways:
        return {}
    training = ways[0].training
    memory = estimate(shape, training)
    # DDP's buckets hold each gradient once more, and autocast a copy of each weight that is wider than its type.
    copies = memory.gradients + (2 * shape.weights if training.weight_bytes > 2 else 0)
    kept = tokens * _numbers(shape) * (_bytes_kept(asked, table, training) if fused else _KEPT)
    if memory.total + copies + kept > _USABLE * device:
        return {}
    return {"activation_checkpointing": ("false", "all activations fit in the device's memory, none is recomputed")}


def _numbers(shape: ModelShape) -> int:
    """Return how many numbers go into and come out of all linear layers, for one token."""
    return sum((layer.inputs + layer.outputs) * layer.count for layer in shape.linears)


def _bytes_kept(asked: Asked, table: FlagTable, training: Training) -> float:
    """Return how many bytes fused layers leave for the backward pass, at most, for each of those numbers."""
    if _computes_in_float32(asked) or _says(asked, "use_dora", "true"):
        return _KEPT
    if training.tuning == "full":
        return _KEPT_WIDE if training.weight_bytes > 2 else _KEPT_FUSED
    words = asked.values.get("lora_dropout")
    rate = _value(words) if words else table.flags["lora_dropout"].default
    return _KEPT_FUSED if rate in ("0", "0.0") else _KEPT_DROPPED


def _computes_in_float32(asked: Asked) -> bool:
    return _says(asked, "bf16", "false") and not _says(asked, "fp16", "true")


def chosen_attention(asked: Asked) -> str:
    """Return the attention that the user names; empty without one."""
    words = asked.values.get("attn_implementation") or (str(_model_options(asked).get("attn_implementation") or ""),)
    return words[0].lower()


def _model_options(asked: Asked) -> Mapping[str, Any]:
    """Return what `model_init_kwargs` holds."""
    return mapping_of(" ".join(asked.values.get("model_init_kwargs", ("{}",))))


def _says(asked: Asked, flag: str, value: str) -> bool:
    """Return whether the user sets a flag to `true`, `false` or `none`, however it is written."""
    words = asked.values.get(flag)
    if words is None:
        return value == "none" and _is_null(asked, flag)
    word = words[0].lower() if words else "true"
    return word in ("none", "null") if value == "none" else is_true(word) is (value == "true")


def _is_null(asked: Asked, flag: str) -> bool:
    """Return whether the `--config` file gives a flag no value, which is not its default."""
    return asked.content is not None and flag in asked.content and asked.content[flag] is None


def _number(asked: Asked, table: FlagTable, flag: str) -> int:
    """Return a whole number that the user sets, or else TRL; 0 without one."""
    if flag not in asked.values and _is_null(asked, flag):
        return 0
    text = _value(asked.values[flag]) if flag in asked.values else table.flags[flag].default
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else 0


def _settings(asked: Asked) -> dict[str, Setting]:
    """Return what the user sets, as settings."""
    return {name: Setting(name, _value(words), "args") for name, words in asked.values.items()}


def _value(words: tuple[str, ...]) -> str | tuple[str, ...]:
    return words if len(words) > 1 else "".join(words) or "true"
