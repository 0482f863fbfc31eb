"""A user's program: submits a run by the Kubeflow SDK, waits for it, and prints as JSON what the SDK says of it.

Args on the command line: the namespace, the TrainJob's name, the claim with model and data.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kubeflow import trainer
from kubeflow.trainer import options

from stoker.backends import TorchTuneConfig, TRLConfig, TRLSFTConfig
from stoker.submit import sdk

SFT = TRLConfig(
    method=TRLSFTConfig(max_length=64),
    model_name_or_path="/inputs/model",
    dataset_name="/inputs/dataset",
    per_device_train_batch_size=8,
    use_peft=True,
    num_nodes=2,
    extra_args={"max_steps": 4, "logging_steps": 1, "save_steps": 2},
)


def mounted(claim: str) -> Any:
    """Return the SDK's option that mounts a claim at /inputs."""
    container = options.ContainerPatch(name="node", volume_mounts=[{"name": "inputs", "mountPath": "/inputs"}])
    volume = {"name": "inputs", "persistentVolumeClaim": {"claimName": claim}}
    pod = options.PodTemplatePatch(spec=options.PodSpecPatch(volumes=[volume], containers=[container]))
    job = options.JobTemplatePatch(spec=options.JobSpecPatch(template=pod))
    jobset = options.JobSetSpecPatch(replicated_jobs=[options.ReplicatedJobPatch(name="node", template=job)])
    runtime = options.TrainingRuntimeSpecPatch(template=options.JobSetTemplatePatch(spec=jobset))
    return options.RuntimePatch(training_runtime_spec=runtime)


def refused(client: Any) -> str:
    """Return why a config is not submitted to a runtime of another framework."""
    try:
        sdk.train(TorchTuneConfig(epochs=1), client, runtime="trl-distributed")
    except ValueError as error:
        return str(error)
    return ""


def main(namespace: str, name: str, claim: str) -> None:
    """Submit, wait, and print."""
    client = trainer.TrainerClient(trainer.KubernetesBackendConfig(namespace=namespace))
    runtimes = {runtime.name: runtime.trainer.framework for runtime in client.list_runtimes()}
    submitted = client.train(**SFT.sdk(client, name=name, options=[mounted(claim)]))
    job = client.wait_for_job_status(submitted, timeout=300)
    said = {
        "runtimes": runtimes,
        "runtime": client.get_runtime("trl-distributed").trainer.framework,
        "name": submitted,
        "status": job.status,
        "nodes": job.num_nodes,
        "on": job.runtime.name,
        "steps": sorted(step.name for step in job.steps if step.name.startswith("node")),
        "log": list(client.get_job_logs(submitted)),
        "refused": refused(client),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
