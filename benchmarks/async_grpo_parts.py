"""What parts of asynchronous GRPO cost, for benchmarks/async_grpo.py: to publish a version, to schedule a group."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.async_grpo_samplers import Samplers
from benchmarks.jobs import JobFailed

from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.engine import Engine
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.publish import Published, Publisher
from stoker.rollouts.records import Bounds, Group, Sample, Seeds
from stoker.rollouts.replicas import Needs
from stoker.rollouts.schedule import Schedule
from stoker.rollouts.stores import Adapters
from stoker.serve.adapters import live

ROOT = Path(__file__).resolve().parents[1]
_POLICY = ROOT / "runner" / "tests" / "integration" / "policy_versions.py"
_PATIENCE = 120.0
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def published_to(samplers: Samplers, count: int, versions: int, adapter: Path, python: Path) -> list[float]:
    """Publish versions to samplers that have nothing else to do.

    Args:
        samplers: that many of them are ready.
        count: how many.
        versions: how many.
        adapter: folder of the adapter that is published; made where it is missing.
        python: the Python with trainers, which makes it.

    Returns:
        seconds from each version's write until all samplers served it.

    Raises:
        JobFailed: they never did.
    """
    if not adapter.exists():
        subprocess.run([python, _POLICY, "write", samplers.model, adapter], check=True)
    with publishing("publish", samplers.addresses, samplers.adapters, samplers.model, count) as (_, publish):
        published = [publish(version, adapter) for version in range(1, versions + 1)]
    if lost := [one for one in published if len(one.samplers) != count]:
        raise JobFailed(f"{len(lost)} of {versions} versions were not served by all {count} sampler(s)")
    return [one.spread_seconds for one in published]


@contextmanager
def publishing(
    run: str, addresses: str, folder: Path, model: Path, count: int
) -> Iterator[tuple[str, Callable[[int, Path], Published]]]:
    """Publish adapters under a name of their own; at the end they are removed.

    Args:
        run: begins the name.
        addresses: of samplers, as `--samplers` takes them.
        folder: of published versions.
        model: the samplers' base model.
        count: how many samplers there are.

    Yields:
        the name, and what publishes an adapter's folder as a version and returns once all samplers serve it.

    Raises:
        JobFailed: they never did.
    """
    name = live.claim(folder, run, "benchmark")
    fleet = Fleet(addresses_in(addresses), name, Needs(), wait_seconds=_PATIENCE)
    usable: list[int] = []
    try:
        _until(lambda: len(fleet.ready()) == count, f"{count} sampler(s) are not ready")
        base = {"name_or_path": str(model), "revision": None}
        publisher = Publisher(Adapters(folder, name, base), fleet, usable.append, frozenset)

        def publish(version: int, adapter: Path) -> Published:
            publisher.publish(version, partial(_copy, adapter))
            _until(partial(_is_done, publisher, usable, version), "a version is not served")
            (told,) = publisher.published()
            return told

        try:
            yield name, publish
        finally:
            publisher.close()
    finally:
        fleet.close()


def barrier_of(folder: Path, count: int, versions: int) -> list[float]:
    """Publish versions to made-up samplers in this process; return the seconds from each write until all served it."""
    from runner.tests.rollouts.publishing import Run
    from runner.tests.rollouts.replicas import replicas_of
    from runner.tests.serve.adapters.samples import make_adapter

    (folder / "adapters").mkdir(parents=True)
    adapter = make_adapter(folder / "peft")
    with replicas_of(folder / "adapters") as replicas:
        run = Run(folder / "adapters", replicas.start(count))
        try:
            for version in range(1, versions + 1):
                run.publisher.publish(version, partial(_copy, adapter))
                _until(partial(run.has, version), "a version is not served")
            return [one.spread_seconds for one in run.publisher.published()]
        finally:
            run.close()


def costs_of(groups: int, steps: int, staleness: int) -> tuple[float, float]:
    """Return the seconds that one group costs the schedule, and the whole engine with its thread and event loop."""
    bounds = Bounds(groups, staleness, staleness)
    began = time.perf_counter()
    schedule = Schedule(bounds, steps)
    for step in range(steps):
        schedule.usable(step)
        schedule.begin(step)
        for start in schedule.admit():
            schedule.finish(start.ordinal)
        schedule.take()
    alone = time.perf_counter() - began
    engine = Engine([{"prompt": ""}] * groups, bounds, _AtOnce(), seed=0, steps=steps, wait_seconds=_PATIENCE)
    began = time.perf_counter()
    engine.start(0)
    try:
        for step in range(steps):
            engine.take(step, lambda _: None)
            engine.usable(step + 1)
        whole = time.perf_counter() - began
    finally:
        engine.stop()
    return alone / (groups * steps), whole / (groups * steps)


class _AtOnce:
    """Writes at once."""

    async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
        """Return one sample."""
        version = group.version
        return (Sample((1,), (2,), (1,), (-0.5,), version, version, (1.0,), "", "stop", "", 0.0),)


def _is_done(publisher: Publisher[Any], usable: Collection[int], version: int) -> bool:
    if failure := publisher.failed():
        raise JobFailed(failure.message)
    return version in usable


def _until(true: Callable[[], object], problem: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > end:
            raise JobFailed(f"{problem} after {_PATIENCE:.0f} s")
        time.sleep(0.005)


def _copy(adapter: Path, draft: Path) -> None:
    for file in _FILES:
        shutil.copyfile(adapter / file, draft / file)
