#!/usr/bin/env python3
"""What asynchronous GRPO gains over synchronous GRPO and over TRL's asynchronous trainer, and what its parts cost.

Trains the model of examples/async-grpo with `stoker run` and real vLLM samplers, on this machine's CPU. Where two ways
of training are compared, they alternate in pairs on the same samplers, so that a machine that grows slower or faster
slows both. Says on stderr how far it is, and at the end what was lost. Reports, and asserts nothing.

rows:
  tool      asynchronous ÷ synchronous where a tool waits: each group waits 4 times as long as a synchronous step
            computes; goal: 3 times as fast
  tail      the same with a long tail of waits: their mean is at most what a synchronous step computes, and as many
            groups wait at the same time on both sides; goal: 2.5 times as fast
  balanced  the same where each group waits as long as a synchronous step computes
  compute   the same where nothing waits
  trl       grpo_async ÷ TRL's own asynchronous trainer, where nothing waits, on one sampler, because TRL's knows one
  publish   seconds from the write of a version until 1, 2 and 4 samplers serve it, idle and under training;
            goal: 0.1 s in the median, idle
  fake      the same with 64 samplers that this process makes up; goal: 0.1 s for 99 of 100 versions; and what one group
            costs the schedule and the engine; goal: 1 ms
  gpu       tokens per second, and the row `compute`, on an NVIDIA GPU

Synchronous is grpo_async with --max_staleness 0, which trains what TRL's trainer would, with all groups of a step in
the samplers' hands at once. Both sides have the same samplers, seeds and corrections.

With --runtime the first four rows train with TrainJobs of one node and the runtime's samplers, through kubectl. The
cluster needs the catalogue and the claim with the example's inputs: examples/async-grpo/README.md, "On your cluster".

exit codes:
  0  measured; a row that this machine cannot run has said why
  1  a row or a run of it was lost, or the cluster cannot be used; the reasons are at the end
  2  wrong arguments

Examples:
  benchmarks/async_grpo.py
  benchmarks/async_grpo.py tool tail --pairs 7
  benchmarks/async_grpo.py compute --groups 32 --steps 100
  benchmarks/async_grpo.py publish --versions 50 --replicas 2
  benchmarks/async_grpo.py tool tail --runtime trl-grpo-async --namespace research
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runner" / "src"), str(ROOT / "tests")]

from benchmarks.adding import adding_inputs  # noqa: E402
from benchmarks.async_grpo_parts import barrier_of, costs_of, published_to  # noqa: E402
from benchmarks.async_grpo_runs import Ours, Size, Theirs, Trained, share  # noqa: E402
from benchmarks.async_grpo_samplers import Samplers  # noqa: E402
from benchmarks.async_grpo_trainjobs import ClusterError, TrainJobs  # noqa: E402
from benchmarks.gpu import GpuError, first_gpu  # noqa: E402
from benchmarks.jobs import JobFailed, Run, environment  # noqa: E402
from benchmarks.paired import ratio_line, run_pairs, say, seconds, whole  # noqa: E402
from benchmarks.rows import LOST, end, parser_of, run_rows, take_rows  # noqa: E402

SIDES = ("synchronous", "asynchronous")
RIVALS = ("TRL", "grpo_async")
NOTHING_WAITS = "async_grpo_rewards:right_sum"
# Steps of the run that says how long a synchronous step computes.
_CALIBRATION_STEPS = 20


@dataclass(frozen=True, slots=True)
class Waits:
    """What waits in a row, and how long.

    Attributes:
        title: of the row.
        goal: how much faster asynchronous training should be; None for whatever it is.
        share: the mean wait of a group, in seconds that a synchronous step computes; 0: nothing waits.
        spread: of the waits' logarithms.
        alike: True if only as many groups wait at once as one step has.
    """

    title: str
    goal: float | None = None
    share: float = 0.0
    spread: float = 0.0
    alike: bool = False

    def reward(self, computed: float, groups: int) -> str:
        """Return the reward function of the row.

        Args:
            computed: seconds that a synchronous step computes.
            groups: of a step.
        """
        if not self.share:
            return NOTHING_WAITS
        places = groups if self.alike else 0
        mean = self.share * computed
        return f"async_grpo_rewards:after(seconds={mean:.4f},spread={self.spread},places={places})"


WAITS = {
    "tool": Waits("a tool waits", 3.0, 4.0),
    "tail": Waits("a long tail of waits", 2.5, 0.8, 1.0, alike=True),
    "balanced": Waits("half of a step is waiting", None, 1.0),
    "compute": Waits("nothing waits"),
}


class Bench:
    """What the rows share; made when the first row needs it.

    Args:
        folder: for everything that is written.
        args: of the command line.
        accelerator: of the environments: `cpu` or `cuda`.

    Attributes:
        lost: lines that say which runs were lost.
    """

    def __init__(self, folder: Path, args: argparse.Namespace, accelerator: str = "cpu") -> None:
        self.folder, self.args, self._accelerator = folder, args, accelerator
        self.size = Size(args.steps, args.groups, args.samples, args.staleness)
        self.lost: list[str] = []

    @cached_property
    def python(self) -> Path:
        """The Python that has trainers and runner."""
        say("finds the environments of trainer and vLLM, or makes them")
        return environment("--with-runner", f"--accelerator={self._accelerator}")

    @cached_property
    def _vllm(self) -> Path:
        return environment(image="vllm" if self._accelerator == "cpu" else "lab-cuda").parents[1]

    @cached_property
    def inputs(self) -> Path:
        """The folder with model and data, made once for all runs of this program."""
        return adding_inputs(self.python)

    @cached_property
    def samplers(self) -> Samplers:
        """The samplers, none at first."""
        found: Samplers = Samplers(
            self.folder / "samplers",
            self.inputs / "model",
            self.python,
            self._vllm,
            self.size.staleness + 2,
            self.args.patience,
            () if self._accelerator == "cpu" else ("--gpu-memory-utilization=0.2",),
        )
        return found

    @cached_property
    def ours(self) -> Ours:
        """Runs of grpo_async."""
        accelerator = "cpu" if self._accelerator == "cpu" else "nvidia"
        return Ours(self.python, self.inputs, self.samplers, self.folder / "runs", self.args.patience, accelerator)

    @cached_property
    def trainjobs(self) -> TrainJobs:
        """Runs of grpo_async on a cluster."""
        return TrainJobs(self.args.runtime, self.args.namespace, self.args.patience)

    def trains(self) -> Ours | TrainJobs:
        """Return what trains with two samplers: TrainJobs if a runtime is named, else processes of this machine."""
        if self.args.runtime:
            return self.trainjobs
        self.samplers.have(2)
        return self.ours

    @cached_property
    def theirs(self) -> Theirs:
        """Runs of TRL's trainer."""
        python = environment(f"--accelerator={self._accelerator}")
        return Theirs(python, self.inputs, self._vllm, self.folder / "runs", self.args.patience)

    @cached_property
    def computed(self) -> float:
        """Seconds of a synchronous step in which nothing waits.

        Raises:
            JobFailed: the run that measures it did not end.
        """
        say("measures how long a synchronous step computes")
        size = replace(self.size, steps=min(self.size.steps, _CALIBRATION_STEPS), staleness=0)
        found = self.trains().run(size, NOTHING_WAITS, seed=0)
        if found.step is None:
            raise JobFailed(f"the run that measures a synchronous step did not end: {found}")
        return found.step

    def tell(self, lines: Iterable[str]) -> None:
        """Print the lines of a row, and keep those that say what was lost."""
        for line in lines:
            print(line, flush=True)
            if line.startswith(LOST):
                self.lost.append(line)

    def close(self) -> None:
        """End the samplers, and leave nothing on a cluster."""
        if "samplers" in self.__dict__:
            self.samplers.have(0)
        if "trainjobs" in self.__dict__:
            self.trainjobs.close()


