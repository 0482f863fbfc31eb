"""Asynchronous GRPO in one TrainJob: two pods learn to add while two samplers write the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import sqrt
from statistics import fmean
from typing import Any

import pytest

from e2e.kube import Kube, condition
from e2e.rollouts import HOLDING, WITHOUT_PUBLISHING, SubmitsSums, SumsRun, best
from e2e.trainjobs import Reader

# The reward of a model that hesitates, and by how much the mean of eight answers to one sum differs from sum to sum.
LEAST, MOST = 0.4, 0.55
SPREAD = 0.2
# Sixteen groups of eight answers, at temperature 1, and at the end the likeliest answer to each of all sums.
SIXTY_STEPS = {
    "save_steps": "60", "eval_strategy": "steps", "eval_steps": "60", "per_device_eval_batch_size": "50",
    "dataset_test_split": "train",
}  # fmt: skip


def steps_of(run: SumsRun, steps: int, samples: int = 128) -> list[dict[str, Any]]:
    """Return what a run wrote of each step: samples that were young enough, and of each group once, none left out."""
    lines = run.metrics()
    assert [line["step"] for line in lines] == [*range(1, steps + 1)]
    assert max(line["staleness/max"] for line in lines) <= 4
    assert {sum(line["staleness/histogram"][:5]) for line in lines} == {float(samples)}
    state = json.loads(run.text(f"output/checkpoint-{steps}/rollouts.json"))
    # Ordinals of groups: those below the frontier, and a few above it.
    trained = [*range(state["frontier"]), *state["above"]]
    assert len({*trained}) == len(trained) == steps * samples // 8
    return lines


def rewards_of(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the mean reward of each step."""
    return [line["reward"] for line in lines]


def hesitates(lines: Sequence[Mapping[str, Any]], samples: int = 128) -> bool:
    """Return whether the base model of a run hesitates, by the first steps, of which it wrote every sample."""
    own = [
        line["reward"] for version, line in enumerate(lines[:5]) if line["staleness/histogram"][version:] == [samples]
    ]
    return is_hesitant(fmean(own), len(own) * samples // 8)


def is_hesitant(reward: float, groups: int) -> bool:
    """Return whether the mean reward of so many groups may be that of a model that hesitates."""
    chance = 3 * SPREAD / sqrt(groups)
    return LEAST - chance <= reward <= MOST + chance


def test_two_trainers_learn_from_two_samplers_and_the_samplers_end_with_them(
    submit_sums: SubmitsSums, reader: Reader, kube: Kube, measured: Callable[[str], None]
) -> None:
    run = submit_sums({"max_steps": "24", "save_steps": "24", **HOLDING})
    run.hold(1)  # it goes on with one sampler, and may be over before a slow node has started the other
    began = run.ready_since(count=4)
    run.release()
    done = run.wait_complete(seconds=600)
    completed = condition(done, "Complete") or {}
    seconds = (datetime.fromisoformat(completed["lastTransitionTime"]) - began).total_seconds()
    measured(f"24 steps of asynchronous GRPO, from pods Ready to Complete: {seconds:.0f} s (goal: 120 s)")
    assert run.restarts().total == 0
    manifest = run.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["steps"]) == ("finished", 2, 24)

    lines = steps_of(run, 24)
    rewards = rewards_of(lines)
    assert hesitates(lines), rewards
    assert fmean(rewards[-4:]) >= fmean(rewards[:2]) + 0.15, rewards
    assert max(line["samplers/ready"] for line in lines) == 2
    # The status of the TrainJob says the same of the last step.
    shown = run.shown()
    assert shown["step"] == 24
    for name in ("reward", "staleness/mean", "staleness/max", "samplers/ready", "rollout/wait_seconds"):
        assert shown[name] == pytest.approx(lines[-1][name], rel=1e-4), name

    def ended() -> bool:
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in run.samplers(ended=True))

    kube.until("the samplers to end with the trainers", ended, 300)


@pytest.mark.full
@pytest.mark.learning
def test_lora_says_the_right_sum_after_sixty_steps(
    submit_sums: SubmitsSums, thorough: dict[str, str], reader: Reader, measured: Callable[[str], None]
) -> None:
    run = submit_sums({**thorough, **SIXTY_STEPS})
    run.wait_complete(seconds=1200)
    lines = steps_of(run, 60)
    rewards = rewards_of(lines)
    assert hesitates(lines), rewards
    measured(f"LoRA, 60 steps: ten in a row have a mean reward of {best(rewards):.3f}")
    assert best(rewards) >= 0.85, rewards
    judged = run.manifest(reader)["metrics"]
    assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (60, 100, 1.0)


@pytest.mark.full
@pytest.mark.learning
def test_all_weights_say_the_right_sum_after_a_hundred_and_fifty_steps(
    submit_sums: SubmitsSums, thorough: dict[str, str], reader: Reader, measured: Callable[[str], None]
) -> None:
    # Half of all sums in each step, eight answers to each.
    size = {"per_device_train_batch_size": "200", "learning_rate": "5e-4", "max_steps": "150", "save_steps": "150"}
    run = submit_sums({**thorough, **SIXTY_STEPS, **size, "eval_steps": "150", "use_peft": "false"})
    run.wait_complete(seconds=2400)
    lines = steps_of(run, 150, 400)
    rewards = rewards_of(lines)
    assert hesitates(lines, 400), rewards
    measured(f"all weights, 150 steps: ten in a row have a mean reward of {best(rewards):.3f}")
    assert best(rewards) >= 0.97, rewards
    judged = run.manifest(reader)["metrics"]
    assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (150, 100, 1.0)


@pytest.mark.full
@pytest.mark.learning
def test_without_publishing_the_same_run_gains_nothing(submit_sums: SubmitsSums, thorough: dict[str, str]) -> None:
    # The run with LoRA above. The guard looks at the base model alone, before the first step.
    run = submit_sums({**thorough, **SIXTY_STEPS, "guard_every": "1000"}, env=WITHOUT_PUBLISHING)
    run.wait_complete(seconds=1200)
    rewards = rewards_of(steps_of(run, 60))
    assert is_hesitant(fmean(rewards), 60 * 16), rewards
    # Two means of 1,280 answers differ by chance, by 0.02.
    assert abs(fmean(rewards[-10:]) - fmean(rewards[:10])) < 0.06, rewards


@pytest.mark.full
def test_without_publishing_the_guard_ends_the_run_and_says_what_is_served(submit_sums: SubmitsSums) -> None:
    run = submit_sums({"save_steps": "60"}, env=WITHOUT_PUBLISHING)
    run.wait_failed(seconds=900)
    error = json.loads(run.text("output/last-error.json"))
    # The restart finds the same.
    assert (error["code"], error["attempt"]) == (78, 1), error
    assert "crashed twice" in error["message"]
    assert "serves the base model, without an adapter" in error["message"]
