"""Whether a server with a given base model can serve an adapter. Pure.

What vLLM refuses is from its sources (0.31: `vllm/lora/peft_helper.py`, `lora_model.py`). It silently ignores every
setting that it does not read there, so settings that change an adapter's meaning are refused here by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from stoker.contract.manifest import ADAPTER_WEIGHTS, MANIFEST, is_live, is_names, unfinished
from stoker.serve.adapters.files import Adapter, BaseModel

ALLOWED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's --max-lora-rank takes (0.31, `vllm/config/lora.py`)."""

# adapter_config.json (PEFT 0.21): what vLLM reads, what only training reads, and what names the origin.
_READ = {"r", "lora_alpha", "target_modules", "bias", "modules_to_save", "use_rslora", "use_dora", "peft_type"}
_TRAINING = {
    "arrow_config", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
    "megatron_config", "megatron_core", "qalora_group_size", "runtime_config", "task_type",
}  # fmt: skip
_ORIGIN = {"auto_mapping", "base_model_name_or_path", "peft_version", "revision"}
# Initializations that move a part of the base model's weights into the adapter, so that it needs the changed model.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# vLLM's own list for classification models.
_SAVED_MODULES = {"classifier", "score"}

_LORA = re.compile(r"^(?P<module>.+)\.(?:lora_(?P<half>[AB])\.weight|lora_embedding_(?P<embedding>[AB]))$")
_HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
_SHOWN = 3


def snapped(rank: int) -> int | None:
    """Return the smallest value of vLLM's --max-lora-rank that is enough for a rank; None if there is none."""
    return next((allowed for allowed in ALLOWED_RANKS if allowed >= rank), None)


def rank_of(adapter: Adapter) -> int:
    """Return the largest rank in an adapter's configuration and tensors."""
    shapes = [shape[0] for name, shape in adapter.tensors.items() if name.endswith("lora_A.weight") and shape]
    configured = adapter.config.get("r")
    return max([configured if isinstance(configured, int) else 0, *shapes])


def problems(adapter: Adapter, model: BaseModel, max_rank: int, *, require_manifest: bool = True) -> list[str]:
    """Return why a server cannot serve an adapter, one text for each reason; none if it can.

    Args:
        adapter: what was read of the adapter.
        model: what was read of the server's base model.
        max_rank: the largest rank the server has room for.
        require_manifest: refuse adapters without the manifest of the run that made them.
    """
    if adapter.damage:  # the other checks would only repeat it
        return list(adapter.damage)
    found = [*_origin(adapter, model, require_manifest=require_manifest), *_kind(adapter.config)]
    rank = rank_of(adapter)
    if rank > max_rank:
        found.append(f"its rank is {rank}, but the server takes at most {max_rank}: raise lora.maxRank")
    return [*found, *_modules(adapter, model), *_vocabulary(adapter, model)]


def misfits(adapter: Adapter, model: BaseModel) -> list[str]:
    """Return where the matrices of a LoRA adapter do not fit a base model; none for other kinds of adapters."""
    return list(_modules(adapter, model)) if adapter.config.get("peft_type") == "LORA" else []


def strangers(adapter: Adapter, model: BaseModel) -> list[str]:
    """Return what an adapter says of its run and its base model that does not go with a base model."""
    return list(_origin(adapter, model, require_manifest=False))


def _origin(adapter: Adapter, model: BaseModel, *, require_manifest: bool) -> Iterator[str]:
    manifest = adapter.manifest
    if manifest is None:
        if require_manifest:
            yield (
                f"{MANIFEST} is missing, so the run may not have finished: "
                "name the output of a finished run, or set lora.requireManifest to false for adapters of other tools"
            )
        manifest = {}
    elif not is_live(manifest) and (problem := unfinished(manifest)):
        yield problem
    elif manifest.get("adapter") is None:
        yield "its run trained the whole model, not an adapter: serve the output as the model"
    elif changed := manifest["adapter"].get("changed_embeddings"):
        yield f"it changes embeddings ({_shown(set(changed))}), but vLLM ignores those: merge it into its base model"
    base = manifest.get("base_model") or {}
    trained_on = base.get("name_or_path") or adapter.config.get("base_model_name_or_path")
    # A path in the trainer's pod does not tell which model it was.
    if is_hub_name(trained_on) and is_hub_name(model.source):
        if trained_on.lower() != model.source.lower():
            yield f"it was trained on {trained_on}, but the server has {model.source}: serve it with its base model"
        elif base.get("revision") and model.revision and base["revision"] != model.revision:
            yield f"it was trained on revision {base['revision']} of {trained_on}, but the server has {model.revision}"


