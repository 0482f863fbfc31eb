"""A trainer's side of a run, for benchmarks/fleet.py: `… adapters|weights MODEL FOLDER ADDRESS`, orders on stdin.

It publishes versions to one sampler, each once the one before is served. Runs in an environment with the trainers.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.async_grpo_parts import publishing
from benchmarks.children import answer


@contextmanager
def adapters(model: str, folder: Path, address: str) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield the name of an adapter that stays, which clients may ask, and what publishes a version of another one."""
    from runner.tests.integration.policy_versions import write

    made, published = folder / "made", folder / "adapters"
    write(model, [str(made)])
    with ExitStack() as stack:
        name, stay = stack.enter_context(publishing("asked", address, published, Path(model), 1))
        stay(1, made)
        _, publish = stack.enter_context(publishing("trained", address, published, Path(model), 1))
        yield f"{name}:1", lambda version: publish(version + 1, made)


@contextmanager
def weights(model: str, folder: Path, address: str) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yield the name of the model, and what publishes a version of all of its weights."""
    from runner.tests.integration.weights_cases import Run

    run = Run(model, folder, address)
    try:
        run.fleet.check()
        yield "base", run.publish
    finally:
        run.publisher.close()
        run.fleet.close()


KINDS = {"adapters": adapters, "weights": weights}


def main(kind: str, model: str, folder: str, address: str) -> None:
    """Answer orders."""
    versions = itertools.count()
    with KINDS[kind](model, Path(folder), address) as (name, publish):

        def begin() -> str:
            """Publish the first version, and return whom clients ask."""
            publish(next(versions))
            return name

        def publish_for(seconds: float, every: float) -> list[tuple[float, float]]:
            """Publish versions for some time; return when each began and was served."""
            found = []
            end = time.monotonic() + seconds
            while (began := time.monotonic()) < end:
                publish(next(versions))
                found.append((began, time.monotonic()))
                time.sleep(max(0.0, began + every - time.monotonic()))
            return found

        answer({"begin": begin, "publish": publish_for})


if __name__ == "__main__":
    main(*sys.argv[1:])
