#!/usr/bin/env python3
"""What the runner costs: `stoker run` against bare torchrun on the same job, and its own commands.

Runs a small LoRA job on this machine's CPU, alternately through both, in pairs, so that a machine that grows slower
or faster slows both. Prints the medians and the ratio within the pairs, for the time to the first step, for the whole
run, and for the processor time of all its processes, which other work on the machine changes least; then how long
`stoker plan` and `stoker --help` take. Reports, and asserts nothing.

    benchmarks/launch_overhead.py --pairs 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What a step's line in the trainer's log begins with, at --logging_steps 1.
_STEP = "{'loss'"
_TRAINER = "trl.scripts.sft"
# A run that takes longer hangs.
_PATIENCE_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Timing:
    """One run.

    Attributes:
        first_step: seconds from the start to the end of the first step.
        total: seconds from the start to the end of the process.
        processor: seconds that processors worked for it, in all its processes.
    """

    first_step: float
    total: float
    processor: float


def main() -> None:
    """Read the command line, run the pairs and print what they took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=5, help="runs through each launcher (default %(default)s; 0: none)"
    )
    parser.add_argument("--processes", type=int, default=2, help="training processes (default %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="steps of the job (default %(default)s)")
    parser.add_argument("--commands", type=int, default=20, help="runs of each small command (default %(default)s)")
    args = parser.parse_args()

    # In the runner's environment a hook would bring torchrun to `stoker run`.
    with_runner, bare = environment("--with-runner"), environment()
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        folder = Path(scratch)
        script = ROOT / "runner" / "tests" / "integration" / "tiny_inputs.py"
        subprocess.run([with_runner, script, folder], check=True)
        pairs: list[tuple[Timing, Timing]] = []
        tries = 0
        while len(pairs) < args.pairs:
            ours, theirs = run_pair(with_runner, bare, folder, tries, args.processes, args.steps)
            tries += 1
            if ours is None:
                sys.exit(f"stoker run did not end within {_PATIENCE_SECONDS} s")
            if theirs is not None:
                pairs.append((ours, theirs))
        print(f"{args.pairs} pairs, {args.processes} processes, {args.steps} steps")
        if tries > args.pairs:
            # A rank may hang while it destroys its gloo group (torch 2.13).
            print(f"torchrun did not end in {tries - args.pairs} of {tries} runs; those pairs are left out")
        for what in ("first_step", "total", "processor") if pairs else ():
            report_ratio(what.replace("_", " "), [(getattr(a, what), getattr(b, what)) for a, b in pairs])
        stoker = [str(with_runner), "-m", "stoker"]
        report_command("python -c pass", [str(with_runner), "-c", "pass"], args.commands, {})
        report_command("stoker --help", [*stoker, "--help"], args.commands, {})
        report_command(
            "stoker plan", [*stoker, "plan", _TRAINER], args.commands, told(folder, "plan", args.processes, args.steps)
        )


def environment(*options: str) -> Path:
    """Return the Python of an environment with the TRL image's packages."""
    made = subprocess.run([ROOT / "images" / "trl" / "venv", *options], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip()) / "bin" / "python"


def told(folder: Path, name: str, processes: int, steps: int) -> dict[str, str]:
    """Return what a pod of this job would be told."""
    flags = {
        "MODEL_NAME_OR_PATH": str(folder / "model"),
        "DATASET_NAME": str(folder / "dataset"),
        "MAX_STEPS": str(steps),
        "LOGGING_STEPS": "1",
        "SAVE_STEPS": str(steps),
        "PER_DEVICE_TRAIN_BATCH_SIZE": "8",
        "USE_PEFT": "true",
        "LORA_TARGET_MODULES": "all-linear",
    }
    return {
        **{f"STOKER_ARG_{flag}": value for flag, value in flags.items()},
        "STOKER_WORKSPACE": str(folder / name),
        "STOKER_ACCELERATOR": "cpu",
        "STOKER_NPROC_PER_NODE": str(processes),
        "STOKER_TERMINATION_LOG": str(folder / f"{name}-termination-log"),
    }


def run_pair(
    with_runner: Path, bare: Path, folder: Path, number: int, processes: int, steps: int
) -> tuple[Timing | None, Timing | None]:
    """Run the job through `stoker run` and through torchrun with the same flags; who goes first alternates.

    Returns:
        what each took; None for one that hung.
    """
    name = f"run-{number}"
    pod = told(folder, name, processes, steps)
    stoker = [str(with_runner), "-m", "stoker"]
    printed = subprocess.run(
        [*stoker, "plan", "--output", "json", _TRAINER],
        env={**os.environ, **pod},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    plan = json.loads(printed.stdout)
    flags = [word.replace(f"{folder}/{name}", f"{folder}/bare-{number}") for word in plan["trainer_argv"]]
    launcher = [str(bare), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]

    def through_stoker() -> Timing | None:
        return timed([*stoker, "run", _TRAINER], pod)

    def through_torchrun() -> Timing | None:
        return timed([*launcher, "-m", _TRAINER, *flags], plan["env"])

    if number % 2:
        torchrun = through_torchrun()
        return through_stoker(), torchrun
    return through_stoker(), through_torchrun()


def timed(argv: Sequence[str], env: dict[str, str]) -> Timing | None:
    """Run a job and return how long it took, None if it hung; its output is shown if it fails."""
    began, worked_before = time.monotonic(), worked()
    first = None
    lines = []
    quiet = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        argv, env={**os.environ, **quiet, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        patience = threading.Timer(_PATIENCE_SECONDS, process.terminate)
        patience.start()
        for line in process.stdout or ():
            lines.append(line)
            if first is None and line.startswith(_STEP):
                first = time.monotonic() - began
        patience.cancel()
    total = time.monotonic() - began
    if total > _PATIENCE_SECONDS:
        return None
    if process.returncode or first is None:
        sys.exit("".join(lines) + f"{' '.join(argv)} ended with {process.returncode}")
    return Timing(first, total, worked() - worked_before)


def worked() -> float:
    """Return the seconds that processors have worked for the ended children of this process, and for theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report_ratio(what: str, pairs: Sequence[tuple[float, float]]) -> None:
    """Print the medians of both sides, and the median and the range of the ratios within the pairs."""
    ratios = [ours / theirs for ours, theirs in pairs]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{what:<12} stoker run {ours:6.2f} s, torchrun {theirs:6.2f} s, "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def report_command(what: str, argv: Sequence[str], times: int, env: dict[str, str]) -> None:
    """Print the median and the range of a command's duration, and of the processor time in it."""
    took, cost = [], []
    for _ in range(times):
        began, worked_before = time.monotonic(), worked()
        subprocess.run(argv, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
        took.append(1000 * (time.monotonic() - began))
        cost.append(1000 * (worked() - worked_before))
    print(
        f"{what:<15} {statistics.median(took):4.0f} ms ({min(took):.0f} to {max(took):.0f}), "
        f"of it processor {statistics.median(cost):.0f} ms ({min(cost):.0f} to {max(cost):.0f})"
    )


if __name__ == "__main__":
    main()