def compare(bench: Bench, name: str) -> None:
    """Print what asynchronous training gains where something waits."""
    waits, pairs = WAITS[name], list[tuple[Trained, Trained]]()
    trains, reward = bench.trains(), waits.reward(bench.computed, bench.size.groups)
    if waits.share:
        mean = f"each group waits {waits.share * bench.computed:.2f} s" + (" in the mean" if waits.spread else "")
        print(f"{waits.title}: {mean}, {waits.share:g} times what a synchronous step computes", flush=True)

    def run(side: str, number: int) -> Trained:
        size = bench.size if side == SIDES[1] else replace(bench.size, staleness=0)
        return attempt(lambda: trains.run(size, reward, seed=number + 1))

    try:
        for pair in run_pairs(bench.args.pairs, SIDES, run):
            pairs.append(pair)
    finally:
        bench.tell(report(waits.title, SIDES, pairs, waits.goal))


def attempt(run: Callable[[], Trained]) -> Trained:
    """Return what a run measured; one that fails costs its pair alone."""
    try:
        return run()
    except JobFailed as failure:
        say(str(failure))
        return Trained(Run(None, None, None, None, problem=str(failure).splitlines()[-1]))


def rival(bench: Bench, _: str) -> None:
    """Print what grpo_async gains over TRL's asynchronous trainer."""
    pairs = list[tuple[Trained, Trained]]()
    bench.samplers.have(1)
    # What theirs does: clipped against the sampler's probabilities, divided by the standard deviation.
    alike = {"correction": "behaviour", "loss_type": "bnpo", "scale_rewards": "group"}
    with bench.samplers.plain() as address:

        def run(side: str, number: int) -> Trained:
            seed = number + 1
            if side == RIVALS[0]:
                return attempt(lambda: bench.theirs.run(bench.size, address, seed))
            return attempt(lambda: bench.ours.run(bench.size, NOTHING_WAITS, seed, alike))

        try:
            for pair in run_pairs(bench.args.pairs, RIVALS, run):
                pairs.append(pair)
        finally:
            bench.tell(report("TRL's trainer", RIVALS, pairs, 1.0, between=True))


