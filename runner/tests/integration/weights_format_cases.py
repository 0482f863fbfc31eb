"""What files of weights hold, and which changes are doubted; prints it as JSON: `… FOLDER`.

Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stoker.frameworks.trl.asynchronous.weights import Plausible, TensorSnapshot
from stoker.serve.weights import files, in_vllm


def taken(folder: Path, name: str, before: Any) -> Any:
    """Return what taking a version gives, or why it cannot be taken."""
    try:
        return in_vllm.taken(folder, name, before)
    except in_vllm.WrongWeightsError as error:
        return error.problem


def round_trip(folder: Path) -> dict[str, Any]:
    """Write two versions of each type, and read them."""
    found: dict[str, Any] = {}
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        shapes = {"a": (33, 7), "b": (5,), "c": (1025, 513)}  # the last is more than is read at a time
        first = {name: torch.randn(shape).to(kind) for name, shape in shapes.items()}
        first["nan"] = torch.full((3,), float("nan"), dtype=kind)
        second = {name: tensor.clone() for name, tensor in first.items()}
        second["a"][::4, 2] += 1  # some
        second["b"] *= 3  # all
        one, two = TensorSnapshot(first), TensorSnapshot(second)
        change = two.since(one)
        place = folder / str(kind)
        for version, job, args in ((0, one, ()), (1, two, ("run:0", change))):
            (place / str(version)).mkdir(parents=True)
            job.write(place / str(version), f"run:{version}", *args)
        name, _, tensors = in_vllm.taken(place / "0", "", {})
        (place / "0" / files.TENSORS).write_bytes(b"")  # as when a file is removed whose machine forgets it
        again = in_vllm.taken(place / "1", name, tensors)
        exact = all(torch.equal(again[2][key].view(torch.uint8), second[key].view(torch.uint8)) for key in second)
        found[str(kind)] = {
            "exact": exact and in_vllm.checksums(again[2]) == two.checksums,
            "untouched": all(tensors[key] is again[2][key] for key in ("c", "nan")),
            "keys": sorted(change.tensors),
            "share": change.share,
            "smaller": change.bytes < two.bytes,
            "names": [name, again[0]],
        }
    return found


def types(folder: Path) -> dict[str, bool]:
    """Write and read tensors of every type, without a dimension and without elements; return which are equal."""
    written = {str(kind): torch.arange(-3, 3).to(kind) for kind in in_vllm.TYPES.values()}
    written |= {"scalar": torch.tensor(0.5), "empty": torch.empty(0, 3)}
    folder.mkdir()
    TensorSnapshot(written).write(folder, "run:0")
    read = in_vllm.taken(folder, "", {})[2]
    same = {name: (one.dtype, one.tolist()) == (read[name].dtype, read[name].tolist()) for name, one in written.items()}
    return same | {"empty": read["empty"].shape == (0, 3)}


def damages(folder: Path) -> dict[str, str]:
    """Damage files in many ways, and note what is said of each."""
    torch.manual_seed(0)
    one = TensorSnapshot({"a": torch.randn(16, 16), "b": torch.randn(16)})
    two = TensorSnapshot({name: tensor + (tensor > 1) for name, tensor in one.tensors.items()})
    found = {}

    def written(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        two.write(folder / name, "run:2", "run:1", two.since(one))
        return folder / name

    cut = written("cut") / files.TENSORS
    cut.write_bytes(cut.read_bytes()[:-9])
    wrong = load_file(written("wrong") / files.TENSORS)
    wrong["a#values"][0] += 1
    save_file(wrong, folder / "wrong" / files.TENSORS)
    (written("bare") / files.CHECKSUMS).write_text("{}")
    (written("empty") / files.CHECKSUMS).unlink()
    newer = written("newer") / files.CHECKSUMS
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "schemaVersion": in_vllm.SCHEMA_VERSION + 1}))
    before = dict(one.tensors)
    for name in ("cut", "wrong", "bare", "empty", "newer"):
        found[name] = str(taken(folder / name, "run:1", before))
    found["other"] = str(taken(written("other"), "run:0", before))
    found["none"] = str(taken(folder / "other", "", {}))
    assert all(torch.equal(before[name], tensor) for name, tensor in one.tensors.items())
    return found


def doubts() -> dict[str, Any]:
    """Change weights in ways that are plausible and in others."""
    torch.manual_seed(0)
    kind = torch.bfloat16
    first = {"w": (0.02 * torch.randn(256, 256)).to(kind)}
    found: dict[str, Any] = {}

    def doubted(
        way: float, after: torch.Tensor, plausible: Plausible | None = None, before: float = 0.0
    ) -> tuple[float, str]:
        change = TensorSnapshot({"w": after}, way, plausible or Plausible()).since(TensorSnapshot(first, before))
        return change.share, change.doubt

    step = torch.randn(256, 256).sign()
    found["none"] = doubted(1e-6, first["w"])
    found["no step"] = doubted(0.0, first["w"])
    found["no step since"] = doubted(1.0, first["w"], before=1.0)
    found["small"] = doubted(1e-6, (first["w"].float() + 1e-6 * step).to(kind))
    found["large"] = doubted(1e-2, (first["w"].float() + 1e-2 * step).to(kind))
    found["all"] = doubted(1e-6, (first["w"].float() * 1.02).to(kind))
    usual = Plausible()
    for _ in range(4):
        doubted(1e-3, (first["w"].float() + 1e-3 * step).to(kind), usual)
    lost = first["w"].clone()
    lost[:2] = (lost[:2].float() + 1e-3 * step[:2]).to(kind)
    found["lost"] = doubted(1e-3, lost, usual)
    return found


class Worker(in_vllm.Weights):
    """A worker of vLLM that has weights and forgets them.

    Args:
        model: whose empty parameters become the tensors that are loaded first, and stay that.
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self.has: Any = None
        self._model = model or torch.nn.Module()

    def reload_weights(self, weights_iterator: Any = None) -> None:
        """Load weights, by default those that it started with."""
        tensors = None if weights_iterator is None else dict(weights_iterator)
        self.has = "its own" if tensors is None else {name: one.tolist() for name, one in tensors.items()}
        for name, parameter in self._model.named_parameters():
            if not parameter.numel():
                parameter.data = (tensors or {})[name]

    def get_model(self) -> torch.nn.Module:
        """Return the model."""
        return self._model


