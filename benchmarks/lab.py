#!/usr/bin/env python3
"""What training in a notebook costs over TRL alone, and what vLLM gains for RLHF, as ratios, on CPU.

Each side trains in a process of its own, in the environment of the image `lab`, on a model with random weights.
docs/reference/benchmarks.md says what the rows are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.children import Child  # noqa: E402
from benchmarks.jobs import environment  # noqa: E402
from benchmarks.paired import ratio_line, run_pairs, say, seconds, verdict, whole  # noqa: E402
from benchmarks.rows import end, parser_of, run_rows, take_rows  # noqa: E402

SIDES = ("stoker.lab", "TRL alone")
WITH_REWARDS = ("RLHF", "training")
SAMPLERS = ("vLLM", "transformers")
_SCRIPT = Path(__file__).with_name("lab_sides.py")
_OF_SIDE = dict(zip((*SIDES, *WITH_REWARDS), ("ours", "plain", "rlhf", "ours"), strict=True))
# Nothing is compiled, and no process pins itself to cores that the other side would use too.
_VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
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

    def once(self, side: str) -> Told:
        """Return what a process measures of a side.

        Raises:
            JobFailed: it failed, or took too long.
        """
        with self._child(side) as child:
            return cast(Told, child.ask("measure"))

    def pairs(self, side: str) -> Iterator[Told]:
        """Yield what a process measures of both sides, pair by pair, and tell it.

        Raises:
            JobFailed: it failed, or took too long.
        """
        with self._child(side) as child:
            for number in range(1, self.args.pairs + 1):
                pair = child.ask("measure")
                say(f"pair {number} of {self.args.pairs}: {pair}")
                yield pair

    def _child(self, side: str) -> Child:
        if self._python is None:
            say("finds the environment of trainers and vLLM, or makes it")
            self._python = environment("--with-runner", image="lab")
        return Child([self._python, _SCRIPT, side, self.folder], self.args.patience, _VARIABLES)


def training(bench: Bench) -> None:
    """Print how fast and how large training is, against TRL alone."""
    _print(of_training, run_pairs(bench.args.pairs, SIDES, lambda side, _: bench.once(_OF_SIDE[side])))


def memory(bench: Bench) -> None:
    """Print how large training with rewards is, against training on rows: it has one copy of the model, too."""
    _print(of_memory, run_pairs(bench.args.pairs, WITH_REWARDS, lambda side, _: bench.once(_OF_SIDE[side])))


def rollouts(bench: Bench) -> None:
    """Print how fast answers are sampled by vLLM, against transformers at its best batch."""
    say("transformers' best batch is looked for first, for some minutes")
    _print(of_rollouts, bench.pairs("rollouts"))


def latency(bench: Bench) -> None:
    """Print how long a short answer of a policy takes, against that of its engine alone."""
    _print(of_latency, bench.pairs("latency"))


def _print(lines: Callable[[Sequence[Any]], Iterator[str]], measured: Iterable[Any]) -> None:
    pairs: list[Any] = []
    try:
        pairs.extend(measured)
    finally:  # what was measured before a pair is lost
        print(*lines(pairs), sep="\n", flush=True)


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


def of_memory(pairs: Sequence[tuple[Told, Told]]) -> Iterator[str]:
    """Yield what pairs of trainings say of their memory, the one with rewards first."""
    if not pairs:
        yield "memory of RLHF           not measured: no pair ended"
        return
    both = [(one["peak"], other["peak"]) for one, other in pairs]
    yield ratio_line("memory of RLHF", WITH_REWARDS, both, " MiB")


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
    add("--patience", type=seconds, default=3600, help="seconds that one measurement may take (default %(default)s)")
    args = parser.parse_args()
    take_rows(parser, args, ROWS)
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
