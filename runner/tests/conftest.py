"""What all tests of the runner share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings
from runner.tests import kubernetes_api
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once
from runner.tests.kubernetes_api import Api
from runner.tests.status_server import StatusServer, serving

from builders import renamed

# How long an example takes depends on what else the machine does.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")


@pytest.fixture(autouse=True)
def _not_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what this shell or make may say to a run (`STOKER_CLUSTER` is make's) away from the tests."""
    for name in [name for name in os.environ if name.startswith(("STOKER_", "PET_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Leaves the handlers of a stop as they were, for tests of what sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def api() -> Api:
    """A cluster with our runtimes for TRL and TorchTune, and somebody's for plain torch."""
    names = {"trl-distributed": "trl", "torchtune-llama3.2-1b": "torchtune", "torch-distributed": "torch"}
    return Api([renamed(name, framework) for name, framework in names.items()])


@pytest.fixture
def client(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The SDK's client of that cluster."""
    from kubeflow import trainer as kubeflow

    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    config = tmp_path / "kubeconfig"
    with kubernetes_api.serving(api) as kubeconfig:
        config.write_text(yaml.safe_dump(kubeconfig))
        yield kubeflow.TrainerClient(kubeflow.KubernetesBackendConfig(config_file=str(config), namespace="ml"))


@pytest.fixture(scope="module")
def status_server() -> Iterator[StatusServer]:
    """Trainer's status server, for the runs of one module."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """The Python of an environment with the image's trainers and this runner; made on the first use."""
    return environment("trl")


@pytest.fixture(scope="session")
def inputs(trainer_python: Path) -> Path:
    """A folder with `model` and `dataset`, made once for all sessions: no test writes to it."""
    return made_once("trl", trainer_python, TINY_INPUTS)
