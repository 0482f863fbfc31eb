#!/usr/bin/env python3
"""What training in a notebook costs over TRL alone, and what vLLM gains for RLHF, as ratios, on CPU.

Each side trains in a process of its own, in the environment of the image `lab`, on a model with random weights.
docs/reference/benchmarks.md says what the rows are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import JobFailed, environment  # noqa: E402
from benchmarks.paired import ratio_line, run_pairs, say, seconds, verdict, whole  # noqa: E402
from benchmarks.rows import end, parsed, parser_of, run_rows  # noqa: E402

SIDES = ("stoker.lab", "TRL alone")
SAMPLERS = ("vLLM", "transformers")
_SCRIPT = Path(__file__).with_name("lab_sides.py")
_OF_SIDE = dict(zip(SIDES, ("ours", "plain"), strict=True))
# Nothing is compiled, and no process pins itself to cores that the other side would use too.
_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}

Told = Mapping[str, float]


class Bench:
    """Runs sides.

    Args:
        folder: for everything that is written.
        args: of the command line.
    """

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self._python: Path | None = None

    def run(self, side: str, *words: str) -> list[Told]:
        """Run a side and return what it told.

        Raises:
            JobFailed: it failed, or took too long.
        """
        if self._python is None:
            say("finds the environment of trainers and vLLM, or makes it")
            self._python = environment("--with-runner", image="lab")
        env = {**os.environ, **_VARIABLES, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                [self._python, _SCRIPT, side, self.folder, *words], check=False, capture_output=True, text=True,
                env=env, timeout=self.args.patience,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise JobFailed(f"{side} did not end within {self.args.patience:g} s") from error
        if done.returncode:
            raise JobFailed(f"{done.stderr}\n{side} ended with {done.returncode}")
        return told(done.stdout)


def told(printed: str) -> list[Told]:
    """Return the JSON lines among what a side printed; a trainer's log lines look alike, but are not JSON."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"')]


def training(bench: Bench) -> None:
    """Print how fast and how large training is, against TRL alone."""
    pairs: list[tuple[Told, Told]] = []

    def run(side: str, _: int) -> Told:
        return bench.run(_OF_SIDE[side])[-1]

    try:
        for pair in run_pairs(bench.args.pairs, SIDES, run):
            pairs.append(pair)
    finally:
        print(*of_training(pairs), sep="\n", flush=True)


def memory(bench: Bench) -> None:
    """Print how large training with rewards is, against training on rows: it has one copy of the model, too."""
    pairs = []
    for _ in range(bench.args.pairs):
        pairs.append((bench.run("rlhf")[-1]["peak"], bench.run("ours")[-1]["peak"]))
        say(f"pair {len(pairs)} of {bench.args.pairs}: {pairs[-1][0]:.0f} and {pairs[-1][1]:.0f} MiB")
    print(ratio_line("memory of RLHF", ("RLHF", "training"), pairs, " MiB"), flush=True)


def rollouts(bench: Bench) -> None:
    """Print how fast answers are sampled by vLLM, against transformers at its best batch."""
    say(f"{bench.args.pairs} pairs run in one process")
    print(*of_rollouts(bench.run("rollouts", str(bench.args.pairs))), sep="\n", flush=True)


def latency(bench: Bench) -> None:
    """Print how long a short answer of a policy takes, against that of its engine alone."""
    say(f"{bench.args.pairs} pairs run in one process")
    print(*of_latency(bench.run("latency", str(bench.args.pairs))), sep="\n", flush=True)


ROWS: dict[str, Callable[[Bench], None]] = {
    "training": training,
    "latency": latency,
    "memory": memory,
    "rollouts": rollouts,
}


def of_training(pairs: Sequence[tuple[Told, Told]]) -> Iterator[str]:
    """Yield what pairs of trainings say, ours first."""
    if not pairs:
        yield "training                 not measured: no pair ended"
        return
    for what, name, unit, goal, bound in (
        ("training", "speed", " tokens/s", "at least", 0.98),
        ("memory of training", "peak", " MiB", "at most", 1.02),
    ):
        yield _judged(what, SIDES, [(one[name], other[name]) for one, other in pairs], unit, goal, bound)


def of_rollouts(pairs: Sequence[Told]) -> Iterator[str]:
    """Yield what pairs of samplings say."""
    if not pairs:
        yield "rollouts                 not measured: no pair ended"
        return
    both = [(pair["vllm"], pair["transformers"]) for pair in pairs]
    batch = statistics.median(pair["batch"] for pair in pairs)
    yield _judged("rollouts", SAMPLERS, both, " tokens/s", "at least", 2)
    yield f"  transformers was fastest with {batch:g} prompts at a time"


def of_latency(pairs: Sequence[Told]) -> Iterator[str]:
    """Yield what pairs of short answers say."""
    if not pairs:
        yield "latency                  not measured: no pair ended"
        return
    both = [(pair["ours"], pair["plain"]) for pair in pairs]
    yield _judged("latency", (SIDES[0], SAMPLERS[0]), both, " ms", "at most", 1.05)


def _judged(
    what: str, sides: tuple[str, str], pairs: Sequence[tuple[float, float]], unit: str, goal: str, bound: float
) -> str:
    return ratio_line(what, sides, pairs, unit) + verdict(goal, bound, [one / other for one, other in pairs])


def main() -> None:
    """Read the command line, run the rows and print what they say."""
    parser = parser_of(__doc__, ROWS)
    add: Any = parser.add_argument
    add("--pairs", type=whole(1), default=5, help="runs of each side (default %(default)s)")
    add("--patience", type=seconds, default=3600, help="seconds that a side may take (default %(default)s)")
    args = parsed(parser, ROWS)
    lost: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        bench = Bench(Path(scratch), args)
        run_rows(args.rows, lambda name: ROWS[name](bench), lost)
    end(lost)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: what was measured so far is above")
