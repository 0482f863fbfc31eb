"""Publishes whole weights to real samplers, and prints what they served as JSON: `… MODEL FOLDER ADDRESSES`.

`… tie MODEL FOLDER` writes a model whose head shares its weights with the embeddings, which vLLM loads in another way.

It begins with the first sampler, and makes `second` in its folder when the other one is to start. Runs in an
environment with the trainers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stoker.frameworks.trl.asynchronous.weights import Plausible, TensorSnapshot, weights_of
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.publish import Publisher
from stoker.rollouts.records import Request, Turn
from stoker.rollouts.replicas import Needs
from stoker.rollouts.stores import WholeWeights
from stoker.serve.adapters import live
from stoker.serve.weights import files

TEMPERATURE = 0.7


class Truncated(TensorSnapshot):
    """A version whose difference to the one before is cut off on the disk."""

    def write(self, folder: Path, name: str, earlier: str = "", change: Any = None) -> None:
        """Write it, and cut it off unless it is whole."""
        super().write(folder, name, earlier, change)
        if change is not None:
            tensors = folder / files.TENSORS
            tensors.write_bytes(tensors.read_bytes()[:-1000])


class Run:
    """A trainer's side of a run that trains all weights.

    Args:
        model: the base model.
        folder: gets everything.
        addresses: of the samplers.
    """

    def __init__(self, model: str, folder: Path, addresses: str) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.published = folder / "adapters"
        self.name = live.claim(self.published, "run", "job")
        self.servers = [place.partition(";")[0] for place in addresses.split(",")]
        self.fleet = Fleet(
            addresses_in(addresses), self.name, Needs(prompt=40, answer=80, weights=True), wait_seconds=900
        )
        self.usable: list[int] = []
        self.store = WholeWeights(self.published, self.name, every=3)
        self.publisher: Publisher[Any] = Publisher(self.store, self.fleet, self.usable.append, frozenset)
        self.kept: dict[int, TensorSnapshot] = {}
        self._draw = torch.Generator().manual_seed(0)
        self._plausible = Plausible()

    def step(self, version: int, kind: type[TensorSnapshot] = TensorSnapshot, share: float = 0.03) -> TensorSnapshot:
        """Change some of the weights, and return them as they are then."""
        if version:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    moved = torch.rand(parameter.shape, generator=self._draw) < share
                    parameter += moved * 0.3 * torch.randn(parameter.shape, generator=self._draw)
        found = weights_of(self.model, 0.1 * version, self._plausible, keep=True)
        assert found is not None
        self.kept[version] = kind(found.tensors, found.way, found.plausible)
        return self.kept[version]

    def publish(self, version: int, kind: type[TensorSnapshot] = TensorSnapshot) -> dict[str, Any]:
        """Publish a version, and return how that went when it can be used."""
        self.publisher.publish(version, self.step(version, kind))
        until(lambda: version in self.usable or self.publisher.failed())
        if error := self.publisher.failed():
            raise error
        (told,) = self.publisher.published()
        return {"samplers": len(told.samplers), "spread": told.spread_seconds, **told.numbers}

    def there(self) -> list[str]:
        """Return the names of the files that are there."""
        return sorted(file.path.name for file in files.read(self.published / self.name))

    def same(self, version: int, server: str) -> bool:
        """Return whether the checksums of all tensors of a sampler are those of a version."""
        body = json.dumps({"method": "stoker_checksums"}).encode()
        request = urllib.request.Request(f"{server}/collective_rpc", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            (found,) = json.loads(answer.read())["results"]
        return bool(found) and found == self.kept[version].checksums

    def ask(self, version: int, groups: int = 4, tokens: int = 12) -> list[Turn]:
        """Return two answers of each of some groups."""

        async def complete() -> list[Turn]:
            return await asyncio.gather(
                *(
                    self.fleet.complete(
                        Request(
                            (5 + group, 40, 41), version, group, index, 0, tokens, TEMPERATURE, seed=9 * group + index
                        )
                    )
                    for group in range(groups)
                    for index in range(2)
                )
            )

        return asyncio.run(complete())

    def errors(self, turn: Turn, version: int) -> list[float]:
        """Return how far each token's log-probability is from what a version gives."""
        now = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.kept[version].tensors[name])
            ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
            scores = self.model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].div(TEMPERATURE).log_softmax(-1)
            for name, parameter in self.model.named_parameters():
                parameter.copy_(now[name])
        chosen = scores.gather(1, torch.tensor(turn.completion_ids).unsqueeze(1)).squeeze(1)
        return [abs(a - b) for a, b in zip(chosen.tolist(), turn.logprobs, strict=True)]

    def worst(self, turns: list[Turn]) -> float:
        """Return how far answers are from their version, at most."""
        return max(max(self.errors(turn, turn.version)) for turn in turns)

    def split(self, turn: Turn, before: int, after: int) -> tuple[float, float, int]:
        """Return how well one version explains an answer up to a token and another one after it; and the token."""
        old, new = self.errors(turn, before), self.errors(turn, after)
        ways = [(max([0.0, *old[:at], *new[at:]]), at) for at in range(len(old) + 1)]
        worst, at = min(ways)
        return worst, min(max(old), max(new)), at


