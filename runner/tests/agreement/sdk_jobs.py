"""TrainJobs that the Kubeflow SDK itself makes of what kubeflow/trainer's notebooks give it (at 8c0f5059b)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

# Notebook below `examples/`, GPUs of our runtime, and the arguments of CustomTrainer beside its function.
_FUNCTIONS: tuple[tuple[str, int, Manifest], ...] = (
    ("pytorch/image-classification/mnist.ipynb: locally", 0, {"packages_to_install": ["torch", "torchvision"]}),
    (
        "pytorch/image-classification/mnist.ipynb",
        0,
        {
            "func_args": {"num_epochs": 3, "batch_size": 64, "lr": 0.01, "momentum": 0.9},
            "num_nodes": 3,
            "resources_per_node": {"cpu": 3, "memory": "16Gi"},
        },
    ),
    (
        "pytorch/question-answering/fine-tune-distilbert.ipynb",
        0,
        {
            "func_args": {"model_name": "distilbert", "bucket": None},
            "num_nodes": 1,
            "packages_to_install": ["datasets", "transformers[torch]", "cloudpathlib[all]"],
            "resources_per_node": {"cpu": "2", "memory": "12Gi"},
        },
    ),
    (
        "pytorch/data-cache/fine-tune-with-cache.ipynb",
        1,
        {
            "num_nodes": 8,
            "resources_per_node": {"cpu": 3, "memory": "8Gi", "nvidia.com/gpu": 1},
            "packages_to_install": ["pyarrow==19.0.0", "transformers==4.45.2"],
        },
    ),
    (
        "pytorch/audio-classification/audio-classification.ipynb",
        0,
        {"num_nodes": 1, "resources_per_node": {"cpu": "1", "memory": "2Gi"}, "packages_to_install": ["torchaudio"]},
    ),
    (
        "deepspeed/text-summarization/T5-Fine-Tuning.ipynb",
        4,
        {"packages_to_install": ["boto3"], "num_nodes": 2, "resources_per_node": {"gpu": 4}},
    ),
    (
        "megatron/tensor-parallelism/megatron-core-gpt-tp.ipynb",
        1,
        {
            "num_nodes": 2,
            "resources_per_node": {"memory": "16Gi", "gpu": 1},
            "packages_to_install": ["megatron-core", "pybind11"],
            "env": {"TP_SIZE": "2"},
        },
    ),
    (
        "mlx/language-modeling/fine-tune-llama.ipynb",
        1,
        {"func_args": {"num_samples": "100", "batch_size": "8"}, "num_nodes": 4, "resources_per_node": {"gpu": 1}},
    ),
    (
        "jax/tpu_smoke_test.ipynb",
        0,
        {
            "image": "registry.example.com/jax-ai-image/tpu:latest",
            "num_nodes": 1,
            "env": {"JAX_PLATFORMS": "tpu,cpu", "ENABLE_PJRT_COMPATIBILITY": "true"},
        },
    ),
)
# Notebook or document, runtime, GPUs of its pods, and the arguments of TorchTuneConfig.
_CONFIGS: tuple[tuple[str, str, int, Manifest], ...] = (
    (
        "torchtune/llama3_2/alpaca-trainjob-yaml.ipynb",
        "torchtune-llama3.2-1b",
        1,
        {"split": "train[:1000]", "resources_per_node": {"memory": "200G", "gpu": 1}},
    ),
    (
        "torchtune/qwen2_5/qwen2.5-1.5B-with-alpaca.ipynb",
        "torchtune-qwen2.5-1.5b",
        2,
        {"split": "train[:1000]", "resources_per_node": {"memory": "128G", "gpu": 2}},
    ),
    ("docs/user-guides/builtin-trainer/torchtune.md", "torchtune-llama3.2-1b", 2, {}),
    (
        "proposals/2401-llm-trainer-v2",
        "torchtune-llama3.2-1b",
        1,
        {"batch_size": 1, "epochs": 1, "num_nodes": 5, "peft": {"lora_rank": 64, "lora_alpha": 128}},
    ),
    (
        "proposals/2401-llm-trainer-v2, on one node",
        "torchtune-llama3.2-3b",
        2,
        {"batch_size": 1, "epochs": 1, "peft": {"lora_rank": 64, "lora_alpha": 128}},
    ),
)


def made_by_the_sdk() -> Iterator[tuple[str, str | None, int, Manifest]]:
    """Yield name, runtime (None for any of TRL), GPUs of a pod, and the TrainJob's spec without runtimeRef."""
    from kubeflow import trainer as kubeflow  # takes seconds
    from kubeflow.trainer.backends.kubernetes import utils
    from kubeflow.trainer.constants import constants

    runtime = _runtime(kubeflow, kubeflow.TrainerType.CUSTOM_TRAINER, "trl", constants.TORCH_COMMAND)
    for name, gpus, told in _FUNCTIONS:
        trainer = kubeflow.CustomTrainer(func=_train, **told)
        made = utils.get_trainer_cr_from_custom_trainer(runtime, trainer)
        yield f"examples/{name}", None, gpus, {"trainer": made.to_dict()}
    for name, runtime_name, gpus, told in _CONFIGS:
        data, peft = kubeflow.TorchTuneInstructDataset(source=kubeflow.DataFormat.PARQUET), None
        told = {**told}
        data.split = told.pop("split", None)
        if "peft" in told:
            peft = kubeflow.LoraConfig(**told.pop("peft"))
        config = kubeflow.TorchTuneConfig(dataset_preprocess_config=data, peft_config=peft, **told)
        runtime = _runtime(kubeflow, kubeflow.TrainerType.BUILTIN_TRAINER, "torchtune", ("tune", "run"))
        fetched = kubeflow.Initializer(
            dataset=kubeflow.HuggingFaceDatasetInitializer(storage_uri="hf://tatsu-lab/alpaca/data")
        )
        made = utils.get_trainer_cr_from_builtin_trainer(runtime, kubeflow.BuiltinTrainer(config=config), fetched)
        yield name, runtime_name, gpus, {"trainer": made.to_dict()}


def _runtime(kubeflow: Any, kind: Any, framework: str, command: tuple[str, ...]) -> Any:
    trainer = kubeflow.RuntimeTrainer(trainer_type=kind, framework=framework, image="registry.example.com/mine:1")
    trainer.set_command(command)
    from kubeflow.trainer.types.types import RuntimeKind

    return kubeflow.Runtime(name="any", trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def _train(**told: str) -> None:
    print("Training complete", told)