def restored(folder: Path) -> list[Any]:
    """Return what a worker has again that has dropped its weights: before a version came, and after."""
    worker, found = Worker(), []
    for _ in range(2):
        worker.has = None
        found.append([worker.stoker_restore()["name"], worker.has])
        files.place(folder / "run", 0, None, lambda draft: TensorSnapshot({"w": torch.ones(2)}).write(draft, "run:0"))
        worker.stoker_stage([str(folder / "run" / "w0")])
        assert worker.stoker_swap("run:1")["name"] == found[-1][0], "another version than was read"
        while not worker.stoker_staged()["done"]:
            time.sleep(0.01)
        assert worker.stoker_swap("run:0")["name"] == "run:0"
        files.remove(files.read(folder / "run")[0])
    return found


def unread(folder: Path) -> dict[str, Any]:
    """Order a version twice, from a disk that takes long, and have it loaded while it is read and after that."""
    worker, version = Worker(), folder / "w0"
    version.mkdir(parents=True)
    TensorSnapshot({"w": torch.ones(2)}).write(version, "run:0")
    listed = version / files.CHECKSUMS
    listed.rename(folder / "listed")
    os.mkfifo(listed)

    def arrive() -> None:
        with listed.open("w") as stream:  # the first reader waits for it
            shutil.copy(folder / "listed", folder / "copy")
            (folder / "copy").rename(listed)
            stream.write(listed.read_text())

    for _ in range(2):
        worker.stoker_stage([str(version)])
    found = {"at once": [worker.stoker_swap("run:0")["name"], worker.has]}
    arrive()
    while not worker.stoker_staged()["done"]:
        time.sleep(0.01)
    return {**found, "then": [worker.stoker_swap("run:0")["name"], worker.has]}


def places(folder: Path, *, kept: bool) -> dict[str, Any]:
    """Have a worker take four whole versions, then a difference; return where each lies, and whether the last is right.

    Args:
        folder: gets the versions.
        kept: the engine keeps the tensors of the first version.
    """
    model = torch.nn.Module()
    if kept:
        model.w = torch.nn.Parameter(torch.zeros(0))
    worker, found = Worker(model), []
    jobs = [TensorSnapshot({"w": torch.arange(64.0) + version, "b": torch.ones(3)}) for version in range(4)]
    jobs.append(TensorSnapshot({name: tensor.clone() for name, tensor in jobs[3].tensors.items()}))
    jobs[4].tensors["w"][5] = -1
    for version, job in enumerate(jobs):
        earlier = ("run:3", job.since(jobs[3])) if version == 4 else ()
        (folder / str(version)).mkdir(parents=True)
        job.write(folder / str(version), f"run:{version}", *earlier)
        worker.stoker_stage([str(folder / str(version))])
        while not worker.stoker_staged()["done"]:
            time.sleep(0.01)
        assert worker.stoker_swap(f"run:{version}")["name"] == f"run:{version}"
        assert worker.stoker_checksums() == job.checksums
        found.append(worker._stoker_shadow().tensors["w"].data_ptr())
    return {"places": [found.index(place) for place in found], "is": worker.has["w"] == jobs[4].tensors["w"].tolist()}


if __name__ == "__main__":
    scratch = Path(sys.argv[1])
    cases: dict[str, Any] = {"round": round_trip(scratch), "damages": damages(scratch), "doubts": doubts()}
    cases["types"] = types(scratch / "types")
    cases["places"] = [places(scratch / str(kept), kept=kept) for kept in (False, True)]
    print(json.dumps({**cases, "restored": restored(scratch / "restored"), "unread": unread(scratch / "unread")}))
