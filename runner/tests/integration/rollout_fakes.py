"""Stand-ins for a fleet of samplers, for trainers in tests: they need no server, and may be faulty on purpose.

Runs in an environment with the trainers.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stoker.contract.exits import RunError
from stoker.frameworks.trl.asynchronous.weights import TensorSnapshot
from stoker.rollouts.publish import After
from stoker.rollouts.records import Batch, Group, Sample, Written
from stoker.rollouts.state import RolloutState


class Versions:
    """A publisher whose versions can be used at once."""

    def __init__(self, usable: Callable[[int], None], take: Callable[[int, Any], None]) -> None:
        self._usable = usable
        self._take = take

    def make_room(self) -> None:
        """Do nothing: no version waits."""

    def publish(self, version: int, job: Any, *, needed: bool = False, after: After | None = None) -> None:
        """Write the version and use it; all weights are given in memory."""
        if isinstance(job, TensorSnapshot):
            self._take(version, job)
        else:
            with tempfile.TemporaryDirectory() as folder:
                job(Path(folder))
                self._take(version, Path(folder))
        self._usable(version)
        if after is not None:
            after(lambda: False)

    def failed(self) -> RunError | None:
        """Return nothing: it cannot fail."""
        return None

    def close(self) -> None:
        """Do nothing."""


class InOrder:
    """An engine that writes a batch when it is taken, in the order of the rows, `lag` steps behind if it can.

    Args:
        rows: the data.
        groups: of a batch.
        answer: writes the samples of a group.
        lag: how stale samples are.
        step: the step it begins at.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        groups: int,
        answer: Callable[[Group], tuple[Sample, ...]],
        lag: int = 0,
        step: int = 0,
    ) -> None:
        self._rows = rows
        self._groups = groups
        self._answer = answer
        self._lag = lag
        self._first = step
        self._next = step * groups
        self.waits = 0
        self.failure: RunError | None = None
        self.stopped = False

    def start(self, version: int) -> None:
        """Begin."""
        assert version == self._first

    def usable(self, version: int) -> None:
        """Do nothing: each batch names its version."""

    def take(self, step: int, waiting: Callable[[str], None]) -> Batch:
        """Write a batch."""
        for _ in range(self.waits):
            waiting("the test says so")
        if self.failure is not None:
            raise self.failure
        version = max(self._first, step - self._lag)
        written = tuple(self._write(ordinal, version) for ordinal in range(self._next, self._next + self._groups))
        self._next += self._groups
        return Batch(step, written, tuple(step - version for _ in written), 0.0, "", self._lag, 0)

    def _write(self, ordinal: int, version: int) -> Written:
        epoch, row = divmod(ordinal, len(self._rows))
        group = Group(ordinal, epoch, row, self._rows[row], version, version + self._lag)
        return group, self._answer(group)

    def evaluate(
        self, rows: Mapping[int, Mapping[str, Any]], version: int, waiting: Callable[[str], None]
    ) -> list[Written]:
        """Write samples of other rows."""
        groups = [Group(-1 - number, -1, number, row, version, version) for number, row in rows.items()]
        return [(group, self._answer(group)) for group in groups]

    def state(self) -> RolloutState:
        """Return how many groups are trained."""
        step = self._next // self._groups
        return RolloutState(step, self._groups, len(self._rows), 0, self._next, (), (), step, self._lag, self._lag)

    def stop(self) -> None:
        """Note it."""
        self.stopped = True


def scripted(
    tokenizer: Any, generations: int, length: Callable[[int, int], int]
) -> Callable[[Group], tuple[Sample, ...]]:
    """Return what answers each prompt with tokens, probabilities and rewards that depend on nothing but the prompt."""

    def answer(group: Group) -> tuple[Sample, ...]:
        prompt = tuple(tokenizer(group.columns["prompt"])["input_ids"])
        return tuple(_scripted(prompt, group.version, index, length(group.row, index)) for index in range(generations))

    return answer


def _scripted(prompt: tuple[int, ...], version: int, index: int, length: int) -> Sample:
    draws = hashlib.sha256(f"{prompt} {index}".encode()).digest()
    ids = tuple(2 + draws[place % 32] for place in range(length))
    logprobs = tuple(-0.1 - draws[place % 32] / 256 for place in range(length))
    reward = float(draws[0] > 127)
    text = " ".join(map(str, ids))
    return Sample(prompt, ids, (1,) * length, logprobs, version, version, (reward,), text, "length", "scripted", 0.0)