def publish(bench: Bench, _: str) -> None:
    """Print how soon versions are served by all samplers, idle and under training."""
    for count in bench.args.replicas:
        bench.samplers.have(count)
        say(f"publishes {bench.args.versions} versions to {count} sampler(s)")
        idle = published_to(bench.samplers, count, bench.args.versions, bench.folder / "adapter", bench.python)
        print(f"publish, {count} sampler(s): idle {spread(idle)}", flush=True)
        say(f"trains with {count} sampler(s)")
        size = replace(bench.size, steps=min(bench.size.steps, 2 * _CALIBRATION_STEPS))
        busy = bench.ours.run(size, NOTHING_WAITS, seed=count)
        if busy.seconds is None:
            raise JobFailed(f"training with {count} sampler(s) did not end: {busy}")
        print(f"publish, {count} sampler(s): under training {spread(busy.spread)}", flush=True)
    print("publish: goal 0.1 s in the median, idle", flush=True)


def spread(values: Sequence[float]) -> str:
    """Return median and largest of some seconds."""
    if not values:
        return "not measured"
    return f"median {statistics.median(values):.3f} s, maximum {max(values):.3f} s of {len(values)}"


def fake(bench: Bench, _: str) -> None:
    """Print what the parts cost without vLLM: the barrier over many samplers, and a group in schedule and engine."""
    bench.close()  # nothing else runs meanwhile
    say("publishes 100 versions to 64 samplers in this process")
    took = sorted(barrier_of(bench.folder / "fake", 64, 100))
    print(
        f"64 made-up samplers: median {statistics.median(took):.3f} s, 99 of 100 within {took[98]:.3f} s; goal 0.1 s",
        flush=True,
    )
    schedule, engine = (1000 * cost for cost in costs_of(groups=64, steps=100, staleness=8))
    print(f"a group costs the schedule {schedule:.3f} ms, the engine {engine:.3f} ms; goal 1 ms", flush=True)


def gpu(bench: Bench, name: str) -> None:
    """Print tokens per second and what asynchronous training gains on a GPU."""
    try:
        model = first_gpu()
    except GpuError as error:
        print(f"gpu: not measured: {error}", flush=True)
        return
    print(f"on {model}:", flush=True)
    there = Bench(bench.folder / "gpu", bench.args, "cuda")
    try:
        compare(there, "compute")
    finally:
        bench.lost += there.lost
        there.close()


ROWS: dict[str, Callable[[Bench, str], None]] = {
    **dict.fromkeys(WAITS, compare),
    "trl": rival,
    "publish": publish,
    "fake": fake,
    "gpu": gpu,
}


