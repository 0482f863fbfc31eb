"""Finds words that TRL's parser takes for a flag of text, and that TRL refuses later, some at the first step. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from stoker.plan.arguments import CONFIG_FILE, Setting

_SAMPLING = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_OF_GRPO: Mapping[str, tuple[str, ...]] = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "scale_rewards": ("group", "batch", "none"),
    "vllm_importance_sampling_mode": _SAMPLING,
    "vllm_mode": ("server", "colocate"),
}
# Method → flag → the words that TRL's trainers know. A test reads them from TRL's source.
KNOWN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "dpo": {
        "loss_type": (
            *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
            *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
        ),
        "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
    },
    "grpo": _OF_GRPO,
    "grpo_async": _OF_GRPO,
    "rloo": {"vllm_mode": ("server", "colocate")},
    "distillation": {"vllm_mode": ("server", "colocate")},
}
# The same for every method. The case does not matter to torch.
EVERYWHERE: Mapping[str, tuple[str, ...]] = {
    "lora_task_type": ("SEQ_CLS", "SEQ_2_SEQ_LM", "CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"),
    "torch_compile_backend": (
        *("no", "eager", "aot_eager", "inductor", "aot_ts_nvfuser", "nvprims_nvfuser", "cudagraphs", "ofi", "fx2trt"),
        *("onnxrt", "tensorrt", "aot_torchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron"),
    ),
    "fsdp": (
        *("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap"),
        *("true", "false"),
    ),
}
# transformers/modeling_utils.py: AttentionInterface, and the model's own code. A name with a slash is one on the Hub.
ATTENTION = ("eager", "sdpa", "flex_attention", *(f"flash_attention_{version}" for version in (2, 3, 4)))
# Stoker's own.
VARLEN = "varlen_attention"
# What a file may also hold: YAML's true and false.
_IN_FILES: Mapping[str, tuple[str, ...]] = {"scale_rewards": ("True", "False")}


def unknown_words(method: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each word that TRL does not know."""
    for name, known in {**EVERYWHERE, **KNOWN.get(method, {})}.items():
        if name not in settings:
            continue
        setting = settings[name]
        also = _IN_FILES.get(name, ()) if setting.source == CONFIG_FILE else ()
        for word in _words(name, setting):
            if word not in (*known, *also):
                yield f"--{name} {word} ({setting.source}) is unknown: {_advice(word, known)}"
    yield from _padding(settings)
    yield from _attention(settings)


def _attention(settings: Mapping[str, Setting]) -> Iterator[str]:
    setting = settings.get("attn_implementation")
    if setting is None:
        return
    word = str(setting.value).removeprefix("paged|")
    if word not in ATTENTION and setting.value != VARLEN and "/" not in word:
        yield f"--attn_implementation {word} ({setting.source}) is unknown: {_advice(word, (*ATTENTION, VARLEN))}"


def _words(name: str, setting: Setting) -> tuple[str, ...]:
    if not isinstance(setting.value, str):
        return setting.value
    if name == "fsdp":
        return tuple(setting.value.split())
    return (setting.value.lower() if name == "torch_compile_backend" else setting.value,)


def _advice(word: str, known: tuple[str, ...]) -> str:
    parts = word.replace(",", " ").split()
    if len(parts) > 1 and {*parts} <= {*known}:
        return f"write {len(parts)} words, {' '.join(parts)}, without quotes around all of them"
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"write one of {', '.join(known)}"


def _padding(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a problem if padding has no length: TRL reads a number, `auto` or `none` from a text."""
    setting = settings.get("pad_to_multiple_of")
    word = "auto" if setting is None else str(setting.value)
    if setting is None or word == "auto" or word.lower() in ("none", "null"):
        return
    if not word.isascii() or not word.isdecimal() or int(word) < 1:
        yield f"--pad_to_multiple_of is {word} ({setting.source}): write a whole number, 1 or more, or auto"