class TinyFleet:
    """Samplers with a model of their own, which serve the adapters that the trainer publishes.

    Args:
        model: folder of the base model.
        tokenizer: its tokenizer.
        generations: samples of a group.
        served: which version is served for a named one.
        temperature: of the sampling.
        shaken: how much the base model's weights differ from the trainer's.
        noise: how far the log-probabilities it gives are from its own, in nats per token.
        home: the sampler of a group, by its ordinal; by default each group has samples of two.
        faulty: the one that does not serve what it names; empty for all of them.
        unrewarded: samples of those that do not serve what they name get the same reward.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        generations: int,
        served: Callable[[int], int] = lambda version: version,
        temperature: float = 1.0,
        shaken: float = 0.0,
        noise: float = 0.0,
        home: Callable[[int], str] | None = None,
        faulty: str = "",
        unrewarded: bool = False,
    ) -> None:
        self._base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        if shaken:
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in self._base.parameters():
                    parameter.add_(shaken * torch.randn(parameter.shape, generator=generator))
        self._tokenizer = tokenizer
        self._generations = generations
        self._served = served
        self._temperature = temperature
        # The mean size of what is drawn normally is less than its deviation.
        self._deviation = noise * math.sqrt(math.pi / 2)
        self._home = home or (lambda ordinal: "")
        self._faulty = faulty
        self._unrewarded = unrewarded
        # An engine asks in a thread of its own.
        self._busy = threading.Lock()
        self._draw = torch.Generator().manual_seed(0)
        self._peft: Any = None
        self._whole: dict[int, Mapping[str, torch.Tensor]] = {}
        self._adapters: dict[int, dict[str, torch.Tensor]] = {}
        # By version: how far what was served was from what was named, in nats per token.
        self.differences: dict[int, float] = {}

    def take(self, version: int, folder: Path) -> None:
        """Load an adapter."""
        with self._busy:
            if self._peft is None:
                self._peft = PeftModel.from_pretrained(self._base, folder).eval()
            self._adapters[version] = load_file(folder / "adapter_model.safetensors")

    def take_all(self, version: int, snapshot: TensorSnapshot) -> None:
        """Take all weights of a version."""
        with self._busy:
            self._whole[version] = snapshot.tensors

    async def write(self, group: Group, seeds: Callable[[int, int], int]) -> tuple[Sample, ...]:
        """Sample a group, as an engine asks for it."""
        return self.answer(group)

    def answer(self, group: Group) -> tuple[Sample, ...]:
        """Sample a group; each even token is rewarded."""
        with self._busy:
            return self._answer(group)

    def complete(
        self, version: int, prompt: list[int], tokens: int, temperature: float, seed: int | None = None
    ) -> tuple[list[int], list[float]]:
        """Return the tokens of one answer, and their log-probabilities; with a seed they depend on no other answer."""
        with self._busy:
            draw = self._draw if seed is None else torch.Generator().manual_seed(seed)
            ids, said = self._drawn(version, torch.tensor([prompt]), tokens, draw, greedy=temperature == 0)
            return ids[0, len(prompt) :].tolist(), said[0].tolist()

    def _drawn(
        self, version: int, ids: torch.Tensor, tokens: int, draw: torch.Generator, greedy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen: list[torch.Tensor] = []
        for _ in range(tokens):
            logps = self._logps(version, ids)[:, -1]
            best = logps.argmax(dim=1, keepdim=True)
            token = best if greedy else torch.multinomial(logps.exp(), 1, generator=draw)
            chosen.append(logps.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
        return ids, torch.cat(chosen, dim=1)

    def _answer(self, group: Group) -> tuple[Sample, ...]:
        prompt = self._tokenizer(group.columns["prompt"])["input_ids"]
        home = self._home(group.ordinal)
        wrong = self._faulty in ("", home)
        served = max(0, self._served(group.version)) if wrong else group.version
        ids, said = self._drawn(served, torch.tensor([prompt] * self._generations), 6, self._draw)
        if served != group.version:
            named = self._logps(group.version, ids)[:, len(prompt) - 1 : -1]
            named = named.gather(2, ids[:, len(prompt) :, None])[:, :, 0]
            self.differences.setdefault(group.version, float((named - said).abs().mean()))
        said = said + self._deviation * torch.randn(said.shape, generator=self._draw) if self._deviation else said
        return tuple(
            Sample(
                tuple(prompt),
                tuple(line[len(prompt) :]),
                (1,) * 6,
                tuple(values),
                group.version,
                group.version,
                (0.0 if wrong and self._unrewarded else sum(token % 2 == 0 for token in line[len(prompt) :]) / 6,),
                "",
                "length",
                home or f"sampler-{index % 2}",
                0.0,
            )
            for index, (line, values) in enumerate(zip(ids.tolist(), said.tolist(), strict=True))
        )

    def _logps(self, version: int, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._computed(version, ids)

    def _computed(self, version: int, ids: torch.Tensor) -> torch.Tensor:
        if self._whole:
            kept = {name: parameter.detach().clone() for name, parameter in self._base.named_parameters()}
            self._base.load_state_dict(self._whole[version], strict=False)
            logits = self._base(ids).logits
            self._base.load_state_dict(kept, strict=False)
        elif version and self._peft is not None:
            set_peft_model_state_dict(self._peft, self._adapters[version])
            logits = self._peft(ids).logits
        elif self._peft is not None:
            with self._peft.disable_adapter():
                logits = self._peft(ids).logits
        else:
            logits = self._base(ids).logits
        return torch.log_softmax(logits.float() / self._temperature, dim=-1)