def report(
    what: str,
    sides: tuple[str, str],
    pairs: Sequence[tuple[Trained, Trained]],
    goal: float | None,
    *,
    between: bool = False,
) -> Iterator[str]:
    """Yield what pairs of runs say: the ratio of the times, then each side.

    Args:
        what: the row.
        sides: names, the slower one first.
        pairs: of these sides.
        goal: of the ratio.
        between: compare the time after the first step alone, where only one side starts within its training.
    """
    name = "between" if between else "seconds"
    both = [(getattr(one, name), getattr(other, name)) for one, other in pairs if one.seconds and other.seconds]
    if not both:
        yield f"{what:<24} not measured: no pair has both sides"
    else:
        yield ratio_line(what, sides, both, " s") + (f", goal {goal:g}" if goal else "")
        yield from _equal_reward(sides, pairs)
        whole_pairs = [pair for pair in pairs if pair[0].seconds and pair[1].seconds]
        for side, runs in zip(sides, zip(*whole_pairs, strict=True), strict=True):
            yield f"  {side:<12} " + ", ".join(_facts(runs))
    for side, runs in zip(sides, zip(*pairs, strict=True), strict=False):
        lost = [(number, run) for number, run in enumerate(runs, 1) if not run.seconds]
        if lost:
            yield f"{LOST}{what}, {side}: " + ", ".join(f"pair {number} ({run})" for number, run in lost)


def _equal_reward(sides: tuple[str, str], pairs: Sequence[tuple[Trained, Trained]]) -> Iterator[str]:
    """Yield how the rewards of both sides compare, and the ratio of the times until both have the lower of them."""
    ends = [(one.reward, other.reward) for one, other in pairs if one.reward is not None and other.reward is not None]
    more = [other - one for one, other in ends]
    yield (
        f"  reward of {sides[1]} less that of {sides[0]}: {statistics.median(more):+.3f} "
        f"({min(more):+.3f} to {max(more):+.3f})"
    )
    reached = [
        (first, second)
        for one, other in pairs
        if one.curve and other.curve and one.reward is not None and other.reward is not None
        if (first := one.reached(min(one.reward, other.reward)))
        and (second := other.reached(min(one.reward, other.reward)))
    ]
    if reached:
        yield ratio_line("  to an equal reward", sides, reached, " s")


def _facts(runs: Sequence[Trained]) -> Iterator[str]:
    """Yield what the runs of one side have in common, in medians."""

    def middle(name: str) -> float | None:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        return statistics.median(values) if values else None

    yield f"reward {middle('reward'):.3f}"
    if ready := [run.ready for run in runs if run.ready is not None]:
        yield f"{min(ready)} samplers ready at least"
    yield f"trainer waited {share(middle('waited'))} of the time"
    if (idle := middle("idle")) is not None:
        yield f"samplers had nothing to do {share(idle)}"
    if (held := middle("held")) is not None:
        yield f"the trainer held samplers up {share(held)}"
    if (depth := middle("depth")) is not None:
        yield f"depth {depth:g}"
    yield f"staleness at most {max(run.staleness or 0 for run in runs)}"
    if (dropped := middle("dropped")) is not None:
        yield f"dropped {dropped:g} samples"
    if (tokens := middle("tokens")) is not None:
        yield f"{tokens:.0f} tokens/s"


def main() -> None:
    """Read the command line, run the rows and print what they say."""
    parser = parser_of(__doc__, ROWS)
    add = parser.add_argument
    add("--pairs", type=whole(1), default=5, help="runs of each side (default %(default)s)")
    add("--steps", type=whole(10), default=40, help="steps of a run (default %(default)s)")
    add("--groups", type=whole(1), default=16, help="prompts of a step (default %(default)s)")
    add("--samples", type=whole(2), default=4, help="answers to each prompt (default %(default)s)")
    add("--staleness", type=whole(1), default=8, help="--max_staleness of asynchronous runs (default %(default)s)")
    add("--replicas", type=whole(1), nargs="+", default=[1, 2, 4], help="samplers of row publish (default 1 2 4)")
    add("--versions", type=whole(1), default=20, help="versions of row publish (default %(default)s)")
    add("--patience", type=seconds, default=300, help="seconds of silence before a run is killed (default %(default)s)")
    add("--runtime", metavar="NAME", help="train with TrainJobs on this runtime of a cluster")
    add("--namespace", metavar="NAME", help="of the TrainJobs (default: the one that kubectl chooses)")
    args = parser.parse_args()
    take_rows(parser, args, WAITS if args.runtime else ROWS)
    if args.namespace and not args.runtime:
        parser.error("--namespace needs --runtime: processes of this machine have no namespace")
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        bench = Bench(Path(scratch), args)
        try:
            if args.runtime:
                bench.trains()  # what is missing is said before the first row
            run_rows(args.rows, lambda name: ROWS[name](bench, name), bench.lost)
        finally:
            bench.close()
    end(bench.lost)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it leaves no sampler
    try:
        main()
    except ClusterError as error:
        sys.exit(f"async_grpo.py: error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: what was measured so far is above")
