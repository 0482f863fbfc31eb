"""Runs on a real GPU: they train there, share it, lose a peer, run out of its memory, and never train elsewhere.

A sampler shares it with its trainer too.

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
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import environment, made_once
from runner.tests.integration.jobs import LocalJob, leftovers

from builders import container, gpu_runtime, pod_of, replicated_jobs, variables

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/async-grpo"
LONG = ("--max_steps", "600", "--save_steps", "50")
# Variables that samplers have on CPUs alone.
_ON_CPUS = ("OMP_NUM_THREADS", "VLLM_CPU_", "VLLM_ENABLE_V1_MULTIPROCESSING")
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: on GPUs, workers load the data, and they bind sockets below TMPDIR."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture
def job(cuda_python: Path, cuda_inputs: Path, folder: Path) -> Iterator[GpuJob]:
    """A TrainJob to be run locally on a GPU. Fails the test if a process outlives it."""
    yield GpuJob(cuda_python, cuda_inputs, folder)
    assert leftovers(folder) == []


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


class SamplingJob(GpuJob):
    """The example of asynchronous GRPO with one sampler, which shares the GPU with the node."""

    runtime_name = "trl-grpo-async"
    patience = 900.0  # vLLM loads its libraries, and compiles kernels for adapters

    def __init__(self, python: Path, vllm: Path, inputs: Path, folder: Path) -> None:
        super().__init__(python, inputs, folder)
        self._vllm = vllm
        self.runtime.write_text(json.dumps(sampling_runtime()))

    @property
    def options(self) -> list[str]:
        """Where vLLM is."""
        return ["--python", f"vllm={self._vllm}"]


def sampling_runtime() -> dict[str, Any]:
    """Return the runtime with samplers for NVIDIA GPUs, with one sampler that leaves most of the memory alone."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "examples/runtimes/trl-grpo-async-cpu.yaml").read_text())
    jobs = {job["name"]: job for job in replicated_jobs(made)}
    jobs["sampler"]["template"]["spec"] |= {"parallelism": 1, "completions": 1}
    for name, (one,) in {name: pod_of(job)["containers"] for name, job in jobs.items()}.items():
        one["resources"]["limits"]["nvidia.com/gpu"] = 1
        told = {"CUDA_VISIBLE_DEVICES": "0"}
        if name == "node":
            told["STOKER_ACCELERATOR"] = "nvidia"
        else:
            # Its own sampler would be compiled with nvcc.
            told["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
            one["args"] += ["--gpu-memory-utilization=0.2", f"--kv-cache-memory-bytes={2**28}", "--max-num-seqs=32"]
        kept = [entry for entry in one["env"] if not entry["name"].startswith(_ON_CPUS) and entry["name"] not in told]
        one["env"] = [*kept, *variables(told)]
    return made


@pytest.fixture
def sampling(cuda_python: Path, folder: Path) -> Iterator[SamplingJob]:
    """A TrainJob with a sampler. Fails the test if a process outlives it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, by which Triton starts vLLM's kernels for adapters")
    inputs = made_once("trl", cuda_python, EXAMPLE / "adding_model.py", "--output")
    yield SamplingJob(cuda_python, environment("lab-cuda", "cuda", runner=False), inputs, folder)
    assert leftovers(folder) == []


def test_a_sampler_shares_the_gpu_with_its_trainer(sampling: SamplingJob) -> None:
    flags = {
        "dtype": "bfloat16", "learning_rate": "3e-3", "per_device_train_batch_size": "64", "num_generations": "8",
        "max_completion_length": "4", "max_staleness": "2", "guard_every": "2", "reward_funcs": "rewards:right_sum",
        "loss_type": "dr_grpo", "scale_rewards": "none", "logging_steps": "1", "save_steps": "20",
    }  # fmt: skip
    ended = sampling.run(*(f"--{name}={value}" for name, value in flags.items()), env={"PYTHONPATH": str(EXAMPLE)})
    assert ended.code == 0, ended.output[-5000:]
    # The node and the server compute there.
    assert re.search(r"computing on nvidia devices: torch \S+ \(CUDA [\d.]+, driver [\w.]+\)", ended.output)
    assert "device_config=cuda" in ended.output
    manifest = sampling.manifest()
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 20, 1)
    steps = sampling.metrics()
    assert [line["step"] for line in steps] == [*range(1, 21)]
    assert {sum(line["staleness/histogram"][:3]) for line in steps} == {64.0}
    assert max(line["publish/version"] for line in steps if "publish/version" in line) >= 18
    # The guard has compared what both compute, and what the sampler serves is what was published.
    assert max(line["guard/error"] for line in steps) < 0.2
    # The model hesitates, and learns.
    rewards = [line["reward"] for line in steps]
    assert 0.2 < rewards[0] < 0.75, rewards
    assert sum(rewards[-5:]) > sum(rewards[:5]), rewards


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
    many_rows = job.folder / "many"
    many_rows.mkdir()
    (many_rows / "train.jsonl").write_text(f"{json.dumps({'text': '1+2=3 ' * 100})}\n" * 1024)
    told = {
        "PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{_FEW_BYTES / int(total.stdout):.6f}",
        "STOKER_ARG_DATASET_NAME": str(many_rows),
    }
    ended = job.run("--per_device_train_batch_size", "1024", env=told)
    # The first crash is tried again, the second at the same step is final.
    assert ended.code == 78, ended.output
    what_to_do = "out of device memory: lower --per_device_train_batch_size or --max_length"
    for code in (70, 78):
        assert re.search(rf"exit {code}: .*{what_to_do}", ended.output), ended.output
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


def test_torch_without_cuda_ends_the_run_at_once(trainer_python: Path, cuda_inputs: Path, folder: Path) -> None:
    ended = GpuJob(trainer_python, cuda_inputs, folder).run("--bf16", "false")
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
