"""Runs on a real GPU: they train there, share it, lose a peer, run out of its memory, and never train elsewhere.

Each test needs one NVIDIA GPU with bf16 (Ampere or newer) and 8 GiB of its memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob, leftovers

from builders import container, gpu_runtime

pytestmark = pytest.mark.gpu

LONG = ("--max_steps", "600", "--save_steps", "50")
# Of the GPU's memory, what a training process may allocate in the test that runs out of it.
_FEW_BYTES = 64 * 2**20
# In place of the driver's library: it says that it is of CUDA 12.2, which CUDA 13 refuses.
OLD_DRIVER = """
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags) { *found = 0; return 500; }
"""


class GpuJob(LocalJob):
    """A TrainJob on the runtime for NVIDIA GPUs, whose nodes all have this machine's first GPU."""

    def __init__(self, python: Path, inputs: Path, folder: Path) -> None:
        super().__init__(python, inputs, folder)
        runtime = gpu_runtime()
        container(runtime)["resources"]["limits"] = {"nvidia.com/gpu": 1}
        self.runtime = folder / "runtime.yaml"
        self.runtime.write_text(json.dumps(runtime))

    @property
    def usual_env(self) -> dict[str, str]:
        """What every run is told, and which GPU it has."""
        return {**super().usual_env, "CUDA_VISIBLE_DEVICES": "0"}


@pytest.fixture
def job(cuda_python: Path, cuda_inputs: Path, tmp_path: Path) -> Iterator[GpuJob]:
    """A TrainJob to be run locally on a GPU. Fails the test if a process outlives it."""
    yield GpuJob(cuda_python, cuda_inputs, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("method", "dataset"), [("sft", "dataset"), ("dpo", "preferences")])
def test_a_method_trains_on_one_gpu(job: GpuJob, method: str, dataset: str) -> None:
    told = {"STOKER_METHOD": method, "STOKER_ARG_DATASET_NAME": f"{job.inputs}/{dataset}"}
    ended = job.run(env=told)
    assert ended.code == 0, ended.output
    assert re.search(r"computing on nvidia devices: torch \S+ \(CUDA [\d.]+, driver [\w.]+\)", ended.output)
    manifest = job.manifest()
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 20, 1)
    assert manifest["fingerprint"]["method"] == method
    assert manifest["metrics"]["loss"] > 0


def test_two_nodes_share_one_gpu(job: GpuJob) -> None:
    """NCCL allows that for ranks of different hosts, as with time slicing."""
    ended = job.run(nodes=2)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["status"], manifest["world_size"], manifest["nodes"]) == ("finished", 2, 2)


def test_two_ranks_of_one_node_need_two_gpus(job: GpuJob) -> None:
    ended = job.run(processes=2)
    assert ended.code == 78, ended.output
    assert "2 processes per node (PET_NPROC_PER_NODE) need 2 nvidia devices, but this container sees 1" in ended.output


def test_a_lost_peer_restarts_the_job_which_finishes(job: GpuJob) -> None:
    process = job.start(*LONG, nodes=2)
    job.wait_for(job.sealed, process)
    os.kill(job.ranks()[1], signal.SIGKILL)
    ended = job.end(process)
    assert ended.code == 0, ended.output
    assert "rank 1 was killed (SIGKILL)" in ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (600, 2, 1)
    assert manifest["resumed_from"] is not None


def test_a_gpu_out_of_memory_is_named_with_what_to_lower(job: GpuJob) -> None:
    total = subprocess.run(
        [job.python, "-c", "import torch; print(torch.cuda.get_device_properties(0).total_memory)"],
        check=True,
        capture_output=True,
        text=True,
    )
    long_rows = job.folder / "long"
    long_rows.mkdir()
    (long_rows / "train.jsonl").write_text(f"{json.dumps({'text': '1+2=3 ' * 4000})}\n" * 16)
    told = {
        "PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{_FEW_BYTES / int(total.stdout):.6f}",
        "STOKER_ARG_DATASET_NAME": str(long_rows),
    }
    ended = job.run("--max_length", "6000", env=told)
    assert ended.code == 70, ended.output
    assert re.search(
        r"exit 70: .*out of device memory: lower --per_device_train_batch_size or --max_length", ended.output
    )
    assert "CUDA out of memory" in ended.output


def test_a_driver_that_is_too_old_ends_the_run_at_once(job: GpuJob) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (source := job.folder / "driver.c").write_text(OLD_DRIVER)
    (libraries := job.folder / "libraries").mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", libraries / "libcuda.so.1", source], check=True)
    ended = job.run("--bf16", "false", env={"LD_LIBRARY_PATH": str(libraries)})
    assert ended.code == 78, ended.output
    assert "The NVIDIA driver on your system is too old (found version 12020)" in ended.output
    assert "attempt 1" not in ended.output


def test_torch_without_cuda_ends_the_run_at_once(trainer_python: Path, cuda_inputs: Path, tmp_path: Path) -> None:
    ended = GpuJob(trainer_python, cuda_inputs, tmp_path).run("--bf16", "false")
    assert ended.code == 78, ended.output
    assert re.search(r"torch \S+ \(driver [\w.]+\) is built without CUDA, but the runtime is for nvidia", ended.output)
    assert "attempt 1" not in ended.output


def test_a_trainer_that_chooses_the_cpu_ends_the_run_at_once(job: GpuJob) -> None:
    ended = job.run("--bf16", "false", env={"ACCELERATE_USE_CPU": "true"})
    assert ended.code == 78, ended.output
    assert "the trainer computes on cpu, but the runtime is for nvidia" in ended.output
    assert "attempt 1" not in ended.output


def test_doctor_names_driver_and_cuda(cuda_python: Path, tmp_path: Path) -> None:
    told = {"STOKER_RUN_ID": "1", "STOKER_ACCELERATOR": "nvidia", "STOKER_WORKSPACE": str(tmp_path)}
    done = subprocess.run(
        [cuda_python, "-m", "stoker", "doctor"],
        env={**os.environ, **told, "CUDA_VISIBLE_DEVICES": "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    devices = r"^ok    devices +torch \S+ \(CUDA [\d.]+, driver [\w.]+\) computes on 1$"
    assert re.search(devices, done.stdout, re.MULTILINE), done.stdout
