"""PPO whose answers vLLM gives, and a reward model that vLLM serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.lab.scripts import printed, seen
from runner.tests.lab.servers import VLLM, server

pytestmark = pytest.mark.full  # needs vLLM's and the trainers' environment on this machine

HERE = Path(__file__).parent
REWARD_MODEL = HERE.parents[1] / "integration" / "reward_model.py"


@pytest.mark.parametrize("weights", ["alone", "shared"])
def test_answers_are_by_the_policy_as_it_is_now(lab_python: Path, tmp_path: Path, weights: str) -> None:
    found = seen(lab_python, HERE / "vllm_rollouts.py", tmp_path, weights, told=VLLM)
    history = found["history"]
    assert max(one["sampler_distance"] for one in history) <= 0.05, history
    # The policy went far from where it began: an engine with the first adapter would be as far from the trainer's.
    assert history[0]["kl"] == 0
    assert history[-1]["kl"] >= 0.5, history
    assert history[-1]["reward"] >= history[0]["reward"] + 0.2, history
    assert found["repeats"]
    assert found["differs"]
    assert found["seeds"]


def test_a_served_reward_model_judges_as_transformers_does(lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judge"
    printed(lab_python, REWARD_MODEL, "write", lab_inputs / "model", folder)
    with server(lab_python, folder, tmp_path, "--dtype=float32") as url:
        found = seen(lab_python, HERE / "served_rewards.py", lab_inputs / "model", folder, f"{url}?model=tiny")
    for name, (one, other) in found.items():
        assert one == pytest.approx(other, abs=1e-3), name
        assert len({round(score, 2) for score in one}) == len(one)
