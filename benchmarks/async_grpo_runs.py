"""One training run of benchmarks/async_grpo.py on samplers that are there: ours, or TRL's own asynchronous trainer."""

from __future__ import annotations

import ast
import json
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.async_grpo_samplers import Idle, Samplers
from benchmarks.jobs import Run, run_job

HERE = Path(__file__).resolve().parent
# Of both trainers. The learning rate is the example's.
LEARNING_RATE, RANK, TOKENS = "3e-3", 16, 4
# The steps whose mean is a run's reward.
_LAST = 10
# Seconds that TRL's trainer may be silent at its end: it waits 20 for its worker before it kills it.
_THEIR_END = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run trains.

    Attributes:
        steps: optimizer steps.
        groups: prompts of a step.
        samples: answers to each.
        staleness: the most steps between a policy and the step that trains its samples.
    """

    steps: int
    groups: int
    samples: int
    staleness: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What was measured of a run; None where it hung or failed.

    Attributes:
        run: how it ended.
        seconds: of the training, from before the first step to the end of the last.
        between: seconds from the end of the first step to the end of the last.
        step: median seconds of a step.
        reward: mean of the last steps.
        waited: share of the time in which the trainer waited for a batch.
        idle: share of the time in which no sampler had a request.
        depth: the depth of most steps of the second half.
        staleness: the largest.
        dropped: answers that samplers completed, less those that are trained or were in flight at the end.
        spread: seconds from each version's write until the samplers served it.
        tokens: trained, per second.
        curve: seconds from before the first step to the end of each, and its reward.
        ready: the fewest samplers that were ready in a step.
        held: share of the time in which nothing was being written or judged, because the trainer held it up.
    """

    run: Run
    seconds: float | None = None
    between: float | None = None
    step: float | None = None
    reward: float | None = None
    waited: float | None = None
    idle: float | None = None
    depth: int | None = None
    staleness: int | None = None
    dropped: int | None = None
    spread: tuple[float, ...] = ()
    tokens: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    ready: int | None = None
    held: float | None = None

    def reached(self, reward: float) -> float | None:
        """Return the seconds until the mean of its last steps was a reward; None if it never was."""
        for end in range(_LAST, len(self.curve) + 1):
            if statistics.fmean(one for _, one in self.curve[end - _LAST : end]) >= reward:
                return self.curve[end - 1][0]
        return None

    def __str__(self) -> str:
        """Say what it took."""
        if self.seconds is None:
            return str(self.run)
        depth = "" if self.depth is None else f", depth {self.depth}"
        return f"{self.seconds:.1f} s, reward {self.reward:.2f}, waited {share(self.waited)} of it{depth}"


def share(value: float | None) -> str:
    """Return a share as text."""
    return "unknown" if value is None else f"{100 * value:.0f} %"


def flags_of(size: Size, reward: str, seed: int) -> dict[str, str]:
    """Return the flags of a run of ours, wherever it trains.

    Args:
        size: how much it trains.
        reward: the reward function, as users name it.
        seed: of the run.
    """
    return {
        "reward_funcs": reward,
        "max_completion_length": str(TOKENS),
        "num_generations": str(size.samples),
        "per_device_train_batch_size": str(size.groups * size.samples),
        "max_steps": str(size.steps),
        "max_staleness": str(size.staleness),
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "cosine",
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "use_peft": "true",
        "lora_r": str(RANK),
        "lora_alpha": str(2 * RANK),
        "lora_target_modules": "all-linear",
        "seed": str(seed),
        "logging_steps": "1",
        # The checkpoint at the end says what was being written then.
        "save_steps": str(size.steps),
    }


def numbers(line: str) -> dict[str, float]:
    """Return the numbers in a line that the trainer printed."""
    found = ast.literal_eval(line[line.index("{") : line.rindex("}") + 1])
    return {name: float(value) for name, value in found.items()}


def times(run: Run) -> tuple[float, float, float] | None:
    """Return the seconds of a run's training, those between its first and last step, and the median of its steps."""
    ends = [when for when, _ in run.steps]
    if not run.summary or len(ends) < 2:
        return None
    steps = statistics.median(after - before for before, after in pairwise(ends))
    return numbers(run.summary)["train_runtime"], ends[-1] - ends[0], steps


