"""The released Kubeflow SDK reads the whole catalogue: one runtime it cannot read fails the list for everybody."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from kubeflow.trainer.backends.kubernetes.backend import KubernetesBackend
from kubeflow.trainer.types import types
from kubeflow_trainer_api.models import TrainerV1alpha1ClusterTrainingRuntimeList

from charts.helm import OWN_IMAGES, TRAINING_RUNTIMES, accelerators, render
from charts.runtimes import runtimes


class Api:
    """What the SDK asks of Kubernetes, answered with what the chart renders."""

    def __init__(self, rendered: list[dict[str, object]]) -> None:
        self.rendered = rendered

    def list_cluster_custom_object(self, *_: object, **__: object) -> SimpleNamespace:
        """Return the rendered runtimes."""
        return SimpleNamespace(get=lambda _seconds: {"items": self.rendered})

    def list_namespaced_custom_object(self, *_: object, **__: object) -> SimpleNamespace:
        """Return no runtimes."""
        return SimpleNamespace(get=lambda _seconds: {"items": []})


@pytest.mark.parametrize("accelerator", accelerators(TRAINING_RUNTIMES))
def test_the_sdk_lists_every_runtime(accelerator: str) -> None:
    rendered = runtimes(render(TRAINING_RUNTIMES, settings=[*OWN_IMAGES, f"accelerator={json.dumps(accelerator)}"]))
    backend = object.__new__(KubernetesBackend)
    backend.namespace = "default"
    backend.custom_api = Api(rendered)
    listed = {runtime.name: runtime for runtime in backend.list_runtimes()}
    assert listed.keys() == {runtime["metadata"]["name"] for runtime in rendered}
    for name, runtime in listed.items():
        builtin = name.startswith("torchtune-")
        wanted = types.TrainerType.BUILTIN_TRAINER if builtin else types.TrainerType.CUSTOM_TRAINER
        assert runtime.trainer.trainer_type is wanted
        assert runtime.trainer.device in {"gpu", "tpu", "cpu"}


def test_the_sdks_own_model_of_a_runtime_loses_nothing() -> None:
    rendered = runtimes(render(TRAINING_RUNTIMES))
    read = TrainerV1alpha1ClusterTrainingRuntimeList.from_dict({"items": rendered})
    assert read is not None
    assert [runtime.metadata.name for runtime in read.items] == [runtime["metadata"]["name"] for runtime in rendered]
