"""What Kubeflow Trainer makes of a TrainJob with the command `tune run`, and why it would refuse one. Pure.

Trainer chooses the recipe of that command itself. The rules are those of Trainer v2.3.0
(pkg/runtime/framework/plugins/torch: EnforceMLPolicy, getRecipeAndConfig, validateTorchTune). They do not apply to the
default command of Stoker's runtimes, `stoker run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.frameworks.torchtune.values import QUANTIZE

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
_SET_BY_RUNTIME = ("output_dir", "tokenizer.path", "tokenizer.merges_file", "checkpointer.checkpoint_dir")


def model_of(runtime: str) -> str:
    """Return the model that Trainer reads from a runtime's name, such as `llama3_2/1B`; empty if there is none.

    The first of the name's three parts may be any word.
    """
    parts = runtime.split("-")
    model = f"{parts[1].replace('.', '_')}/{parts[2].upper()}" if len(parts) == 3 else ""
    return model if model in MODELS.values() else ""


def rewritten(
    runtime: str, args: Sequence[str], own_command: Sequence[str], nodes: int, processes: int | None, gpus: int
) -> tuple[str, ...]:
    """Return the command that Trainer makes of `tune run`.

    Args:
        runtime: the runtime's name.
        args: the TrainJob's arguments; they follow the command.
        own_command: the runtime's command, of which Trainer keeps four settings.
        nodes: number of pods.
        processes: processes per node; None if the GPUs decide.
        gpus: GPUs of each pod.
    """
    one_device = nodes == 1 and (processes == 1 or gpus == 1)
    recipe = "lora" if (_lora(args) or _qlora(args)) and nodes == 1 else "full"
    config = "qlora" if recipe == "lora" and _qlora(args) else recipe
    if nodes > 1:
        config += "_multinode"
    # In a pod, Trainer writes the address itself in the place of the variables.
    endpoint = "--rdzv_endpoint=$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
    kept = [word for word in own_command if word.partition("=")[0] in _SET_BY_RUNTIME]
    return (
        *COMMAND,
        *([endpoint] if nodes > 1 or (gpus if processes is None else processes) > 1 else []),
        f"{recipe}_finetune_{'single_device' if one_device else 'distributed'}",
        *("--config", f"{model_of(runtime)}_{config}{'_single_device' if one_device else ''}"),
        *kept,
    )


def problems_of(
    runtime: str, args: Sequence[str], nodes: int, processes: int | None, gpus: int | None
) -> Iterator[str]:
    """Yield why Trainer refuses the command on a runtime, one line each.

    Args:
        runtime: the runtime's name.
        args: the TrainJob's arguments.
        nodes: the TrainJob's number of nodes; 1 if it does not say.
        processes: the TrainJob's processes per node; None if it does not say.
        gpus: GPUs of each pod; None if unknown.
    """
    model = model_of(runtime)
    leave_out = "leave out the command and choose another runtime, such as torchtune-distributed"
    if not model:
        yield (
            f"with the command `tune run`, Trainer reads the model from the runtime's name, and {runtime!r} names "
            f"none: leave out the command, or choose one of {', '.join(MODELS)}"
        )
    lora, qlora = _lora(args), _qlora(args)
    if nodes > 1 and model not in _MANY_NODES:
        yield f"numNodes is {nodes}, but Trainer accepts `tune run` on one node only: write 1, or {leave_out}"
    elif nodes > 1 and (lora or qlora):
        yield f"numNodes is {nodes}, but Trainer accepts LoRA with `tune run` on one node only: write 1, or {leave_out}"
    if nodes == 1 and qlora and model in _NO_QLORA:
        yield f"Trainer refuses QLoRA with `tune run` for {model}: leave out {QUANTIZE}, or {leave_out}"
    if nodes == 1 and qlora and model in _QLORA_ON_ONE_DEVICE and processes != 1 and gpus not in (None, 1):
        yield f"Trainer accepts QLoRA with `tune run` for {model} on one GPU only: request one in resourcesPerNode"
    for word in args:
        key = word.partition("=")[0]
        if key in _SET_BY_RUNTIME:
            yield f"Trainer refuses {word} with `tune run`, because the runtime sets {key}: leave it out"


def _lora(args: Sequence[str]) -> bool:
    return any("model.lora_attn_modules" in word for word in args)


def _qlora(args: Sequence[str]) -> bool:
    return _on(args, QUANTIZE) and not _on(args, "model.use_dora")


def _on(args: Sequence[str], key: str) -> bool:
    pairs = (word.partition("=") for word in args)
    return any(key in name and value.strip().lower() == "true" for name, _, value in pairs)
