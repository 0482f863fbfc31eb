"""TrainJobs with samplers run by `stoker local`: two nodes, two samplers with real vLLM, and a look at their parts."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from runner.tests.integration.jobs import LocalJob, processes_of
from runner.tests.rollout_history import MOST_GROUPS, Trained, lines_of

from builders import pod_of, replicated_jobs
from stoker.contract.samplers import ADDRESSES
from stoker.rollouts.addresses import Address, addresses_in

ROOT = Path(__file__).parents[3]
RUNTIME = ROOT / "examples/runtimes/trl-grpo-async-cpu.yaml"
# The parts of a sampler, by words in their commands.
SUPERVISOR, VLLM, WATCHER = "sampler", "serve", "watch"

STEPS, STALENESS, GENERATIONS = 30, 2, 4
# Two epochs and a part of a third one.
ROWS = 25

# What a user who writes a reward puts on a volume. Nothing is rewarded while one file beside it is there, and slowly
# while another one is.
_REWARDS = """
import pathlib, time

HOLD, SLOW = (pathlib.Path(__file__).with_name(name) for name in ("hold", "slow"))

def short(completions, **kwargs):
    while HOLD.exists():
        time.sleep(0.05)
    if SLOW.exists():
        time.sleep(1)
    return [-len(completion) / 10 for completion in completions]
"""


class RolloutJob(LocalJob):
    """A TrainJob on the CPU runtime with samplers.

    Args:
        python: the Python of an environment with the trainers.
        vllm: the Python of one with vLLM.
        inputs: folder with `model`.
        folder: where everything of this job lies.

    Attributes:
        steps: steps to train.
    """

    runtime_name = "trl-grpo-async"
    # Two vLLM servers take a minute to start on an idle machine.
    patience = 900.0

    def __init__(self, python: Path, vllm: Path, inputs: Path, folder: Path) -> None:
        super().__init__(python, inputs, folder)
        self.steps = STEPS
        self.vllm = vllm
        self.adapters = self.workspace / "adapters"
        self.hold, self.slow = folder / "hold", folder / "slow"
        (folder / "rollout_rewards.py").write_text(_REWARDS)
        self.prompts = folder / "prompts"
        self.prompts.mkdir()
        rows = [{"prompt": f"{number // 5}+{number % 5}="} for number in range(ROWS)]
        (self.prompts / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        manifest = yaml.safe_load(RUNTIME.read_text())
        (sampler,) = (job for job in replicated_jobs(manifest) if job["name"] == "sampler")
        (server,) = pod_of(sampler)["containers"]
        server["args"] += ["--enforce-eager", "--max-num-seqs=16"]
        server["env"].append({"name": "OMP_NUM_THREADS", "value": "1"})
        self.runtime = folder / "runtime.yaml"
        self.runtime.write_text(yaml.safe_dump(manifest))

    @property
    def usual_args(self) -> list[str]:
        """The trainer's arguments for a run whose files show all that it trains: two groups in a step."""
        short = ["--max_steps", str(self.steps), "--save_steps", "5", "--max_completion_length", "6"]
        # Two nodes.
        batch = ["--per_device_train_batch_size", str(MOST_GROUPS * GENERATIONS // 2)]
        group = ["--num_generations", str(GENERATIONS), "--reward_funcs", "rollout_rewards:short"]
        # Long enough for a sampler to start anew on a busy machine, while nothing is rewarded.
        patient = ["--reward_seconds", str(int(self.patience)), "--fleet_wait_seconds", str(int(self.patience))]
        return [*short, *batch, *group, *patient, "--max_staleness", str(STALENESS), "--guard_every", "4"]

    @property
    def usual_env(self) -> dict[str, str]:
        """The tiny model and its prompts, and where the reward is."""
        return {
            "STOKER_ARG_MODEL_NAME_OR_PATH": f"{self.inputs}/model",
            "STOKER_ARG_DATASET_NAME": str(self.prompts),
            "STOKER_ARG_LEARNING_RATE": "1e-3",
            "PYTHONPATH": str(self.folder),
        }

    @property
    def options(self) -> list[str]:
        """Where vLLM is."""
        return ["--python", f"vllm={self.vllm}"]

    def part(self, sampler: int, part: str) -> int | None:
        """Return the process id of a part of a sampler; None while it does not run."""
        for pid in self.processes(sampler):
            words = _command(pid)
            if part in words and "stoker.rank.lifeline" not in words:
                return pid
        return None

    def processes(self, sampler: int) -> list[int]:
        """Return the ids of all processes of a sampler."""
        return [
            pid
            for pid, environ in processes_of(self.folder).items()
            if environ.get("NCCL_HOSTID") == f"sampler-{sampler}"
        ]

    def of_node(self, node: int) -> list[int]:
        """Return the ids of all processes of a node."""
        return [pid for pid, environ in processes_of(self.folder).items() if environ.get("PET_NODE_RANK") == str(node)]

    def ready(self, sampler: int) -> bool:
        """Return whether a sampler serves the newest version."""
        watcher = self._addresses()[sampler].watcher
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{watcher}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def name_of(self, sampler: int) -> str:
        """Return what the fleet calls a sampler."""
        address = self._addresses()[sampler]
        return f"{address.host}:{address.port}"

    def _addresses(self) -> tuple[Address, ...]:
        told = (environ.get(ADDRESSES) for environ in processes_of(self.folder).values())
        return addresses_in(next(text for text in told if text))

    def steps_done(self) -> int:
        """Return how many steps have metrics."""
        path = self.output / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def replicas(self, since: int) -> set[str]:
        """Return the samplers that wrote what was trained from a step on."""
        whole, _, _ = (self.output / "samples.jsonl").read_text().rpartition("\n")
        shown = [line for line in lines_of(whole) if line["step"] >= since]
        return {sample["replica"] for line in shown for sample in line["samples"]}

    def has_begun(self) -> bool:
        """Return whether there is a checkpoint to go back to, and versions are published."""
        return bool(self.sealed()) and bool(self.versions())

    def versions(self) -> list[Path]:
        """Return the versions that lie in the samplers' folder, whole or half written."""
        return [*self.adapters.glob("*/[0-9]*"), *self.adapters.glob("*/.draft-*")]

    def flaws(self) -> list[str]:
        """Return what is wrong with what the run has trained, over all its attempts."""
        metrics, samples = ((self.output / name).read_text() for name in ("metrics.jsonl", "samples.jsonl"))
        state = json.loads((self.output / f"checkpoint-{self.steps}" / "rollouts.json").read_text())
        wanted = Trained(steps=self.steps, groups=MOST_GROUPS, samples=GENERATIONS, rows=ROWS, staleness=STALENESS)
        return wanted.flaws(metrics, samples, state)

    def codes(self) -> tuple[int, ...]:
        """Return the exit code of each attempt."""
        found = re.findall(r"^\[stoker\] attempt \d+: \d+ nodes ended with (\d+)", self.log, re.MULTILINE)
        return tuple(map(int, found))


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
