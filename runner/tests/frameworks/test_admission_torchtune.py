"""What Trainer would refuse of `tune run` is told before, rule by rule of its webhook."""

from __future__ import annotations

from typing import Any

import pytest

from builders import RUNTIME, trainjob
from stoker.cluster.admission import admission_of
from stoker.frameworks.torchtune.admission import MODELS, model_of

LORA = "model.lora_attn_modules=[q_proj]"
QLORA = "model.quantize_base=True"


def problems(runtime: str, *args: str, **trainer: Any) -> str:
    job = trainjob(runtime=runtime, command=["tune", "run"], args=list(args), **trainer)
    return "\n".join(admission_of(job, RUNTIME).problems)


def gpus(count: float) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": count}}


def test_a_runtimes_name_tells_the_model() -> None:
    assert {name: model_of(name) for name in MODELS} == MODELS
    # Trainer does not look at the first part.
    assert model_of("mine-qwen2.5-1.5b") == "qwen2_5/1.5B"
    assert [model_of(name) for name in ("torchtune-distributed", "torchtune-llama3.2", "torchtune-qwen3-1b", "")] == [
        *("", "", "", "")
    ]


@pytest.mark.parametrize("name", MODELS)
def test_what_trainer_takes(name: str) -> None:
    assert problems(name, "epochs=1", "dtype=bf16") == ""
    assert problems(name, LORA) == ""
    # DoRA on a quantized model is no QLoRA to Trainer.
    assert problems(name, LORA, QLORA, "model.use_dora=true", resourcesPerNode=gpus(2)) == ""


@pytest.mark.parametrize(
    ("runtime", "args", "trainer", "message"),
    [
        ("torchtune-distributed", [], {}, "'torchtune-distributed' names none: leave out the command, or choose"),
        (
            "torchtune-llama3.2-1b",
            [],
            {"numNodes": 2},
            "numNodes is 2, but Trainer accepts `tune run` on one node only",
        ),
        ("torchtune-llama3.3-70b", [LORA], {"numNodes": 2}, "numNodes is 2, but Trainer accepts LoRA"),
        ("torchtune-llama3.3-70b", [QLORA], {"numNodes": 2}, "numNodes is 2, but Trainer accepts LoRA"),
        ("torchtune-qwen2.5-1.5b", [LORA, QLORA], {}, "Trainer refuses QLoRA with `tune run` for qwen2_5/1.5B"),
        ("torchtune-llama3.2-1b", [QLORA], {"resourcesPerNode": gpus(2)}, "on one GPU only"),
        ("torchtune-llama3.2-1b", [QLORA], {"resourcesPerNode": gpus(2.0)}, "on one GPU only"),
        ("torchtune-llama3.2-1b", [], {"numNodes": 2.0}, "numNodes is 2, but Trainer accepts"),
        ("torchtune-llama3.2-3b", [QLORA], {"resourcesPerNode": {"limits": {"cpu": 2}}}, "on one GPU only"),
        ("torchtune-llama3.2-1b", ["output_dir=/x"], {}, "Trainer refuses output_dir=/x with `tune run`"),
        ("torchtune-llama3.2-1b", ["tokenizer.path=/x"], {}, "because the runtime sets tokenizer.path: leave it out"),
    ],
)
def test_what_trainer_refuses(runtime: str, args: list[str], trainer: dict[str, Any], message: str) -> None:
    assert message in problems(runtime, *args, **trainer)


def test_many_nodes_qlora_on_one_device_and_another_command_are_taken() -> None:
    assert problems("torchtune-llama3.3-70b", numNodes=2) == ""
    assert problems("torchtune-llama3.2-1b", QLORA, resourcesPerNode=gpus(1)) == ""
    assert problems("torchtune-llama3.2-1b", QLORA, resourcesPerNode=gpus(2), numProcPerNode=1) == ""
    job = trainjob(runtime="own", command=["tune", "run", "x"], numNodes=2)
    assert admission_of(job, RUNTIME).problems == ()
