"""`stoker validate` says of real runs what becomes of them: valid where they take their first step, or their exit code.

`runner/tests/agreement` compares many more up to the launch, without trainers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob, leftovers

from stoker.cluster.validate import validate

_LORA = ("--use_peft", "--lora_r", "4", "--lora_target_modules", "all-linear")


@dataclass(frozen=True, slots=True)
class Case:
    """A run on the tiny model.

    Attributes:
        args: its arguments besides those of one step.
        data: the data set in the workspace.
        env: its variables.
        nodes: number of pods.
        processes: number of processes of each.
        command: its command; without one the runtime's.
    """

    args: tuple[str, ...] = ()
    data: str = "dataset"
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 1
    processes: int = 1
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (*self.command, *self.args, *(f"{name}={value}" for name, value in self.env.items()))
        return f"{self.data} on {self.nodes}x{self.processes}: {' '.join(parts)}"


def method(name: str, data: str, *args: str) -> Case:
    """Return a run of another method."""
    return Case((f"trl.scripts.{name}", *args), data)


CASES = (
    Case(),
    Case(_LORA),
    Case(nodes=2),
    Case(processes=2),
    *(Case((*_LORA, *words.split())) for words in ("--use_dora", "--use_rslora", "--lora_dropout 0.1", "--lora_r 0")),
    *(
        Case(tuple(words.split()))
        for words in (
            "--packing --max_length 64",
            "--max_length 16",
            "--padding_free",
            "--padding_free --max_length none",
            "--gradient_checkpointing false",
            "--optim adafactor",
            "--optim paged_adamw_8bit",
            "--optim nonsense",
            "--optim adamw_torch_xla",
            "--optim sgd --optim_args momentum=0.9",
            "--optim sgd --optim_args momentum=x",
            "--optim_args lr",
            "--lr_scheduler_type cosine",
            "--lr_scheduler_type bent",
            "--warmup_steps 0.1",
            "--neftune_noise_alpha 5",
            "--seed 7",
            "--seed x",
            "--learning_rate fast",
            "--learning_rate 0",
            "--max_stps 3",
            "--beta 0.1",
            "--bf16 false",
            "--fp16",
            "--load_in_4bit",
            "--report_to none",
            "--report_to wandb",
            "--attn_implementation eager",
            "--attn_implementation flash_attention_2",
            "--use_liger_kernel",
            "--deepspeed ds.json",
            "--save_strategy epoch",
            "--load_best_model_at_end",
            "--load_best_model_at_end --eval_strategy epoch --save_strategy steps",
            "--eval_strategy steps",
            "--attn_implementation spda",
            "--dataset_text_field words",
            "--dataset_train_split validation",
            "--model_name_or_path /workspace/absent",
            "--dataset_name /workspace/absent",
            "--output_dir /workspace/elsewhere",
            "--model_init_kwargs {",
            "--fsdp",
            '--fsdp_config {"versio":2}',
            '--lr_scheduler_kwargs {"num_cycle":2}',
            "--lr_scheduler_type cosine_with_min_lr",
            '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr":1e-6}',
            "--torch_compile_backend inductr",
            "--pad_to_multiple_of x",
            "--pad_to_multiple_of 8",
            "--dataloader_num_workers 1",
            "--gradient_accumulation_steps 2",
            "--config /workspace/absent.yaml",
        )
    ),
    *(Case(env={"STOKER_RESUME": value}) for value in ("never", "perhaps", "require")),
    *(Case(env={"STOKER_METHOD": value}) for value in ("nonsense", "dpo")),
    Case(env={"STOKER_SHARDING": "full"}, nodes=2),
    Case(env={"STOKER_ARG_FSDP": "true"}),
    Case(env={"STOKER_ARG_FSDP": "true"}, processes=2),
    Case(("--fsdp", "--fsdp_config", "/workspace/absent.json"), processes=2),
    Case(("--fsdp", "--fsdp_config", '{"auto_wrap_policy":"X"}'), processes=2),
    Case(("--fsdp", "--fsdp_config", '{"reshard_after_forward":"full_shard"}'), processes=2),
    method("dpo", "preferences"),
    method("dpo", "preferences", *_LORA),
    method("dpo", "preferences", "--loss_type", "ipo"),
    method("dpo", "preferences", "--loss_type=sigmoid sft"),
    method("orpo", "preferences"),
    method("reward", "preferences"),
    method("kto", "labelled", "--per_device_train_batch_size", "2"),
    method("kto", "dataset"),
    method("sft", "preferences"),
    method("grpo", "questions", "--reward_funcs", "think_format_reward", "--num_generations", "2"),
    method("grpo", "prompts", "--reward_funcs", "think_format_reward", "--num_generations", "2"),
    method("grpo", "prompts"),
    Case(command=("torchrun", "-m", "trl.scripts.sft")),
    Case(command=("trl", "sft")),
    Case(command=("python", "-m", "trl", "sft")),
    Case(command=("accelerate", "launch", "--num_processes", "1", "-m", "trl.scripts.sft")),
    Case(command=("torchrun", "--nnodes=2", "-m", "trl.scripts.sft")),
    Case(command=("stoker", "rn")),
)


class BareJob(LocalJob):
    """A job that is told nothing but by its case."""

    @property
    def usual_args(self) -> list[str]:
        """No arguments."""
        return []


@pytest.fixture
def bare_job(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareJob]:
    """A job to be run locally. Fails the test if a process outlives it."""
    folder = tmp_path_factory.mktemp("run")  # short: workers that load data bind a socket below it
    yield BareJob(trainer_python, inputs, folder)
    assert leftovers(folder) == []


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_ends_as_validate_says(bare_job: BareJob, case: Case) -> None:
    workspace = bare_job.workspace
    for name in ("model", "dataset", "preferences", "labelled", "prompts", "questions"):
        shutil.copytree(bare_job.inputs / name, workspace / name)
    told = {
        "STOKER_ARG_MODEL_NAME_OR_PATH": "/workspace/model",
        "STOKER_ARG_DATASET_NAME": f"/workspace/{case.data}",
        "STOKER_ARG_MAX_STEPS": "1",
        "STOKER_ARG_PER_DEVICE_TRAIN_BATCH_SIZE": "2",
        **case.env,
    }
    ended = bare_job.run(*case.args, nodes=case.nodes, processes=case.processes, command=case.command, env=told)
    (verdict,) = validate(bare_job.folder / "trainjob.yaml", [bare_job.runtime], [f"initializer={workspace}"])
    assert ended.code == verdict.code, f"{verdict}\n{ended.output}"
    assert "Traceback" not in ended.output, ended.output


def test_there_are_at_least_fifty_runs() -> None:
    assert len({str(case) for case in CASES}) == len(CASES) >= 50
