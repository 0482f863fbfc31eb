#!/usr/bin/env python3
"""What the one URL over many samplers, reloads of weights and their files cost, as ratios, on CPU.

Real vLLM serves the small model of examples/async-grpo on this machine. Two sides alternate in pairs, so that a machine
that grows slower or faster slows both. Says on stderr how far it is, and at the end what was lost. Reports, and asserts
nothing.

rows:
  url       the one URL ÷ its replicas' own proxies, asked straight: tokens per second of as many clients (goal: at
            least 0.98), and the median time of a request for one token, one at a time (goal: at most 2 ms more). Both
            proxies run the chart's configuration. Without the URL each client has a replica of its own, which is the
            best that can be had; one that is alone asks both in turn, as it does through the URL
  pause     gaps between streamed tokens with reloads of an adapter, and of all weights, and without: 99 of 100 of the
            longest gaps that a reload fell into, one for each client, over 99 of 100 gaps without reloads; goal: at
            most 100 ms more
  delta     files with what one step of AdamW has changed ÷ whole files: bytes (goal: at most 0.2), and seconds to
            write and to read them
  storage   bandwidth of the writer and of the reader of published weights ÷ that of dd, on the volume of --folder;
            writes end with fsync, and nothing that is read is in memory; goal: at least 0.8
  affinity  share of requests that reach the replica of their group through the one URL; goal: at least 95 %
  shares    device time of one of two equal runs that take turns ÷ that of the other; goal: 0.95 to 1.05
  sleep     seconds that vLLM takes to sleep and to go on, and the memory of the GPU that it keeps meanwhile, at levels
            1 and 2, with random weights of 1.7B; on an NVIDIA GPU alone

exit codes:
  0  measured
  1  a row was lost; the reasons are at the end
  2  wrong arguments

Examples:
  benchmarks/fleet.py
  benchmarks/fleet.py url --pairs 7 --requests 512
  benchmarks/fleet.py pause --seconds 30 --every 0.25
  benchmarks/fleet.py delta storage --folder /mnt/weights --size 4096
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runner" / "src"), str(ROOT / "tests")]

from benchmarks.adding import adding_inputs  # noqa: E402
from benchmarks.async_grpo_samplers import Samplers  # noqa: E402
from benchmarks.children import Child  # noqa: E402
from benchmarks.fleet_sleep import Slept, memory_in_use, of_sleeps, sleeping_engine, sleeps  # noqa: E402
from benchmarks.fleet_streams import Streamed, around, gaps_during  # noqa: E402
from benchmarks.gpu import GpuError, first_gpu  # noqa: E402
from benchmarks.jobs import JobFailed, environment  # noqa: E402
from benchmarks.paired import difference_line, ratio_line, run_pairs, say, seconds, whole  # noqa: E402
from benchmarks.rows import end, parser_of, run_rows, take_rows  # noqa: E402
from benchmarks.serving import Load  # noqa: E402

WAYS = ("the one URL", "the replicas' proxies")
RELOADS = ("with reloads", "without")
FILES = ("difference", "whole")
WRITERS = ("stoker", "dd")
GOAL = "goal at least 0.8"
# Whether the run trains adapters, by what is reloaded: the largest rank.
KINDS: Mapping[str, int | None] = {"adapters": 16, "weights": None}
_HERE = Path(__file__).parent
_TOKENS = 32
_LONG_TOKENS = 400
_MIB = 2**20
# File systems that have no disk.
_IN_MEMORY = ("tmpfs", "ramfs")
_GROUPS, _SAMPLES, _REPLICAS = 100, 8, 3
_SLEEPER = "qwen3-1.7b"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was measured of one way to the replicas.

    Attributes:
        load: of many clients.
        alone: of requests for one token, one at a time.
    """

    load: Load
    alone: Load

    def __str__(self) -> str:
        """Say how fast it was."""
        return f"{self.load}, one token alone {1000 * statistics.median(self.alone.request):.2f} ms"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second.

    Attributes:
        written: to the disk.
        read: from it.
    """

    written: float
    read: float

    def __str__(self) -> str:
        """Say how fast it was."""
        return f"writes {self.written / _MIB:.0f} MiB/s, reads {self.read / _MIB:.0f} MiB/s"


class Bench:
    """What the rows share; made when the first row needs it.

    Args:
        folder: for everything that is written.
        args: of the command line.
    """

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args

    @cached_property
    def python(self) -> Path:
        """The Python that has trainers and runner."""
        say("finds the environments of trainer and vLLM, or makes them")
        return environment("--with-runner")

    @cached_property
    def vllm(self) -> Path:
        """The Python of vLLM's environment."""
        return environment(image="vllm")

    @cached_property
    def model(self) -> Path:
        """The model that is served."""
        return adding_inputs(self.python) / "model"

    def child(self, script: str, *words: str | Path) -> Child:
        """Start a program of this folder in the environment with trainers."""
        return Child([self.python, _HERE / script, *words], self.args.patience + self.args.seconds)

    def pairs(
        self,
        sides: tuple[str, str],
        run: Callable[[str, int], Result],
        lines: Callable[[Sequence[tuple[Result, Result]]], Iterator[str]],
    ) -> None:
        """Run pairs and print what those that ended say."""
        pairs: list[tuple[Result, Result]] = []
        try:
            for pair in run_pairs(self.args.pairs, sides, run):
                pairs.append(pair)
        finally:
            print(*lines(pairs), sep="\n", flush=True)