class Ours:
    """Runs of `grpo_async`.

    Args:
        python: the Python with trainers and runner.
        inputs: folder with `model` and `dataset`.
        samplers: ready for every run.
        folder: for the workspaces of runs.
        patience: seconds of silence before a run is killed.
        accelerator: of the trainer, as the runtimes call it.
    """

    def __init__(
        self, python: Path, inputs: Path, samplers: Samplers, folder: Path, patience: float, accelerator: str = "cpu"
    ) -> None:
        self._python, self._inputs, self._samplers = python, inputs, samplers
        self._folder, self._patience, self._accelerator = folder, patience, accelerator
        self._count = 0

    def run(self, size: Size, reward: str, seed: int, more: Mapping[str, str] | None = None) -> Trained:
        """Train once.

        Args:
            size: how much.
            reward: the reward function, as users name it.
            seed: of the run.
            more: flags on top.

        Raises:
            JobFailed: it ended with another code than 0.
        """
        self._count += 1
        workspace = self._folder / f"run-{self._count}"
        flags = {
            **flags_of(size, reward, seed),
            "model_name_or_path": str(self._inputs / "model"),
            "dataset_name": str(self._inputs / "dataset"),
            "samplers": self._samplers.addresses,
            "adapters": str(self._samplers.adapters),
            **(more or {}),
        }
        env = {
            "STOKER_WORKSPACE": str(workspace),
            "STOKER_ACCELERATOR": self._accelerator,
            "STOKER_NPROC_PER_NODE": "1",
            "STOKER_TERMINATION_LOG": str(workspace.with_suffix(".log")),
            "JOBSET_NAME": f"benchmark-{self._count}",
            "PYTHONPATH": str(HERE),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [str(self._python), "-m", "stoker", "run", "trl.scripts.grpo_async"]
        began = time.monotonic()
        with self._samplers.watched() as idle:
            run = run_job([*command, *(f"--{flag}={value}" for flag, value in flags.items())], env, self._patience)
        found = left_by(run, workspace / "output", size, idle, began)
        shutil.rmtree(workspace, ignore_errors=True)
        return found


def left_by(run: Run, output: Path, size: Size, idle: Idle, began: float) -> Trained:
    """Return what a run of ours measured on this machine, its samplers among it.

    Args:
        run: how it ended.
        output: its folder.
        size: what it trained.
        idle: of its samplers.
        began: when it began.
    """
    if times(run) is None:
        return Trained(run)
    found = trained(run, [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()])
    end = began + (run.trained or 0)
    kept = json.loads((output / f"checkpoint-{size.steps}" / "rollouts.json").read_text())
    return replace(
        found,
        idle=idle.share(end - (found.seconds or 0), end),
        dropped=max(0, idle.answers - (size.steps * size.groups + len(kept["in_flight"])) * size.samples),
    )


def trained(run: Run, lines: Sequence[Mapping[str, Any]]) -> Trained:
    """Return what a run of ours measured, by what it says itself.

    Args:
        run: how it ended.
        lines: its metrics, one for each step.
    """
    measured = times(run)
    if measured is None:
        return Trained(run)
    depths = Counter(int(line["rollout/depth"]) for line in lines[len(lines) // 2 :])
    seconds, between, step = measured
    rewards = [float(line["reward"]) for line in lines if "reward" in line]
    tokens = lines[-1].get("num_tokens")
    return Trained(
        run,
        seconds=seconds,
        between=between,
        step=step,
        reward=statistics.fmean(rewards[-_LAST:]),
        waited=sum(line["rollout/wait_seconds"] for line in lines) / seconds,
        depth=depths.most_common(1)[0][0],
        staleness=int(max(line["staleness/max"] for line in lines)),
        spread=tuple(line["publish/spread_seconds"] for line in lines if line.get("publish/spread_seconds")),
        tokens=tokens / seconds if tokens else None,
        curve=tuple(zip(_since(run, seconds), rewards, strict=True)),
        ready=int(min(line["samplers/ready"] for line in lines)),
        held=sum(line["rollout/idle_seconds"] for line in lines) / seconds,
    )


def _since(run: Run, seconds: float) -> list[float]:
    """Return the seconds from before a run's first step to the end of each."""
    first = run.steps[-1][0] - seconds
    return [when - first for when, _ in run.steps]


class Theirs:
    """Runs of TRL's own asynchronous trainer, with what it needs on a CPU.

    Args:
        python: the Python with trainers.
        inputs: folder with `model` and `dataset`.
        vllm: the folder of vLLM's environment, from which it borrows the packages that it wants beside it.
        folder: for the outputs of runs.
        patience: seconds of silence before a run is killed.
    """

    def __init__(self, python: Path, inputs: Path, vllm: Path, folder: Path, patience: float) -> None:
        (self._packages,) = vllm.glob("lib/python*/site-packages")
        self._python, self._inputs, self._folder, self._patience = python, inputs, folder, patience

    def run(self, size: Size, address: str, seed: int) -> Trained:
        """Train once, on the vLLM at an address.

        Raises:
            JobFailed: it ended with another code than 0.
        """
        output = self._folder / f"theirs-{seed}"
        order = {
            "packages": str(self._packages),
            "model": str(self._inputs / "model"),
            "dataset": str(next((self._inputs / "dataset").glob("*.jsonl"))),
            "output": str(output),
            "address": address,
            "seed": seed,
            "rank": RANK,
            "tokens": TOKENS,
            "learning_rate": LEARNING_RATE,
            "steps": size.steps,
            "groups": size.groups,
            "samples": size.samples,
            "staleness": size.staleness,
        }
        command = [str(self._python), str(HERE / "async_grpo_theirs.py"), json.dumps(order)]
        env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        run = run_job(command, env, self._patience, at_its_end=_THEIR_END)
        measured = times(run)
        if measured is None or run.total is None:
            return Trained(run)
        lines: Sequence[Mapping[str, Any]] = json.loads((output / "lines.json").read_text())
        shutil.rmtree(output, ignore_errors=True)
        seconds, between, step = measured
        return Trained(
            run,
            seconds=seconds,
            between=between,
            step=step,
            reward=statistics.fmean([line["reward"] for line in lines if "reward" in line][-_LAST:]),
            # Its first step waits for its own worker to start.
            waited=sum(line.get("perf/rollout_wait_s") or 0.0 for line in lines[1:]) / between,
            # Theirs counts when a sample leaves the queue; it is trained a step later.
            staleness=int(max(line.get("sample/staleness_max", 0.0) for line in lines)) + 1,
            dropped=int(sum(line.get("sample/dropped_stale_total") or 0.0 for line in lines)),
        )