def until(what: Callable[[], object], seconds: float = 900.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def main(model: str, folder: Path, addresses: str) -> dict[str, Any]:
    """Go through all of it."""
    run = Run(model, folder, addresses)
    first, second = run.servers
    found: dict[str, Any] = {}
    try:
        run.fleet.check()
        found["published"] = [run.publish(version) for version in range(3)]
        found["first"] = run.same(2, first)
        found["worst"] = [run.worst(run.ask(2))]
        found["files"] = [run.there()]
        # One that comes late begins with the newest whole version, and takes what follows before it is ready.
        (folder / "second").touch()
        until(lambda: len(run.fleet.ready()) == 2)
        found["late"] = run.same(2, second)
        # Damaged files change nothing.
        broken = run.published / run.name
        cut = Truncated(run.kept[1].tensors)
        files.place(
            broken, 3, 2, lambda draft: cut.write(draft, f"{run.name}:3", f"{run.name}:2", cut.since(run.kept[2]))
        )
        until(lambda: len(run.fleet.refusals(3)) == 2)
        found["refusals"] = sorted(run.fleet.refusals(3).values())
        found["stayed"] = [run.same(2, server) for server in run.servers]
        for file in files.read(broken):
            if file.version == 3:
                files.remove(file)
        # The next whole file mends it.
        found["published"] += [run.publish(3), run.publish(4, Truncated)]
        until(lambda: len(run.fleet.ready()) == 2)
        found["mended"] = [run.same(4, server) for server in run.servers]
        turns = run.ask(4, groups=12)
        found["worst"].append(run.worst(turns))
        found["replicas"] = len({turn.replica for turn in turns})
        # A change under way.
        found["spanned"] = spanned(run)
        found["published"] += [run.publish(version) for version in (6, 7, 8)]
        until(lambda: len(run.fleet.ready()) == 2)
        found["last"] = [run.same(8, server) for server in run.servers]
        found["worst"].append(run.worst(run.ask(8)))
        until(lambda: not any(name.startswith("w0") for name in run.there()), 120)
        found["files"].append(run.there())
        return found
    finally:
        run.publisher.close()
        run.fleet.close()


def spanned(run: Run) -> list[Any]:
    """Let weights change under requests, and return what became of these."""
    from concurrent.futures import ThreadPoolExecutor

    changed = run.step(5, share=0.5)
    with ThreadPoolExecutor(1) as pool:
        # More than the samplers write at once, so that some are under way whenever the version comes.
        asked = pool.submit(run.ask, 4, 32, 75)
        until(lambda: sum(run.fleet.under_way().values()) > 32)
        run.publisher.publish(5, changed)
        turns = asked.result()
    until(lambda: 5 in run.usable)
    run.publisher.published()
    return [(turn.version, turn.newest, *run.split(turn, 4, 5), len(turn.completion_ids)) for turn in turns]


def tie(model: str, folder: str) -> None:
    """Write a model whose head and embeddings are the same."""
    shutil.copytree(model, folder)
    made: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, tie_word_embeddings=True)
    made.tie_weights()
    for file in Path(folder).glob("*.safetensors"):
        file.unlink()
    made.save_pretrained(folder)


if __name__ == "__main__" and sys.argv[1] == "tie":
    tie(*sys.argv[2:])
elif __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
