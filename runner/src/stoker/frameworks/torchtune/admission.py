"""What Kubeflow Trainer would refuse of a TrainJob with the command `tune run`, whose recipe it chooses itself. Pure.

Rules of Trainer v2.3.0 (pkg/runtime/framework/plugins/torch/torchtune.go: validateTorchTune). They hold for that
command alone: without it the runtime's own stays, which in Stoker's runtimes is `stoker run` and knows no such limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

COMMAND = ("tune", "run")
# Runtime name → the model that Trainer reads from it (pkg/constants/constants.go: TorchTuneSupportedPretrainedModels).
MODELS: Mapping[str, str] = {
    "torchtune-llama3.2-1b": "llama3_2/1B",
    "torchtune-llama3.2-3b": "llama3_2/3B",
    "torchtune-llama3.3-70b": "llama3_3/70B",
    "torchtune-qwen2.5-1.5b": "qwen2_5/1.5B",
}
_MANY_NODES = ("llama3_3/70B",)
_NO_QLORA = ("qwen2_5/1.5B",)
_QLORA_ON_ONE_DEVICE = ("llama3_2/1B", "llama3_2/3B")
_RUNTIMES_OWN = ("output_dir", "tokenizer.path", "tokenizer.merges_file", "checkpointer.checkpoint_dir")


def model_of(runtime: str) -> str:
    """Return the model that Trainer reads from a runtime's name, e.g. `llama3_2/1B`; empty if the name spells none.

    The first of the name's three parts may be any word.
    """
    parts = runtime.split("-")
    model = f"{parts[1].replace('.', '_')}/{parts[2].upper()}" if len(parts) == 3 else ""
    return model if model in MODELS.values() else ""


def problems_of(
    runtime: str, args: Sequence[str], nodes: int, processes: int | None, gpus: int | None
) -> Iterator[str]:
    """Return why Trainer refuses the command on a runtime, a line each.

    Args:
        runtime: the runtime's name.
        args: the TrainJob's arguments.
        nodes: the TrainJob's number of nodes, 1 where it says nothing.
        processes: the TrainJob's processes per node, None where it says nothing.
        gpus: GPUs of each pod, None if that is not known.
    """
    model = model_of(runtime)
    leave_out = "leave the command to a runtime of another name, e.g. torchtune-distributed"
    if not model:
        yield (
            f"Trainer does not take the command `tune run` for runtime {runtime!r}, whose name spells no model: leave "
            f"the command to the runtime, or choose one of {', '.join(MODELS)}"
        )
    lora, qlora = _lora(args), _qlora(args)
    if nodes > 1 and model not in _MANY_NODES:
        yield f"numNodes is {nodes}, but Trainer takes the command `tune run` on one node only: write 1, or {leave_out}"
    elif nodes > 1 and (lora or qlora):
        yield f"numNodes is {nodes}, but Trainer takes LoRA with `tune run` on one node only: write 1, or {leave_out}"
    if nodes == 1 and qlora and model in _NO_QLORA:
        yield f"Trainer takes no QLoRA with `tune run` for {model}: leave model.quantize_base out, or {leave_out}"
    if nodes == 1 and qlora and model in _QLORA_ON_ONE_DEVICE and processes != 1 and gpus not in (None, 1):
        yield f"Trainer takes QLoRA with `tune run` for {model} on one GPU only: ask for one in resourcesPerNode"
    for word in args:
        if word.partition("=")[0] in _RUNTIMES_OWN:
            yield f"{word} is the runtime's own with `tune run`: leave it out"


def _lora(args: Sequence[str]) -> bool:
    return any("model.lora_attn_modules" in word for word in args)


def _qlora(args: Sequence[str]) -> bool:
    return _on(args, "model.quantize_base") and not _on(args, "model.use_dora")


def _on(args: Sequence[str], key: str) -> bool:
    pairs = (word.partition("=") for word in args)
    return any(key in name and value.strip().lower() == "true" for name, _, value in pairs)
