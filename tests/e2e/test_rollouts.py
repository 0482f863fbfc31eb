"""Asynchronous GRPO in one TrainJob: two pods learn to add while two samplers write the answers."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from e2e.kube import Kube
from e2e.rollouts import WITHOUT_PUBLISHING, SubmitsSums, SumsRun
from e2e.trainjobs import Reader


def rewards_of(run: SumsRun, steps: int, samples: float = 128.0) -> list[float]:
    """Return the mean reward of each step, of a run whose samples were all young enough."""
    lines = run.metrics()
    assert [line["step"] for line in lines] == [*range(1, steps + 1)]
    assert max(line["staleness/max"] for line in lines) <= 4
    assert {sum(line["staleness/histogram"][:5]) for line in lines} == {samples}
    return [line["reward"] for line in lines]


def test_two_trainers_learn_from_two_samplers_and_the_samplers_end_with_them(
    submit_sums: SubmitsSums, reader: Reader, kube: Kube
) -> None:
    run = submit_sums({"max_steps": "24", "save_steps": "24"})
    run.wait_complete(seconds=600)
    assert run.restarts().total == 0
    manifest = run.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["steps"]) == ("finished", 2, 24)

    rewards = rewards_of(run, 24)
    assert fmean(rewards[-4:]) >= fmean(rewards[:2]) + 0.15, rewards

    def ended() -> bool:
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in run.samplers(ended=True))

    kube.until("the samplers to end with the trainers", ended, 120)


@pytest.mark.full
@pytest.mark.learning
def test_lora_says_the_right_sum_after_sixty_steps(
    submit_sums: SubmitsSums, thorough: dict[str, str], reader: Reader
) -> None:
    # Sixteen groups of eight answers, at temperature 1, and at the end the likeliest answer to each of all sums.
    evaluation = {"eval_strategy": "steps", "eval_steps": "60", "per_device_eval_batch_size": "50"}
    run = submit_sums({**thorough, **evaluation, "dataset_test_split": "train", "save_steps": "60"})
    run.wait_complete(seconds=1200)
    rewards = rewards_of(run, 60)
    assert max(fmean(rewards[start : start + 10]) for start in range(51)) >= 0.85, rewards
    judged = run.manifest(reader)["metrics"]
    assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (60, 100, 1.0)


@pytest.mark.full
@pytest.mark.learning
def test_all_weights_say_the_right_sum_after_a_hundred_and_fifty_steps(
    submit_sums: SubmitsSums, thorough: dict[str, str], reader: Reader
) -> None:
    # Half of all sums in each step, eight answers to each.
    size = {"per_device_train_batch_size": "200", "learning_rate": "5e-4", "max_steps": "150", "save_steps": "150"}
    evaluation = {"eval_strategy": "steps", "eval_steps": "150", "per_device_eval_batch_size": "50"}
    run = submit_sums({**thorough, **size, **evaluation, "use_peft": "false", "dataset_test_split": "train"})
    run.wait_complete(seconds=2400)
    rewards = rewards_of(run, 150, 400.0)
    assert max(fmean(rewards[start : start + 10]) for start in range(141)) >= 0.97, rewards
    judged = run.manifest(reader)["metrics"]
    assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (150, 100, 1.0)


@pytest.mark.full
@pytest.mark.learning
def test_without_publishing_the_same_run_gains_nothing(submit_sums: SubmitsSums) -> None:
    # The guard looks at the base model alone, before the first step.
    run = submit_sums({"guard_every": "1000", "save_steps": "60"}, env=WITHOUT_PUBLISHING)
    run.wait_complete(seconds=1200)
    rewards = rewards_of(run, 60)
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
