"""Record the manifests of real runs, and checkpoints, to compare later runners with.

`PYTHONPATH=runner/src python -m runner.tests.parity.record_runs --name COMMIT --trl PYTHON --torchtune PYTHON`, where
PYTHON is that of an environment with the runner to record: `images/trl/venv --with-runner` of a checkout of its commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from runner.tests.integration import jobs
from runner.tests.integration.tune_jobs import TuneJob, make_tiny_llama
from runner.tests.parity.runs import RUNS, STOPPED, Run, masked, pack

HERE = Path(__file__).parent


def main() -> None:
    """Run them all, and write what they left to this folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="What to call the record: the commit.")
    parser.add_argument("--trl", type=Path, required=True, help="Python with TRL and the runner.")
    parser.add_argument("--torchtune", type=Path, required=True, help="Python with TorchTune and the runner.")
    given = parser.parse_args()
    # It was for this program: what is recorded is the runner that the environments hold.
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        folder = Path(scratch)
        script = Path(jobs.__file__).with_name("tiny_inputs.py")
        subprocess.run([given.trl, script, folder / "inputs"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        (folder / "llama").mkdir()
        llama = make_tiny_llama(given.torchtune, folder / "llama")

        def ran(name: str, run: Run) -> jobs.LocalJob:
            place = folder / name.replace(" ", "-")
            place.mkdir()
            job = (
                jobs.LocalJob(given.trl, folder / "inputs", place)
                if run.image == "trl"
                else TuneJob(given.torchtune, llama, place)
            )
            ended = run.run(job)
            if ended.code != 0:
                raise SystemExit(f"{name} ended with {ended.code}:\n{ended.output}")
            return job

        for image, (run, step) in STOPPED.items():
            pack(ran(image, run), step, HERE / f"checkpoint-{image}-{given.name}.tar.xz")
        manifests = {name: masked(ran(name, run)) for name, run in RUNS.items()}
    (HERE / f"manifests-{given.name}.json").write_text(json.dumps(manifests, indent=2) + "\n")


if __name__ == "__main__":
    main()
