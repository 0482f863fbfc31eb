"""TrainJobs in the shapes that others use, and their odd relatives; `upstream.py` has the very ones of others."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from builders import RUNTIME, container, gpu_runtime, kept, pod_of, replicated_jobs, variables

Manifest = dict[str, Any]

_FRAMEWORK = "trainer.kubeflow.org/framework"
_PROGRAM = 'pip install wandb && python - <<"E"\nprint("train")\nE'
_LORA = ["--use_peft", "--lora_r", "16", "--lora_alpha", "32", "--lora_target_modules", "q_proj", "v_proj"]
_SHORT = ["--learning_rate", "2.0e-5", "--num_train_epochs", "1", "--per_device_train_batch_size", "2"]
_STEPS = ["--logging_steps", "25", "--eval_strategy", "steps", "--eval_steps", "100"]
_TORCHRUN = ["torchrun", "--nproc_per_node=2", "--nnodes=2", "-m"]


def runtime_of(framework: str, gpus: int, is_kept: bool = True) -> Manifest:
    """Return a runtime with so many GPUs a pod, on a workspace that exists or a new one."""
    runtime = gpu_runtime() if gpus else kept(RUNTIME)
    node = container(runtime)
    if not is_kept:
        jobset, pod = runtime["spec"]["template"]["spec"], pod_of(replicated_jobs(runtime)[0])
        jobset["volumeClaimPolicies"] = deepcopy(RUNTIME["spec"]["template"]["spec"]["volumeClaimPolicies"])
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "initializer"]
    if gpus:
        node["resources"]["limits"]["nvidia.com/gpu"] = gpus
        (shm,) = [volume for volume in pod_of(replicated_jobs(runtime)[0])["volumes"] if volume["name"] == "shm"]
        shm["emptyDir"]["sizeLimit"] = "8Gi"
    if framework == "torchtune":
        labels = replicated_jobs(runtime)[0]["template"]["spec"]["template"]["metadata"]["labels"]
        for one in (runtime["metadata"]["labels"], labels):
            one[_FRAMEWORK] = framework
        node["image"] = node["image"].replace("/trl:", "/torchtune:")
        flags = ("STOKER_METHOD", "STOKER_RUNTIME_DEFAULTS", "STOKER_ARG_")
        node["env"] = [entry for entry in node["env"] if not entry["name"].startswith(flags)]
    return runtime


# Name, method, framework, GPUs of a pod, and spec.trainer.
SHAPES: tuple[tuple[str, str, str, int, Manifest], ...] = (
    ("an empty trainer", "sft", "trl", 0, {}),
    ("SFT as TRL's guide starts it", "sft", "trl", 1, {"args": ["trl.scripts.sft", *_SHORT, *_LORA, *_STEPS]}),
    ("SFT by the command line", "sft", "trl", 1, {"command": ["trl", "sft"], "args": [*_SHORT, "--packing"]}),
    ("DPO by the command line", "dpo", "trl", 2, {"command": ["trl", "dpo"], "args": [*_SHORT, "--beta", "0.1"]}),
    ("KTO by the command line", "kto", "trl", 0, {"command": ["trl", "kto"], "args": [*_SHORT]}),
    ("a reward model", "reward", "trl", 0, {"args": ["trl.scripts.reward", *_SHORT, "--max_length", "2048"]}),
    (
        "GRPO with a reward",
        "grpo",
        "trl",
        1,
        {
            "args": [
                *("trl.scripts.grpo", "--reward_funcs", "think_format_reward", "--num_generations", "8"),
                *("--per_device_train_batch_size", "8", "--max_completion_length", "256"),
            ]
        },
    ),
    ("RLOO without a reward", "rloo", "trl", 0, {"args": ["trl.scripts.rloo"]}),
    ("4-bit LoRA", "sft", "trl", 1, {"args": [*_SHORT, *_LORA, "--load_in_4bit"]}),
    ("4 bits without an adapter", "sft", "trl", 1, {"args": [*_SHORT, "--load_in_4bit"]}),
    ("W&B", "sft", "trl", 0, {"args": ["--report_to", "wandb", "--run_name", "first"]}),
    ("flash attention", "sft", "trl", 1, {"args": ["--attn_implementation", "flash_attention_2"]}),
    ("Liger", "sft", "trl", 1, {"args": ["--use_liger_kernel"]}),
    ("DeepSpeed", "sft", "trl", 2, {"args": ["--deepspeed", "ds.json"]}),
    ("FSDP by flag", "sft", "trl", 2, {"args": ["--fsdp", "full_shard auto_wrap"]}),
    ("FSDP as a switch", "sft", "trl", 2, {"args": ["--fsdp"]}),
    ("sharding", "sft", "trl", 2, {"env": variables({"STOKER_SHARDING": "full"})}),
    ("torchrun as the SDK writes it", "sft", "trl", 2, {"command": ["torchrun", "-m"], "args": ["trl.scripts.sft"]}),
    ("torchrun that counts", "sft", "trl", 2, {"numNodes": 2, "command": [*_TORCHRUN, "trl.scripts.sft"]}),
    ("torchrun that miscounts", "sft", "trl", 2, {"numNodes": 3, "command": [*_TORCHRUN, "trl.scripts.sft"]}),
    ("torchrun on its own", "sft", "trl", 0, {"command": ["torchrun", "--standalone", "-m", "trl.scripts.sft"]}),
    ("torchrun with a script", "sft", "trl", 0, {"numNodes": 2, "command": ["torchrun", "train.py"]}),
    (
        "accelerate",
        "dpo",
        "trl",
        0,
        {"command": ["accelerate", "launch", "--num_processes", "1", "-m", "trl.scripts.dpo"], "args": [*_SHORT]},
    ),
    (
        "accelerate with a file",
        "sft",
        "trl",
        0,
        {"command": ["accelerate", "launch", "--config_file", "zero3.yaml", "-m", "trl.scripts.sft"]},
    ),
    (
        "accelerate that cannot be split",
        "sft",
        "trl",
        0,
        {"numNodes": 2, "command": ["accelerate", "launch", "--num_processes", "3", "-m", "trl.scripts.sft"]},
    ),
    ("trl as a module", "sft", "trl", 0, {"command": ["python", "-m", "trl", "sft"], "args": [*_SHORT]}),
    ("a function of the SDK", "sft", "trl", 1, {"command": ["bash", "-c"], "args": [_PROGRAM], "numNodes": 2}),
    ("help", "sft", "trl", 0, {"command": ["trl", "sft", "--help"]}),
    ("only the plan", "sft", "trl", 0, {"command": ["stoker", "plan"], "args": ["--max_steps", "3"]}),
    ("stoker rn", "sft", "trl", 0, {"command": ["stoker", "rn"]}),
    ("stoker alone", "sft", "trl", 0, {"command": ["stoker"]}),
    ("stoker as a module", "sft", "trl", 0, {"command": ["python", "-m", "stoker", "run"], "args": ["--bf16", "no"]}),
    ("stoker with an option that is none", "sft", "trl", 0, {"command": ["stoker", "--verbose", "run"]}),
    ("a dash too many", "sft", "trl", 0, {"args": ["---max_steps", "3"]}),
    ("a flag of another method", "sft", "trl", 0, {"args": ["--beta", "0.1"]}),
    ("an abbreviated flag", "sft", "trl", 0, {"args": ["--learn", "1e-5"]}),
    ("a model elsewhere", "sft", "trl", 0, {"args": ["--model_name_or_path", "/models/llama"]}),
    ("a model in the workspace that is not there", "sft", "trl", 0, {"args": ["--dataset_name", "a/b"]}),
    ("output elsewhere", "sft", "trl", 0, {"args": ["--output_dir", "/results"]}),
    ("output on scratch", "sft", "trl", 0, {"args": ["--output_dir", "/tmp/results"]}),
    ("output in the workspace by a relative path", "sft", "trl", 0, {"args": ["--output_dir", "results"]}),
    ("resume what is not there", "sft", "trl", 0, {"env": variables({"STOKER_RESUME": "require"})}),
    ("a token", "sft", "trl", 0, {"env": variables({"STOKER_ARG_HUB_TOKEN": "hf_x", "HF_TOKEN": "hf_x"})}),
    ("a variable of another", "sft", "trl", 0, {"env": variables({"WANDB_PROJECT": "p", "STOKER_PROJECT": "p"})}),
    (
        "what the cluster refuses and the pod too",
        "sft",
        "trl",
        0,
        {"env": variables({"PET_NNODES": "2", "STOKER_RESUME": "perhaps"})},
    ),
    ("a reference", "sft", "trl", 0, {"env": variables({"STEPS": "5", "STOKER_ARG_MAX_STEPS": "$(STEPS)"})}),
    ("a reference to nothing", "sft", "trl", 0, {"env": variables({"STOKER_ARG_MAX_STEPS": "$(STEPS)"})}),
    (
        "a reference in args",
        "sft",
        "trl",
        0,
        {"env": variables({"STEPS": "5"}), "args": ["--max_steps", "$(STEPS)", "--run_name", "$$(STEPS)"]},
    ),
    ("TorchTune's recipe", "full", "torchtune", 0, {"args": ["full_finetune_single_device", "--config", "qwen2/0.5B"]}),
    (
        "TorchTune by its own command",
        "lora",
        "torchtune",
        1,
        {
            "command": ["tune", "run", "lora_finetune_single_device"],
            "args": ["--config", "llama3_2/1B_lora_single_device", "epochs=1"],
        },
    ),
    (
        "TorchTune on two nodes",
        "full",
        "torchtune",
        2,
        {"numNodes": 2, "args": ["full_finetune_distributed", "--config", "llama3_2/1B_full", "batch_size=2"]},
    ),
    ("a recipe that TorchTune lacks", "full", "torchtune", 0, {"args": ["full_finetune", "--config", "x"]}),
)
