#!/usr/bin/env python3
"""What the runner costs: `stoker run` against bare torchrun on the same job, and its own commands.

Runs a small LoRA job on this machine's CPU, alternately through both, in pairs, so that a machine that grows slower
or faster slows both. Prints the medians and the ratio within the pairs, for the time to the first step, to the last,
for the whole run, and for the processor time of all its processes, which other work on the machine changes least; then
what was lost; then how long `stoker plan` and `stoker --help` take. Says on stderr how far it is. Reports, and asserts
nothing.

Bare torchrun often hangs at its end (gloo, torch 2.13). Once the training script returns, Python frees the model, with
the GIL held. DDP's reducer has the last reference to the process group, whose destructor waits for the group's threads,
and one of these waits for the GIL to free the tensors of its last collective (issues 56297 and 190489 of PyTorch). Such
a run is killed once it has been silent for as long as it trained; its steps count, its end does not.

    benchmarks/launch_overhead.py --pairs 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import JobFailed, Run, environment, run_job, worked  # noqa: E402
from benchmarks.paired import ratio_line, run_pairs, say, seconds, whole  # noqa: E402

SIDES = ("stoker run", "torchrun")
_TRAINER = "trl.scripts.sft"
_MEASURES = {
    "time to the first step": "first_step",
    "time to the last step": "trained",
    "time to the end": "total",
    "processor time": "processor",
}


def main() -> None:
    """Read the command line, run the pairs and print what they took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--pairs", type=whole(0), default=5, help="runs through each launcher (default %(default)s; 0: none)")
    add("--processes", type=whole(1), default=2, help="training processes (default %(default)s)")
    add("--steps", type=whole(1), default=50, help="steps of the job (default %(default)s)")
    add("--commands", type=whole(0), default=20, help="runs of each small command (default %(default)s; 0: none)")
    add("--patience", type=seconds, default=120, help="seconds of silence before a run is killed (default %(default)s)")
    args = parser.parse_args()

    say("finds the trainer's environments, or makes them")
    # In the runner's environment a hook would bring torchrun to `stoker run`.
    with_runner, bare = environment("--with-runner"), environment()
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        folder = Path(scratch)
        script = ROOT / "runner" / "tests" / "integration" / "tiny_inputs.py"
        subprocess.run([with_runner, script, folder], check=True)
        job = Job(folder, with_runner, bare, args.processes, args.steps, args.patience)
        pairs: list[tuple[Run, Run]] = []
        try:
            for pair in run_pairs(args.pairs, SIDES, job.run):
                pairs.append(pair)
        finally:
            if pairs:
                print(f"{len(pairs)} pairs, {args.processes} processes, {args.steps} steps")
                print(*report(pairs), sep="\n", flush=True)
        if args.commands:
            for line in small_commands(job, args.commands):
                print(line, flush=True)


class Job:
    """The job that both launchers run.

    Args:
        folder: with `model` and `dataset`; each run has a folder of its own in it.
        with_runner: the Python with trainers and runner.
        bare: the Python with trainers only.
        processes: training processes.
        steps: steps of the job.
        patience: seconds of silence before a run is killed.
    """

    def __init__(
        self, folder: Path, with_runner: Path, bare: Path, processes: int, steps: int, patience: float
    ) -> None:
        self.folder, self.processes, self.steps, self.patience = folder, processes, steps, patience
        self.stoker = [str(with_runner), "-m", "stoker"]
        self.torchrun = [str(bare), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]

    def run(self, side: str, number: int) -> Run:
        """Run it through one launcher, with the flags that the runner plans."""
        if side == SIDES[0]:
            argv, env = [*self.stoker, "run", _TRAINER], self.told(f"run-{number}")
        else:
            plan = self._plan(f"bare-{number}")
            argv, env = [*self.torchrun, "-m", _TRAINER, *plan["trainer_argv"]], plan["env"]
        return run_job(argv, {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}, self.patience)

    def told(self, name: str) -> dict[str, str]:
        """Return what a pod of this job would be told."""
        flags = {
            "MODEL_NAME_OR_PATH": str(self.folder / "model"),
            "DATASET_NAME": str(self.folder / "dataset"),
            "MAX_STEPS": str(self.steps),
            "LOGGING_STEPS": "1",
            "SAVE_STEPS": str(self.steps),
            "PER_DEVICE_TRAIN_BATCH_SIZE": "8",
            "USE_PEFT": "true",
            "LORA_TARGET_MODULES": "all-linear",
        }
        return {
            **{f"STOKER_ARG_{flag}": value for flag, value in flags.items()},
            "STOKER_WORKSPACE": str(self.folder / name),
            "STOKER_ACCELERATOR": "cpu",
            "STOKER_NPROC_PER_NODE": str(self.processes),
            "STOKER_TERMINATION_LOG": str(self.folder / f"{name}-termination-log"),
        }

    def _plan(self, name: str) -> dict[str, Any]:
        command = [*self.stoker, "plan", "--output", "json", _TRAINER]
        env = {**os.environ, **self.told(name)}
        plan: dict[str, Any] = json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)
        return plan


def report(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """Yield a line for each measure, over the pairs in which both sides have it, and one for each side's lost runs."""
    for what, measure in _MEASURES.items():
        values = [(getattr(ours, measure), getattr(theirs, measure)) for ours, theirs in pairs]
        both = [(ours, theirs) for ours, theirs in values if ours is not None and theirs is not None]
        yield ratio_line(what, SIDES, both, " s") if both else f"{what:<24} not measured: no pair has it on both sides"
    for side, runs in zip(SIDES, zip(*pairs, strict=True), strict=True):
        lost = [(number, run) for number, run in enumerate(runs, 1) if run.total is None]
        if lost:
            yield (
                f"lost: {side} did not end in {len(lost)} of {len(runs)} runs, "
                f"which took {sum(run.waited for _, run in lost):.0f} s of waiting: "
                + ", ".join(f"pair {number} ({run})" for number, run in lost)
            )


def small_commands(job: Job, times: int) -> Iterator[str]:
    """Yield a line for each small command, with the median and the range of its duration, and its processor time."""
    commands = {
        "python -c pass": [job.stoker[0], "-c", "pass"],
        "stoker --help": [*job.stoker, "--help"],
        "stoker plan": [*job.stoker, "plan", _TRAINER],
    }
    for what, argv in commands.items():
        say(f"{what}: {times} runs")
        took, cost = [], []
        for _ in range(times):
            began, worked_before = time.monotonic(), worked()
            subprocess.run(argv, env={**os.environ, **job.told("plan")}, check=True, stdout=subprocess.DEVNULL)
            took.append(1000 * (time.monotonic() - began))
            cost.append(1000 * (worked() - worked_before))
        yield (
            f"{what:<15} {statistics.median(took):4.0f} ms ({min(took):.0f} to {max(took):.0f}), "
            f"of it processor {statistics.median(cost):.0f} ms ({min(cost):.0f} to {max(cost):.0f})"
        )


if __name__ == "__main__":
    try:
        main()
    except JobFailed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("interrupted: what was measured so far is above")