def is_hub_name(name: object) -> TypeGuard[str]:
    """Return whether a name is that of a model on the Hub, and not a path."""
    return isinstance(name, str) and bool(_HUB_NAME.match(name))


def _kind(config: Mapping[str, Any]) -> Iterator[str]:
    kind = config.get("peft_type")
    if kind != "LORA":
        yield f"its PEFT type is {kind!r}, but vLLM only serves 'LORA'"
        return
    if not isinstance(config.get("r"), int) or config["r"] < 1:
        yield f"its rank r is {config.get('r')!r}: it must be a whole number, 1 or more"
    if config.get("bias", "none") != "none":
        yield f"it was trained with bias={config['bias']!r}, but vLLM only serves bias='none'"
    if config.get("use_dora"):
        yield "it was trained with use_dora, but vLLM does not serve DoRA: merge it into its base model"
    saved = config.get("modules_to_save") or []
    if not is_names(saved):
        yield f"its modules_to_save is {saved!r}, not a list of names"
    elif saved := sorted(set(saved) - _SAVED_MODULES):
        names = ", ".join(saved)
        yield f"it replaces whole modules ({names}), but vLLM does not serve those: merge it into its base model"
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(_CHANGES_BASE):
        yield f"it was trained with init_lora_weights={init!r} on a changed base model: convert it when you save it"
    for name in sorted(set(config) - _READ - _TRAINING - _ORIGIN):
        if config[name]:
            yield f"it was trained with {name}={config[name]!r}, but vLLM ignores that: train it without"


def _modules(adapter: Adapter, model: BaseModel) -> Iterator[str]:
    """Compare each pair of matrices with the weight it is added to."""
    if not any(_LORA.match(name) for name in adapter.tensors):
        yield f"{ADAPTER_WEIGHTS} has no LoRA matrices"
        return
    if not model.tensors:
        return
    weights = {_tail(name.removesuffix(".weight")): shape for name, shape in model.tensors.items()}
    if model.quantized:  # a module has several tensors (qweight, scales, absmax, …) of other shapes
        weights = {_tail(module): () for name in model.tensors for module in _parents(name)}
    missing, wrong = set(), set()
    for name, shape in adapter.tensors.items():
        match = _LORA.match(name)
        if not match:
            continue
        module = _tail(match["module"])
        weight = weights.get(module)
        if weight is None:
            # Experts kept in one tensor have no weight each, and a tied head has none.
            if ".experts." not in module and module != "lm_head":
                missing.add(module)
        elif len(weight) == 2 and match["half"] and len(shape) == 2:
            inner, outer = weight[1], weight[0]
            if (match["half"] == "A" and shape[1] != inner) or (match["half"] == "B" and shape[0] != outer):
                wrong.add(f"{module} is {outer}×{inner} in the base model")
    if missing:
        yield f"the base model has no {_shown(missing)}: the adapter is for another model, or names modules differently"
    if wrong:
        yield f"its matrices do not fit: {_shown(wrong)}"


def _parents(name: str) -> Iterator[str]:
    """Yield the names of all modules that a tensor is in."""
    while name := name.rpartition(".")[0]:
        yield name


def _tail(name: str) -> str:
    """Return a module's name from its layer on: the part before differs between PEFT, the Hub and vLLM."""
    start = re.search(r"(?:^|\.)(layers|h|blocks)\.\d+\.", name)
    return name[start.start(1) :] if start else name.rsplit(".", 1)[-1]


def _shown(names: set[str]) -> str:
    first = sorted(names)[:_SHOWN]
    return ", ".join(first) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _vocabulary(adapter: Adapter, model: BaseModel) -> Iterator[str]:
    if adapter.tokens is not None and model.tokens is not None and adapter.tokens > model.tokens:
        yield (
            f"its tokenizer has {adapter.tokens} tokens, but the base model's has {model.tokens}: "
            "vLLM uses the base model's, which would split the added tokens; merge it into its base model"
        )
