"""A run that was promised a GPU does not train on the CPU: torch itself is asked, in the process that would train."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from runner.tests.samples import alone, resolve

from stoker.rank.folders import LocalFolder

# The worker, to which torch seems to compute on a GPU; the trainer chooses its device by itself.
_PRETENDING = """
from stoker.rank import accelerator, worker
accelerator.look = lambda name, used: accelerator.Found("2.13.0", "13.0", "580.65", devices=1)
worker.leave(worker.main())
"""


NAMED = {"STOKER_ACCELERATOR": "nvidia"}
# By the device node alone.
GUESSED: dict[str, str] = {}
FLOAT32 = ("--bf16", "false")
FLOAT16 = ("--bf16", "false", "--fp16")


def train(
    python: Path, inputs: Path, folder: Path, promise: dict[str, str], precision: tuple[str, ...], *worker: str
) -> tuple[int, str]:
    """Train in this process where a GPU is promised, whose device node is there.

    transformers refuses bf16 without a GPU, but trains in any other precision.

    Args:
        python: the environment's Python, whose torch is for CPUs.
        inputs: folder with `model` and `dataset`.
        folder: an empty folder.
        promise: the variable that promises the GPU, if one does.
        precision: the flags for it.
        worker: words for Python that start the worker.

    Returns:
        the exit code, and the reason that the rank gives.
    """
    told = {**promise, "STOKER_WORKSPACE": str(folder)}
    paths = {"MODEL_NAME_OR_PATH": inputs / "model", "DATASET_NAME": inputs / "dataset"}
    env = {**told, **{f"STOKER_ARG_{flag}": str(path) for flag, path in paths.items()}}
    plan = resolve(alone(env, ["nvidia0"]), [*precision, "--max_steps", "1"])
    pod = LocalFolder(folder / "pod")
    plan.write(pod.plan)
    done = subprocess.run(
        [python, *worker],
        env={**os.environ, **told, **plan.env, "STOKER_PLAN": str(pod.plan), "HF_HOME": str(folder)},
        check=False,
        capture_output=True,
        text=True,
    )
    (status,) = pod.statuses()
    assert not (folder / "output" / "model.safetensors").exists(), done.stdout + done.stderr
    return done.returncode, str(status.message)


@pytest.mark.parametrize(
    ("promise", "precision", "words", "advice"),
    [
        (NAMED, FLOAT32, "the runtime is for nvidia", ""),
        (NAMED, FLOAT16, "the runtime is for nvidia", ""),
        (GUESSED, FLOAT32, "this node has nvidia devices", "set STOKER_ACCELERATOR=cpu to train on the CPU"),
    ],
    ids=["of a runtime", "of a runtime, in float16", "of a device node"],
)
def test_a_gpu_that_torch_cannot_use_ends_the_run_for_good(
    trainer_python: Path,
    inputs: Path,
    tmp_path: Path,
    promise: dict[str, str],
    precision: tuple[str, ...],
    words: str,
    advice: str,
) -> None:
    code, reason = train(trainer_python, inputs, tmp_path, promise, precision, "-m", "stoker.rank.worker")
    assert code == 78
    # By the torch for CPUs, or by PyPI's where that is all there is.
    told = f"is built without CUDA, but {words}|cannot use the nvidia devices"
    assert re.search(told, reason), reason
    assert advice in reason
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("promise", "words"),
    [(NAMED, "the runtime is for nvidia"), (GUESSED, "this node has nvidia devices")],
    ids=["of a runtime", "of a device node"],
)
def test_a_trainer_that_chooses_the_cpu_ends_the_run_for_good(
    trainer_python: Path, inputs: Path, tmp_path: Path, promise: dict[str, str], words: str
) -> None:
    code, reason = train(trainer_python, inputs, tmp_path, promise, FLOAT32, "-c", _PRETENDING)
    assert code == 78
    assert f"the trainer computes on cpu, but {words}" in reason