def url(bench: Bench) -> None:
    """Print what the hop through the one URL costs."""
    from charts.helm import caddy
    from charts.one_url import one_url

    say("finds the proxy's program, or builds it")
    program = caddy()
    say("starts two replicas and the proxies")
    # As often as the chart has it.
    with one_url(program, bench.vllm, bench.model, bench.folder / "url", refresh="1s") as found:
        addresses = dict(zip(WAYS, ([found.url], found.proxies), strict=True))

        def ask(side: str, clients: int, tokens: int) -> Load:
            order = {"urls": addresses[side], "key": "", "model": "base", "requests": bench.args.requests}
            return load_of({**order, "concurrency": clients, "tokens": tokens}, bench.args.patience)

        def run(side: str, _: int) -> Asked:
            return Asked(ask(side, bench.args.clients, _TOKENS), ask(side, 1, 1))

        for side in WAYS:
            say(f"warms up {side}")
            run(side, 0)
        bench.pairs(WAYS, run, of_url)


def load_of(order: Mapping[str, object], patience: float) -> Load:
    """Ask for completions in a process of its own, and return what it measured.

    Args:
        order: as benchmarks/serving_pod.py takes it.
        patience: seconds that it may take.

    Raises:
        JobFailed: a request failed, or it took too long.
    """
    command = [sys.executable, str(_HERE / "serving_pod.py"), "ask"]
    try:
        done = subprocess.run(
            command, input=json.dumps(order), check=False, capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired as error:
        raise JobFailed(f"the clients did not end within {patience:g} s") from error
    if done.returncode:
        raise JobFailed(f"{done.stderr}\nthe clients ended with {done.returncode}")
    return Load(**json.loads(done.stdout))


def of_url(pairs: Sequence[tuple[Asked, Asked]]) -> Iterator[str]:
    """Yield what pairs of ways say, the one URL first."""
    if not pairs:
        yield "url                      not measured: no pair ended"
        return

    def both(value: Callable[[Asked], float]) -> list[tuple[float, float]]:
        return [(value(one), value(other)) for one, other in pairs]

    def median(load: Load) -> float:
        return 1000 * statistics.median(load.request)

    speeds = both(lambda asked: asked.load.tokens_per_second)
    yield f"{ratio_line('url, throughput', WAYS, speeds, ' tokens/s')}, goal at least 0.98"
    alone = both(lambda asked: median(asked.alone))
    yield f"{difference_line('url, request alone', WAYS, alone, ' ms')}, goal at most 2 ms"
    yield difference_line("url, request under load", WAYS, both(lambda asked: median(asked.load)), " ms")


def pause(bench: Bench) -> None:
    """Print how long clients wait for a token while weights are reloaded."""
    for kind, rank in KINDS.items():
        folder = bench.folder / kind
        samplers = Samplers(
            folder, bench.model, bench.python, bench.vllm.parents[1], 10, bench.args.patience, rank=rank
        )
        try:
            samplers.have(1)
            _pause_of(bench, kind, samplers)
        finally:
            samplers.have(0)


def _pause_of(bench: Bench, kind: str, samplers: Samplers) -> None:
    address = samplers.addresses
    server = address.partition(";")[0]
    with bench.child("fleet_versions.py", kind, samplers.model, samplers.folder, address) as trainer:
        say("publishes the first version")
        asked = trainer.ask("begin")

        def publish() -> list[tuple[float, float]]:
            return [
                (began, ended)
                for began, ended in trainer.ask("publish", seconds=bench.args.seconds, every=bench.args.every)
            ]

        lasted: list[float] = []

        def rest() -> list[tuple[float, float]]:
            """Let as long pass, and return windows as long as reloads were."""
            begin = time.monotonic()
            time.sleep(bench.args.seconds)
            return [(begin + bench.args.every * number, length) for number, length in enumerate(lasted)]

        def run(side: str, _: int) -> Streamed:
            reloading = side == RELOADS[0]
            gaps, found = gaps_during(server, asked, bench.args.clients, _LONG_TOKENS, publish if reloading else rest)
            if reloading:
                lasted[:] = [ended - began for began, ended in found]
            windows = found if reloading else [(began, began + length) for began, length in found]
            longest = around(gaps, windows)
            if not longest:
                raise JobFailed(f"no token came {side}")
            return Streamed([gap.end - gap.begin for gap in gaps], windows if reloading else (), longest)

        say("warms up")
        run(RELOADS[0], 0)
        bench.pairs(RELOADS, run, lambda pairs: of_pause(kind, pairs))


def of_pause(kind: str, pairs: Sequence[tuple[Streamed, Streamed]]) -> Iterator[str]:
    """Yield what pairs say, those with reloads first.

    Args:
        kind: what was reloaded.
        pairs: of what clients saw.
    """
    what = f"pause, {kind}"
    if not pairs:
        yield f"{what:<24} not measured: no pair ended"
        return
    pauses = [(1000 * one.pause, 1000 * other.pause) for one, other in pairs]
    yield f"{difference_line(what, RELOADS, pauses, ' ms')}, goal at most 100 ms"
    every = [(1000 * Streamed(one.gaps).pause, 1000 * Streamed(other.gaps).pause) for one, other in pairs]
    yield difference_line("  99 of 100 of all gaps", RELOADS, every, " ms")
    reloads = [ended - began for one, _ in pairs for began, ended in one.reloads]
    largest = 1000 * max(max(one.longest) for one, _ in pairs)
    yield (
        f"  {len(reloads)} reloads, median {statistics.median(reloads):.3f} s from before the write until it is "
        f"served; longest gap {largest:.0f} ms"
    )


def delta(bench: Bench) -> None:
    """Print what files with changes cost, against whole ones."""
    with _files(bench, "delta") as files:
        stepped = set[int]()

        def run(side: str, number: int) -> Mapping[str, float]:
            if number not in stepped:
                stepped.add(number)
                files.ask("step")
            found: Mapping[str, float] = files.ask("write", side=side)
            if side == FILES[0] and found["whole"]:
                raise JobFailed(
                    f"a step has changed {100 * found['changed']:.0f} % of the weights, so all were written: "
                    "lower --learning-rate"
                )
            return found

        bench.pairs(FILES, run, of_delta)


def of_delta(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Iterator[str]:
    """Yield what pairs of files say, those with changes first."""
    if not pairs:
        yield "delta                    not measured: no pair ended"
        return
    sizes = [(one["bytes"] / _MIB, other["bytes"] / _MIB) for one, other in pairs]
    yield f"{ratio_line('delta, bytes', FILES, sizes, ' MiB')}, goal at most 0.2"
    for what in ("write", "read"):
        yield ratio_line(f"delta, {what}", FILES, [(one[what], other[what]) for one, other in pairs], " s")
    changed = statistics.median(one["changed"] for one, _ in pairs)
    yield f"  a step has changed {100 * changed:.2f} % of the weights, in bfloat16"


def storage(bench: Bench) -> None:
    """Print how much of the disk the writer and the reader of weights use, against dd."""
    with _files(bench, "storage") as files:

        def run(side: str, _: int) -> Bandwidth:
            return Bandwidth(files.ask("write", side=side), files.ask("read", side=side))

        say("warms up")
        for _ in range(2):  # a sampler reads a version into the memory of the last but one
            run(WRITERS[0], 0)
        bench.pairs(WRITERS, run, of_storage)


def of_storage(pairs: Sequence[tuple[Bandwidth, Bandwidth]]) -> Iterator[str]:
    """Yield what pairs of writers and readers say, ours first."""
    if not pairs:
        yield "storage                  not measured: no pair ended"
        return
    for what in ("written", "read"):
        both = [(getattr(one, what) / _MIB, getattr(other, what) / _MIB) for one, other in pairs]
        yield f"{ratio_line(f'storage, {what}', WRITERS, both, ' MiB/s')}, {GOAL}"


def _files(bench: Bench, kind: str) -> Child:
    folder, size = bench.folder / kind, bench.args.size * _MIB
    folder.mkdir()
    if problem := volume_problem(folder, 3 * size):
        raise JobFailed(problem)
    return bench.child("fleet_files.py", kind, folder, str(size), str(bench.args.learning_rate))


def volume_problem(folder: Path, needed: int) -> str:
    """Return why a volume cannot be measured; empty if it can.

    Args:
        folder: of the volume.
        needed: bytes that must be free.
    """
    told = subprocess.run(
        ["stat", "--file-system", "--format=%T", folder], check=True, stdout=subprocess.PIPE, text=True
    )
    if told.stdout.strip() in _IN_MEMORY:
        return f"{folder} is in memory ({told.stdout.strip()}): name a folder of a disk with --folder"
    free = shutil.disk_usage(folder).free
    if free < needed:
        return f"{folder} has {free // _MIB} MiB left, {needed // _MIB} are needed: name another folder with --folder"
    return ""


def affinity(bench: Bench) -> None:
    """Print how many requests reach the replica of their group; the replicas are made up."""
    from charts.helm import caddy
    from charts.loopback_fleet import fleets

    folder = bench.folder / "affinity"
    folder.mkdir()
    with fleets(caddy(), folder) as start:
        fleet = start()
        fleet.start(_REPLICAS)

        def ask(number: int) -> tuple[str, str]:
            group = f"group-{number % _GROUPS}"
            status, answer = fleet.ask(body={"model": "base", "prompt": "a"}, headers={"X-Stoker-Group": group})
            if status != 200:
                raise JobFailed(f"a request of {group} was answered with {status}: {answer}")
            return group, answer["by"]

        with ThreadPoolExecutor(bench.args.clients) as threads:
            print(of_affinity([*threads.map(ask, range(_GROUPS * _SAMPLES))]), flush=True)


def of_affinity(answers: Sequence[tuple[str, str]]) -> str:
    """Return what answers say: the group of each, and who gave it."""
    groups: dict[str, Counter[str]] = {}
    for group, by in answers:
        groups.setdefault(group, Counter())[by] += 1
    home = sum(max(found.values()) for found in groups.values())
    return (
        f"affinity                 {100 * home / len(answers):.1f} % of {len(answers)} requests reached the replica of "
        f"their group; {len(groups)} groups, {len({by for _, by in answers})} replicas; goal at least 95 %"
    )


def shares(bench: Bench) -> None:
    """Print how two equal runs share a device; engines and the API of Leases are stand-ins."""
    from runner.tests.serve.slices.processes import WAIT, Device, lease_api, wait_for

    folder = bench.folder / "shares"
    folder.mkdir()
    with ExitStack() as stack:
        device = Device(folder, stack.enter_context(lease_api(folder)).words)
        stack.callback(device.close)
        say(f"takes {bench.args.turns} turns")
        wait_for(lambda: device.turns() > bench.args.turns, "no turns", WAIT + bench.args.turns)
        for member in device.members:
            member.asks.terminate()
        for member in device.members:
            member.asks.wait(WAIT)
        device.check()
        held = [sum(line["held"] for line in member.events("given")) for member in device.members]
    print(of_shares(held[0], held[1], bench.args.turns), flush=True)


def of_shares(one: float, other: float, turns: int) -> str:
    """Return what seconds of a device say that two runs had, in some turns."""
    return (
        f"shares                   {one:.2f} s and {other:.2f} s in {turns} turns, ratio {one / other:.3f}, "
        "goal 0.95 to 1.05"
    )


def sleep(bench: Bench) -> None:
    """Print what vLLM frees of a GPU while it sleeps, and how long that takes."""
    try:
        name = first_gpu()
    except GpuError as error:
        print(f"sleep: not measured: {error}", flush=True)
        return
    say("finds vLLM's environment for GPUs, or makes it")
    python = environment(image="lab-cuda")
    folder = bench.folder / "sleep"
    folder.mkdir()
    say(f"writes random weights of {_SLEEPER}")
    subprocess.run([python, _HERE / "gpu_inputs.py", folder, _SLEEPER, "1", "64"], check=True)
    print(f"on {name}:", flush=True)
    found: list[Slept] = []
    say("starts vLLM")
    with sleeping_engine(python, folder / "model", folder) as address:
        try:
            for one in sleeps(address, bench.args.pairs, bench.args.patience, memory_in_use):
                found.append(one)
                say(str(one))
        except JobFailed as failure:
            log = (folder / "vllm.log").read_text(errors="replace")[-3000:]
            raise JobFailed(f"{log}\n{failure}; the end of its log is above") from failure
        finally:
            print(*of_sleeps(found), sep="\n", flush=True)


ROWS: dict[str, Callable[[Bench], None]] = {
    "url": url,
    "pause": pause,
    "delta": delta,
    "storage": storage,
    "affinity": affinity,
    "shares": shares,
    "sleep": sleep,
}


def main() -> None:
    """Read the command line, run the rows and print what they say."""
    parser = parser_of(__doc__, ROWS)
    add = parser.add_argument
    add("--pairs", type=whole(1), default=5, help="runs of each side (default %(default)s)")
    add("--requests", type=whole(1), default=256, help="requests of a run of row url (default %(default)s)")
    add(
        "--clients", type=whole(1), default=4, help="clients at a time, rows url, pause, affinity (default %(default)s)"
    )
    add("--seconds", type=seconds, default=15.0, help="length of a run of row pause (default %(default)g)")
    add("--every", type=seconds, default=0.5, help="seconds from one reload to the next (default %(default)g)")
    add("--size", type=whole(1024), default=1024, metavar="MIB", help="MiB of weights (default %(default)s)")
    add(
        "--learning-rate", type=learning_rate, default=1e-6,
        help="of the step of row delta (default %(default)g, as TRL has it for GRPO)",
    )  # fmt: skip
    add("--turns", type=whole(20), default=200, help="turns of row shares (default %(default)s)")
    add("--folder", type=writable, help="a folder of the volume to measure (default: that of temporary files)")
    add(
        "--patience",
        type=seconds,
        default=600.0,
        help="seconds that a start or an answer may take (default %(default)g)",
    )
    args = parser.parse_args()
    take_rows(parser, args, ROWS)
    lost: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-", dir=args.folder) as scratch:
        bench = Bench(Path(scratch), args)
        run_rows(args.rows, lambda name: ROWS[name](bench), lost)
    end(lost)


def learning_rate(text: str) -> float:
    """Read a learning rate from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1: {text!r}")
    return value


def writable(text: str) -> Path:
    """Read a folder that can be written to from the command line."""
    path = Path(text)
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a folder that you may write to: {text!r}")
    return path


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # what it has started ends with it
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: what was measured so far is above")
