"""How well a model predicts rows: loss, perplexity, token accuracy; the same however many processes share the work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypedDict

from stoker.contract.exits import ExitCode
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError
from stoker.lab.machine import dtype_of
from stoker.lab.policy import Policy
from stoker.lab.rows import Row
from stoker.lab.trainer import refuse_long_rows


class Metrics(TypedDict):
    """What `evaluate` returns.

    Attributes:
        loss: mean of the negative log-probability of each token that is learned, in nats.
        perplexity: its exponential.
        token_accuracy: part of those tokens that the model holds most likely; NaN for a session, which does not say.
        n: their number.
    """

    loss: float
    perplexity: float
    token_accuracy: float
    n: int


class Evaluated(Protocol):
    """What is evaluated: a `Policy` or a `LoRATrainer`."""

    config: LoRATrainConfig

    @property
    def positions(self) -> int | None:
        """The longest sequence that the model takes, if that is known."""

    @property
    def model(self) -> Any:
        """The model with its adapter."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""


def evaluate(policy: Evaluated, rows: Iterable[Row], *, batch_size: int | None = None) -> Metrics:
    """Return how well a policy predicts rows that it was not trained on.

    Under torchrun each process computes its part of the rows, and all of them return the same.

    Args:
        policy: a `Policy` or a `LoRATrainer`.
        rows: `text`, `prompt` and `completion`, or `messages`; rows are cut as in training.
        batch_size: rows at a time; the config's by default.

    Raises:
        LabError: the rows are wrong, longer than the model takes, or have no token to predict.
    """
    session = policy.session if isinstance(policy, Policy) else None
    if session is not None:
        loss, count = session.likelihood(rows, batch_size or policy.config.batch_size)
        return _metrics([loss * count, math.nan, count])
    tokenizer = policy.tokenizer  # it says what is missing, or that the policy is served elsewhere
    import torch
    from accelerate import PartialState
    from torch import distributed

    from stoker.lab.data import IGNORED, CausalLMCollator, CausalLMDataset

    dataset = CausalLMDataset(rows, tokenizer, policy.config.max_length)
    refuse_long_rows(dataset, policy.positions)
    world = PartialState(cpu=not torch.cuda.is_available())
    model = policy.model.to(world.device).eval()
    collate = CausalLMCollator(tokenizer)
    size = batch_size or policy.config.batch_size
    mine = range(world.process_index, len(dataset), world.num_processes)
    # In float64, so that the order of the sum does not matter.
    sums = torch.zeros(3, dtype=torch.float64)
    mixed = dtype_of(policy.config) == "bfloat16"
    autocast: Any = torch.autocast(world.device.type, torch.bfloat16) if mixed else nullcontext()
    with torch.no_grad(), autocast:
        for start in range(0, len(mine), size):
            batch = {
                name: value.to(world.device)
                for name, value in collate([dataset[index] for index in mine[start : start + size]]).items()
            }
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            labels = batch["labels"][:, 1:]
            learned = labels != IGNORED
            scores = logits[:, :-1][learned].float()
            wanted = labels[learned]
            chosen = scores.log_softmax(-1).gather(1, wanted.unsqueeze(1))
            found = [-chosen.double().sum(), (scores.argmax(-1) == wanted).double().sum(), learned.double().sum()]
            sums += torch.stack(found).cpu()
    if world.num_processes > 1:
        sums = sums.to(world.device)
        distributed.all_reduce(sums)
    return _metrics(sums.tolist())


def _metrics(sums: Sequence[float]) -> Metrics:
    total, right, count = sums
    if not count:
        raise LabError("no row has a token to predict after it was cut: raise max_length", ExitCode.BAD_DATA)
    loss = total / count
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < math.log(1e300) else math.inf,
        "token_accuracy": right / count,
        "n": int(count),
    }
