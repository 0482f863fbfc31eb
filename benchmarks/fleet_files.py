"""Writes and reads published weights, for benchmarks/fleet.py: `… storage|delta FOLDER BYTES RATE`, orders on stdin.

The product's own writer and reader do it. Runs in an environment with the trainers.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.children import answer

from stoker.frameworks.trl.asynchronous.weights import TensorSnapshot
from stoker.rollouts.stores import Store, WholeWeights
from stoker.serve.weights import in_vllm
from stoker.serve.weights.files import TENSORS, WeightsFile, read

# 32 MiB in bfloat16, as the layers of a model of a few billion weights have them.
_ROWS, _COLUMNS = 4096, 4096
# What initial weights of transformers are drawn with.
_DEVIATION = 0.02
_BLOCK = "bs=16M"

Tensors = dict[str, torch.Tensor]


def named(flat: torch.Tensor) -> Tensors:
    """Return parts of a long tensor as a model's."""
    parts = flat.view(-1, _COLUMNS).split(_ROWS)
    return {f"model.layers.{number}.weight": part for number, part in enumerate(parts)}


def seconds_of(what: Callable[[], object]) -> float:
    """Return how long something takes; what it returns is let go."""
    began = time.monotonic()
    what()
    return time.monotonic() - began


def forget(file: Path) -> None:
    """Have a file on the disk, and nothing of it in memory."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(path: Path) -> None:
    """Remove a file or a folder, so that nothing of it is left to be done while something else is measured."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    os.sync()


def only(folder: Path) -> WeightsFile:
    """Return the one version that a run's folder has."""
    (found,) = read(folder)
    return found


def store_of(folder: Path, name: str, every: int = 1) -> Store[Any]:
    """Return what writes versions as a run of that name does; of `every` so many, one is whole."""
    return WholeWeights(folder, name, every)


class Storage:
    """Random bytes that both sides write: `dd` reads them from the same memory as the tensors are in.

    Args:
        folder: of the volume.
        size: bytes.
    """

    def __init__(self, folder: Path, size: int, _rate: float) -> None:
        self._folder, self._size, self._numbers = folder, size, itertools.count()
        self._memory = os.memfd_create("weights")
        os.ftruncate(self._memory, size)
        data = mmap.mmap(self._memory, size)
        torch.frombuffer(data, dtype=torch.int32).random_()
        self._tensors = named(torch.frombuffer(data, dtype=torch.bfloat16))
        self._kept: Path | None = None
        self._sampler = in_vllm.Shadow()

    def write(self, side: str) -> float:
        """Write all bytes to the disk; return the bytes per second."""
        name = f"{side}-{next(self._numbers)}"
        took = seconds_of(lambda: self._dd(name) if side == "dd" else self._publish(name))
        remove(self._folder / name)
        return self._size / took

    def _dd(self, name: str) -> None:
        source = f"if=/dev/fd/{self._memory}"
        command = ["dd", source, f"of={self._folder / name}", _BLOCK, "conv=fsync", "status=none"]
        subprocess.run(command, check=True, pass_fds=(self._memory,))

    def _publish(self, name: str) -> None:
        store_of(self._folder, name).write(0, TensorSnapshot(self._tensors))

    def read(self, side: str) -> float:
        """Read all bytes from the disk, whoever wrote them; return the bytes per second."""
        if self._kept is None:
            self._publish("kept")
            self._kept = only(self._folder / "kept").path
        file = self._kept / TENSORS
        forget(file)
        if side == "dd":
            command = ["dd", f"if={file}", "of=/dev/null", _BLOCK, "status=none"]
            return self._size / seconds_of(lambda: subprocess.run(command, check=True))
        self._sampler.stage([str(self._kept)])
        took = seconds_of(self._until_read)
        if self._sampler.staged is None:
            raise RuntimeError(f"it could not be read: {self._sampler.problem}")
        self._sampler.hold(*self._sampler.staged)
        return self._size / took

    def _until_read(self) -> None:
        while self._sampler.busy():
            time.sleep(0.001)


class Delta:
    """Random weights in bfloat16, and versions of them.

    Args:
        folder: of the volume.
        size: bytes of the weights.
        rate: the learning rate of a step.
    """

    def __init__(self, folder: Path, size: int, rate: float) -> None:
        self._folder, self._rate, self._version = folder, rate, 0
        torch.manual_seed(0)
        self._after = named(torch.empty(size // 2, dtype=torch.bfloat16).normal_(std=_DEVIATION))
        self._before: Tensors = {}
        self._store = store_of(folder, "delta", every=sys.maxsize)
        self._store.write(0, self._snapshot())
        remove(only(folder / "delta").path)

    def _snapshot(self) -> TensorSnapshot:
        return TensorSnapshot(self._after, self._rate * self._version)  # another one each time: it keeps its checksums

    def step(self) -> None:
        """Train one step of AdamW, on random gradients."""
        self._version += 1
        self._before, after = self._after, {}
        for name, tensor in self._before.items():
            weight = torch.nn.Parameter(tensor.clone())
            weight.grad = torch.randn_like(weight)
            torch.optim.AdamW([weight], lr=self._rate, weight_decay=0.0).step()
            after[name] = weight.detach()
        self._after = after

    def write(self, side: str) -> dict[str, float]:
        """Write the newest version, whole or as the difference to the one before, and read it.

        Returns:
            bytes of the files; seconds to write and to read them; the share of the weights that have changed, where it
            was computed; and 1 where the product wrote a whole version after all.
        """
        name = "delta" if side == "difference" else f"whole-{self._version}"
        store = self._store if side == "difference" else store_of(self._folder, name)
        job, numbers = self._snapshot(), dict[str, float]()
        took = seconds_of(lambda: numbers.update(store.write(self._version, job)))
        (path,) = (file.path for file in read(self._folder / name) if file.version == self._version)
        forget(path / TENSORS)
        earlier: tuple[str, Mapping[str, Any]] = ("", {})
        if not numbers["whole"]:
            earlier = (f"{name}:{self._version - 1}", self._before)
        found = {
            "bytes": float(sum(file.stat().st_size for file in path.iterdir())),
            "write": took,
            "read": seconds_of(lambda: in_vllm.taken(path, earlier[0], dict(earlier[1]))),
            "changed": numbers.get("changed", 0.0),
            "whole": numbers["whole"],
        }
        remove(path)
        return found


def main(kind: str, folder: str, size: str, rate: str) -> None:
    """Answer orders."""
    if kind == "storage":
        storage = Storage(Path(folder), int(size), float(rate))
        answer({"write": storage.write, "read": storage.read})
    else:
        delta = Delta(Path(folder), int(size), float(rate))
        answer({"step": delta.step, "write": delta.write})


if __name__ == "__main__":
    main(*sys.argv[1:])
