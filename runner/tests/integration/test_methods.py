"""Every method trains on two nodes to its end, started as its users start it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from runner.tests.integration.jobs import LocalJob

_GENERATING = ("--max_completion_length", "4", "--num_generations", "2")


@dataclass(frozen=True, slots=True)
class Case:
    """How a method is run here.

    Attributes:
        method: its name.
        dataset: the folder of its data.
        args: its own arguments.
        command: another command than the runtime's.
    """

    method: str
    dataset: str
    args: Sequence[str] = ()
    command: Sequence[str] = ()

    @property
    def told(self) -> Mapping[str, str]:
        """The flags all methods share, as variables."""
        return {
            "STOKER_METHOD": self.method,
            "STOKER_ARG_DATASET_NAME": f"{{inputs}}/{self.dataset}",
            "STOKER_ARG_MAX_STEPS": "2",
            "STOKER_ARG_MAX_LENGTH": "32",
            "STOKER_ARG_PER_DEVICE_TRAIN_BATCH_SIZE": "2",
            "STOKER_ARG_LOGGING_STEPS": "1",
        }


CASES = [
    Case("dpo", "preferences"),
    # Named as a script of TRL's, which it is not.
    Case("orpo", "preferences", ["trl.scripts.orpo", "--use_peft", "--lora_r", "4"], ["torchrun", "-m"]),
    Case("kto", "labelled"),
    Case("reward", "preferences"),
    # The first of TRL's own rewards wants conversations.
    Case("grpo", "questions", [*_GENERATING, "--reward_funcs", "think_format_reward", "get_soft_overlong_punishment"]),
    Case("rloo", "prompts", [*_GENERATING, "--reward_funcs", "my_rewards.exact_match"]),
    Case("distillation", "prompts", ["--max_completion_length", "4"]),
]
CHEAPEST = ("orpo",)

# What a user who writes a reward puts on a volume, with its folder in PYTHONPATH.
MY_REWARDS = """
def exact_match(completions, solution, **kwargs):
    return [float(completion == right) for completion, right in zip(completions, solution)]
"""


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.method, marks=() if c.method in CHEAPEST else pytest.mark.full) for c in CASES]
)
def test_a_method_trains_two_nodes_to_the_end(job: LocalJob, case: Case) -> None:
    told = {name: value.replace("{inputs}", str(job.inputs)) for name, value in case.told.items()}
    args = [*case.args]
    if case.method == "distillation":
        args += ["--teacher_model_name_or_path", f"{job.inputs}/model"]
    if case.method in ("grpo", "rloo", "distillation"):
        del told["STOKER_ARG_MAX_LENGTH"]
    (job.folder / "my_rewards.py").write_text(MY_REWARDS)
    told["PYTHONPATH"] = str(job.folder)
    ended = job.run(*args, nodes=2, command=[*case.command] or ["stoker", "run"], env=told)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 2, 2)
    assert manifest["fingerprint"]["method"] == case.method
    assert "loss" in manifest["metrics"]
    assert any(file["path"].endswith(".safetensors") for file in manifest["files"])
