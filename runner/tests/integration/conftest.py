"""Real trainers: the image's environment on this machine with this checkout's runner, and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once
from runner.tests.integration.jobs import LocalJob, leftovers
from runner.tests.integration.tune_jobs import TINY_LLAMA, TuneJob


@pytest.fixture(scope="session")
def tune_python() -> Path:
    """The Python of an environment with TorchTune and this runner; made on the first use."""
    return environment("torchtune")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python of an environment with vLLM; made on the first use."""
    return environment("vllm", runner=False)


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """The Python of an environment as in the image for NVIDIA GPUs, with this runner; made on the first use."""
    return environment("trl", "cuda")


@pytest.fixture(scope="session")
def cuda_inputs(cuda_python: Path) -> Path:
    """What `inputs` has, made by the environment for NVIDIA GPUs."""
    return made_once("trl", cuda_python, TINY_INPUTS)


@pytest.fixture
def job(trainer_python: Path, inputs: Path, tmp_path: Path) -> Iterator[LocalJob]:
    """A TrainJob to be run locally, in folders of its own. Fails the test if a process outlives it."""
    yield LocalJob(trainer_python, inputs, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.fixture(scope="session")
def tiny_llama(tune_python: Path) -> Path:
    """A folder with `model`, `dataset` and `preferences`, made once for all sessions: no test writes to it."""
    return made_once("torchtune", tune_python, TINY_LLAMA)


@pytest.fixture
def tune(tune_python: Path, tiny_llama: Path, tmp_path: Path) -> Iterator[TuneJob]:
    """A TrainJob to be run locally. Fails the test if a process outlives it."""
    yield TuneJob(tune_python, tiny_llama, tmp_path)
    assert leftovers(tmp_path) == []
