"""A whole job on this machine: the model and the data are fetched, each program runs in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from runner.tests.integration.jobs import PATIENCE_SECONDS, LocalJob, leftovers

import stoker
from builders import trainjob, with_initializers


@pytest.fixture
def bare_job(inputs: Path, tmp_path: Path) -> Iterator[LocalJob]:
    """A job of which only `stoker local` itself runs in this Python, which has no trainer."""
    yield LocalJob(Path(sys.executable), inputs, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.full
def test_initializers_and_nodes_run_in_environments_of_their_own(
    bare_job: LocalJob, trainer_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(with_initializers()))
    args = ["--max_steps", "2", "--use_peft", "--lora_target_modules", "all-linear"]
    asked = {kind: {"storageUri": f"file://{bare_job.inputs}/{kind}"} for kind in ("model", "dataset")}
    manifest = trainjob(spec={"initializer": asked}, numNodes=2, args=args)
    (tmp_path / "trainjob.yaml").write_text(json.dumps(manifest))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "stoker", "local", "trainjob.yaml", "--runtime", "runtime.yaml"),
            *("--workspace", str(bare_job.workspace), "--python", f"trl={trainer_python}"),
        ],
        cwd=tmp_path,
        env={**bare_job.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1])},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    for kind in ("model", "dataset"):
        said = f"[{kind}-initializer] [stoker] {bare_job.workspace}/{kind} is there: file://{bare_job.inputs}/{kind}"
        assert said in done.stdout.splitlines()
    manifest = bare_job.manifest()
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 2, 2)
    assert manifest["base_model"]["name_or_path"] == f"{bare_job.workspace}/model"


def test_no_trainer_outlives_a_local_run_that_is_killed(job: LocalJob) -> None:
    process = job.start("--max_steps", "100000", nodes=2)
    job.wait_for(lambda: len(job.ranks()) == 2, process)
    process.kill()
    process.wait()
    # One runner, one launcher and one rank for each node, with what they started.
    assert leftovers(job.folder) == []
