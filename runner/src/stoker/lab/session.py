"""A policy whose model trains and answers in a session on a cluster: tokens go there, losses and answers come back."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from stoker.lab.config import ALL_LINEAR, LoRATrainConfig
from stoker.lab.endpoint import EndpointClient, Passed
from stoker.lab.errors import LabError, refuse
from stoker.lab.generation import Completion, Prompt, checked_prompts
from stoker.lab.machine import need_training
from stoker.lab.remote import answered
from stoker.lab.rows import Row, RowKind, as_rows, kind_of
from stoker.lab.trainer import Trained, refuse_long_rows, refuse_nothing_to_learn

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
# What an endpoint samples by; `n` is the number of answers.
_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
# The checkpoint that holds what was trained last, and where the endpoint of a session has its checkpoints.
_TRAINED, _CHECKPOINTS = "trained", "output/checkpoints/"


class RemoteSession:
    """Trains an adapter at a session's endpoint, and asks the session's samplers.

    Args:
        endpoint: the endpoint.
        config: the adapter and its training; dropout must be 0.
        tokenizer: where the tokenizer is; by default, the endpoint's model.

    Attributes:
        saved: folder of the adapter that was trained last, in the session's workspace; empty before the first training.

    Raises:
        LabError: the endpoint has no such adapters, or does not answer.
    """

    def __init__(self, endpoint: EndpointClient, config: LoRATrainConfig, tokenizer: str | None = None) -> None:
        refuse(_problems(config))
        self.config = config
        self._endpoint = endpoint
        self.model_name, self.positions = endpoint.model()
        self._words = tokenizer or self.model_name
        self._tokenizer: Any = None
        # The model at the endpoint, and what its samplers know it by as it is now.
        self._model_id = self._sampler = ""
        self._half_done = False
        self.saved = ""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        if self._tokenizer is None:
            need_training()
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._words)
            except (OSError, ValueError) as error:
                raise LabError(
                    f"there is no tokenizer at {self._words!r}: write name= with the folder or Hub id of the session's "
                    "model"
                ) from error
        return self._tokenizer

    def train(self, rows: Any) -> Trained:
        """Train on rows, as TRL does: in an order of the seed, with a learning rate that rises and then falls.

        Rows that are cut before their first token to learn are left out. The endpoint has models only in memory, so it
        saves the adapter at the end.

        Raises:
            LabError: the rows are wrong, too long or all left out, or the endpoint refuses.
        """
        found = as_rows(rows)
        if kind_of(found) is RowKind.PREFERENCE:
            raise LabError("a session trains no preferences: write text, completions or messages, or Policy(model)")
        config = self.config
        learned = [row for row in self._passed(found) if any(row.weights)]
        refuse_nothing_to_learn(learned)
        size = config.batch_size * config.gradient_accumulation_steps
        updates = math.ceil(len(learned) / size) * config.num_epochs
        warmup = math.ceil(updates * config.warmup_ratio)
        started, history = time.monotonic(), list[Mapping[str, float]]()
        model_id = self._model()
        self._sampler = ""  # also if it ends on the way
        if self._half_done:
            self._endpoint.forget(model_id)
        order = random.Random(config.seed)
        for _ in range(config.num_epochs):
            turn = order.sample(learned, len(learned))
            for first in range(0, len(turn), size):
                done = len(history)
                part = done / warmup if done < warmup else (updates - done) / max(updates - warmup, 1)
                passed = turn[first : first + size]
                count = sum(sum(row.weights) for row in passed)
                mean = [Passed(row.tokens, row.targets, [one / count for one in row.weights]) for row in passed]
                self._half_done = True
                logprobs = self._endpoint.forward(model_id, mean, learn=True)
                norm = self._endpoint.step(model_id, config.learning_rate * part, config.max_grad_norm)
                self._half_done = False
                history.append({"step": done + 1, "loss": _sum(mean, logprobs), "grad_norm": norm})
        self.saved = _CHECKPOINTS + self._endpoint.save(model_id, _TRAINED).removeprefix("tinker://")
        loss = sum(entry["loss"] for entry in history) / len(history)
        return Trained("sft", len(history), loss, time.monotonic() - started, 1, tuple(history))

    def generate(self, prompts: Sequence[Prompt], sampling: Mapping[str, Any]) -> list[Completion]:
        """Return answers by the model as it is now: all of the first prompt, then all of the next.

        Raises:
            LabError: an argument is not for a session, or the endpoint refuses.
        """
        asked = checked_prompts(prompts)
        unknown = sorted(sampling.keys() - {*_SAMPLING, "n", "logprobs"})
        if unknown:
            raise LabError(f"generate: a session does not know {unknown[0]}: write some of {', '.join(_SAMPLING)}, n")
        given = {"max_tokens": 16, **{name: sampling[name] for name in _SAMPLING if name in sampling}}
        told = sampling.get("logprobs") is not None
        model_id = self._model()
        self._sampler = self._sampler or self._endpoint.sampler(model_id)
        ids = [self.tokenizer(prompt).input_ids if isinstance(prompt, str) else list(prompt) for prompt in asked]
        ask = partial(self._endpoint.sample, self._sampler, count=sampling.get("n", 1), sampling=given)
        stops = _stops(given.get("stop"))
        found = []
        for prompt, answers in zip(asked, answered(ask, ids), strict=True):
            for tokens, logprobs, cut in answers:
                ended = [] if cut else stops
                # vLLM leaves out the text of a token that ended an answer.
                said = tokens[:-1] if tokens and tokens[-1] in ended else tokens
                text = _before(ended, self.tokenizer.decode(said, skip_special_tokens=True))
                finish = "length" if cut else "stop"
                found.append(Completion(prompt, text, tokens, logprobs if told else None, finish))
        return found

    def likelihood(self, rows: Any, size: int) -> tuple[float, int]:
        """Return the mean negative log-probability of the tokens that would be learned, and their number."""
        passed = self._passed(as_rows(rows))
        count = round(sum(sum(row.weights) for row in passed))
        total = 0.0
        for first in range(0, len(passed), size):
            part = passed[first : first + size]
            total += _sum(part, self._endpoint.forward(self._model(), part, learn=False))
        return total / max(count, 1), count

    def close(self) -> None:
        """Leave the endpoint."""
        self._endpoint.close()

    def _passed(self, rows: list[Row]) -> list[Passed]:
        """Return rows as the endpoint takes them."""
        need_training()
        from stoker.lab.data import CausalLMDataset

        longest = self.config.max_length
        dataset = CausalLMDataset(rows, self.tokenizer, longest)
        refuse_long_rows(dataset, self.positions)
        return [_passed(*dataset.tokens(row), longest) for row in range(len(dataset))]

    def _model(self) -> str:
        if not self._model_id:
            targets = self.config.target_modules
            self._model_id = self._endpoint.create(
                self.model_name,
                self.config.rank,
                self.config.alpha,
                self.config.seed,
                attention=targets == ALL_LINEAR or _ATTENTION[0] in targets,
                feed_forward=targets == ALL_LINEAR or _FEED_FORWARD[0] in targets,
            )
        return self._model_id


def _problems(config: LoRATrainConfig) -> Iterator[str]:
    targets = config.target_modules
    wanted = {*_ATTENTION}, {*_FEED_FORWARD}, {*_ATTENTION, *_FEED_FORWARD}
    if targets != ALL_LINEAR and {*targets} not in wanted:
        yield (
            f"LoRATrainConfig: target_modules is {targets!r}, but a session's adapters are in all layers of attention, "
            f'of the feed-forward part, or both: write {[*_ATTENTION]}, {[*_FEED_FORWARD]} or "{ALL_LINEAR}"'
        )
    if config.dropout:
        yield f"LoRATrainConfig: dropout is {config.dropout}, which a session does not have: write 0"


def _passed(ids: Sequence[int], labels: Sequence[int], longest: int) -> Passed:
    """Return a row: each token with the next one as its target."""
    from stoker.lab.data import IGNORED

    ids, labels = ids[:longest], labels[:longest]
    return Passed(ids[:-1], ids[1:], [float(label != IGNORED) for label in labels[1:]])


def _stops(stop: str | Sequence[str | int] | None) -> Sequence[str | int]:
    return [stop] if isinstance(stop, str) else stop or []


def _before(stops: Sequence[str | int], text: str) -> str:
    """Return an answer without the text that ended it, as vLLM has it: the one of several that is complete first."""
    ends = [(at + len(one), at) for one in stops if isinstance(one, str) and (at := text.find(one)) >= 0]
    return text[: min(ends, key=itemgetter(0))[1]] if ends else text


def _sum(rows: Sequence[Passed], logprobs: Sequence[Sequence[float]]) -> float:
    pairs = zip(rows, logprobs, strict=True)
    return -sum(weight * one for row, found in pairs for weight, one in zip(row.weights, found, strict=True))
