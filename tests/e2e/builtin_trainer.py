"""Submits a run with Kubeflow's SDK alone, as its users do: `builtin_trainer.py NAME RUNTIME NODES NAMESPACE CLAIM`."""

from __future__ import annotations

import sys

from kubeflow.trainer import BuiltinTrainer, DataType, KubernetesBackendConfig, TorchTuneConfig, TrainerClient
from kubeflow.trainer.options import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    Name,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    RuntimePatch,
    TrainingRuntimeSpecPatch,
)


def main(name: str, runtime: str, nodes: str, namespace: str, claim: str) -> None:
    """Submit a full fine-tuning of one epoch, whose pods see the claim at /inputs."""
    client = TrainerClient(KubernetesBackendConfig(namespace=namespace))
    pod = PodSpecPatch(
        volumes=[{"name": "inputs", "persistentVolumeClaim": {"claimName": claim}}],
        containers=[ContainerPatch(name="node", volume_mounts=[{"name": "inputs", "mountPath": "/inputs"}])],
    )
    job = JobTemplatePatch(spec=JobSpecPatch(template=PodTemplatePatch(spec=pod)))
    jobset = JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=[ReplicatedJobPatch(name="node", template=job)]))
    config = TorchTuneConfig(dtype=DataType.FP32, batch_size=2, epochs=1, num_nodes=int(nodes))
    client.train(
        runtime=client.get_runtime(runtime),
        trainer=BuiltinTrainer(config=config),
        options=[Name(name), RuntimePatch(TrainingRuntimeSpecPatch(template=jobset))],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
