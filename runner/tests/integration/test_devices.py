"""A run that was promised a GPU does not train on the CPU: torch itself is asked, in the process that would train."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from runner.tests.samples import alone, resolve

from stoker.rank.folders import LocalFolder


def test_a_gpu_that_torch_cannot_use_ends_the_run_for_good(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    """The container has the device node of a GPU, as where the driver is too old; this environment's torch has no CUDA.

    transformers refuses bf16 without a GPU, but trains in any other precision.
    """
    told = {"STOKER_ACCELERATOR": "nvidia", "STOKER_WORKSPACE": str(tmp_path)}
    paths = {"MODEL_NAME_OR_PATH": inputs / "model", "DATASET_NAME": inputs / "dataset"}
    env = {**told, **{f"STOKER_ARG_{flag}": str(path) for flag, path in paths.items()}}
    plan = resolve(alone(env, ["nvidia0"]), ["--bf16", "false", "--max_steps", "1"])
    plan.write(tmp_path / "pod" / "plan.json")
    done = subprocess.run(
        [trainer_python, "-m", "stoker.rank.worker"],
        env={**os.environ, **plan.env, "STOKER_PLAN": str(tmp_path / "pod" / "plan.json"), "HF_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78, done.stdout + done.stderr
    (status,) = LocalFolder(tmp_path / "pod").statuses()
    assert "is built without CUDA, but the runtime is for nvidia" in str(status.message)
    assert not Path(plan.output_dir).exists()
