"""Real trainers: the image's environment on this machine with this checkout's runner, and a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from images.builder import cache
from runner.tests.integration.jobs import LocalJob, leftovers
from runner.tests.integration.tune_jobs import TINY_LLAMA, TuneJob

ROOT = Path(__file__).parents[3]
TINY_INPUTS = Path(__file__).with_name("tiny_inputs.py")


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """The Python of an environment with the image's trainers and this runner; made on the first use."""
    return _environment("trl")


@pytest.fixture(scope="session")
def tune_python() -> Path:
    """The Python of an environment with TorchTune and this runner; made on the first use."""
    return _environment("torchtune")


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """The Python of an environment as in the image for NVIDIA GPUs, with this runner; made on the first use."""
    return _environment("trl", "cuda")


def _environment(image: str, accelerator: str = "cpu") -> Path:
    command = [sys.executable, f"images/{image}/venv", "--with-runner", "--accelerator", accelerator]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no environment with {image} could be made: {made.stderr.strip().splitlines()[-1]}")
    return Path(made.stdout.strip()) / "bin" / "python"


@pytest.fixture(scope="session")
def inputs(trainer_python: Path) -> Path:
    """A folder with `model` and `dataset`, made once for all sessions: no test writes to it."""
    return _made_once("trl", trainer_python, TINY_INPUTS)


@pytest.fixture(scope="session")
def cuda_inputs(cuda_python: Path) -> Path:
    """The same, made by the environment for NVIDIA GPUs."""
    return _made_once("trl", cuda_python, TINY_INPUTS)


def _made_once(image: str, python: Path, script: Path) -> Path:
    def build(folder: Path) -> None:
        subprocess.run([python, script, folder], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    key = cache.digest([], [script, ROOT / "images" / image / "requirements"], ROOT)
    return cache.entry(cache.root() / "tests" / f"{image}-{key}", image, build)


@pytest.fixture
def job(trainer_python: Path, inputs: Path, tmp_path: Path) -> Iterator[LocalJob]:
    """A TrainJob to be run locally, in folders of its own. Fails the test if a process outlives it."""
    yield LocalJob(trainer_python, inputs, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.fixture(scope="session")
def tiny_llama(tune_python: Path) -> Path:
    """A folder with `model`, `dataset` and `preferences`, made once for all sessions: no test writes to it."""
    return _made_once("torchtune", tune_python, TINY_LLAMA)


@pytest.fixture
def tune(tune_python: Path, tiny_llama: Path, tmp_path: Path) -> Iterator[TuneJob]:
    """A TrainJob to be run locally. Fails the test if a process outlives it."""
    yield TuneJob(tune_python, tiny_llama, tmp_path)
    assert leftovers(tmp_path) == []
