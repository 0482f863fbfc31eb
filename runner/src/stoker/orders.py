"""What a training process needs to know of the plan, handed over as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.exits import ExitCode, RunError
from stoker.files import read_json, write_json
from stoker.frameworks import get_framework
from stoker.hook import ORDERS
from stoker.plan import Plan


@dataclass(frozen=True, slots=True)
class Orders:
    """The part of a plan that a training process carries out.

    Attributes:
        module: the trainer's Python module.
        argv: its command line.
        training: the module of :mod:`stoker.training` that runs it.
        packages: distributions whose versions are recorded.
        framework: the framework's name.
        method: the training method.
        world_size: processes the run must have.
        plan_hash: digest all ranks must share.
        image_version: image tag all ranks must share.
        job_id: id of the job over all its attempts.
        run_id: id of this attempt.
        attempt: restarts before this attempt.
        resume: `auto`, `never` or `require`.
        workspace: folder shared by all pods.
        output_dir: folder of checkpoints and model.
        base_model: the model that is trained, as the manifest names it.
        fingerprint: what a checkpoint must share to be resumed from.
        shared: the run's folder in the workspace.
        local: the pod's own folder.
        rendezvous_seconds: how long to wait for the other ranks.
    """

    module: str
    argv: list[str]
    training: str
    packages: Sequence[str]
    framework: str
    method: str
    world_size: int
    plan_hash: str
    image_version: str
    job_id: str
    run_id: str
    attempt: int
    resume: str
    workspace: str
    output_dir: str
    base_model: str | None
    fingerprint: Mapping[str, Any]
    shared: str
    local: str
    rendezvous_seconds: int

    @classmethod
    def from_plan(cls, plan: Plan, shared: Path, local: Path) -> Orders:
        """Take from a plan what its processes need."""
        framework = get_framework(plan.framework)
        return cls(
            training=framework.training,
            packages=framework.packages,
            module=plan.module,
            argv=plan.trainer_argv,
            framework=plan.framework,
            method=plan.method,
            world_size=plan.world.size,
            plan_hash=plan.hash,
            image_version=plan.image_version,
            job_id=plan.job_id,
            run_id=plan.run_id,
            attempt=plan.attempt,
            resume=plan.resume,
            workspace=plan.workspace,
            output_dir=plan.output_dir,
            base_model=plan.base_model[0],
            fingerprint=plan.fingerprint,
            shared=str(shared),
            local=str(local),
            rendezvous_seconds=plan.rendezvous_seconds,
        )

    def write(self, path: Path) -> None:
        """Write the orders where the processes will read them."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls) -> Orders:
        """Read this process's orders.

        Raises:
            RunError: there are none; the module was not started by `stoker run` (64).
        """
        data = read_json(Path(os.environ.get(ORDERS, "")))
        if data is None:
            raise RunError(ExitCode.USAGE, f"{ORDERS} names no readable file: start training with `stoker run`")
        return cls(**data)
