"""The identity guard in the trainer: picks samples, scores them with the versions that wrote them, and ends the run.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.frameworks.trl.asynchronous.handout import Ranks
from stoker.frameworks.trl.asynchronous.identity import Judge, Mismatch, Scored
from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.frameworks.trl.asynchronous.snapshot import BASE, Copies

# Tokens to score in one round; fewer samples than the second are never taken, more than the third neither.
_TOKENS, _LEAST_ROWS, _MOST_ROWS = 1024, 8, 128
# bf16 has 8 bits: two correct implementations of a model differ by about this much per token.
_NOISE_OF_BF16 = 0.02
# Even where the trainer's own two computations agree better.
_LEAST_NOISE = 1e-3

# How many times it may find nothing to look at before it says so.
_BLIND = 4

# Log-probabilities of the answers of rows by the model as it is. With True: in the other precision, None without one.
Score = Callable[[Sequence[Row], bool], list[list[float]] | None]


class IdentityGuard:
    """Ends the run if samplers do not serve the policy they name.

    It looks once in `every` steps, and again in the next step if it finds something: only what is found twice counts.

    Args:
        every: within how many steps it must find a fault.
        comparable: False if the log-probabilities of sampler and trainer differ by what the user set.
        copies: versions of what is trained.
        ranks: all ranks; each scores a part.
        score: scores rows with the model as it is.
    """

    def __init__(self, every: int, comparable: bool, copies: Copies, ranks: Ranks, score: Score) -> None:
        self._between = max(1, every - 1)
        self._comparable = comparable
        self._copies = copies
        self._ranks = ranks
        self._score = score
        self._judge: Judge | None = None
        self._next = 0
        self._suspected = False
        self._looked = -1
        self._probed: Sequence[Row] = ()
        self._hears = False
        self.error = float("nan")

    def wants(self, step: int, lag: int) -> bool:
        """Return whether a copy of the version of this step is needed, where there is no room for one of each.

        A copy is made some steps before the next look, and kept until samples of that version have come. What is asked
        for comes at once.

        Args:
            step: the step.
            lag: within how many steps the samples of a version are trained.
        """
        newest = max(self._copies.versions, default=-1)
        comes = newest > self._looked and newest >= step - lag
        return not comes and step >= self._next - (1 if self._hears else lag)

    def hear(self, probed: Sequence[Row]) -> None:
        """Take rows that one version wrote alone, for the next look. Every rank calls this with the same."""
        self._probed = probed
        self._hears = self._hears or bool(probed)

    def look(self, step: int, rows: Sequence[Row]) -> None:
        """Check the samples of a step. Every rank calls this with the rows of all ranks.

        Raises:
            RunError: samplers serve something else (70: another version; 78: another model or another way to sample).
        """
        probed, self._probed = self._probed, ()
        if step < self._next and not self._has_come([*probed, *rows]):
            return
        picked = self._picked(probed) or self._picked(rows)
        if not picked:  # no version with a copy; the next step may have one
            if step - self._next == _BLIND * self._between:
                say(
                    f"step {step}: for {_BLIND} times --guard_every steps the identity guard has seen no sample that "
                    "one version wrote alone, so it cannot compare: raise --publish_every or --publish_seconds"
                )
            return
        version = self._looked = picked[0].oldest
        findings = self._round(version, picked)
        self._next = step + (1 if findings else self._between)
        if findings and self._suspected:
            raise _ending(version, findings)
        self._suspected = bool(findings)
        if findings:
            say(f"step {step}: {findings[0]}; looking again in the next step")

    def _has_come(self, rows: Sequence[Row]) -> bool:
        """Return whether there are samples of the one version that a copy was made for."""
        newest = max(self._copies.versions, default=-1)
        watched = self._copies.scarce and newest > self._looked
        return watched and any(row.oldest == row.newest == newest for row in rows)

    def _picked(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows that one version wrote, from every replica in turn, and as many for each rank."""
        whole = [row for row in rows if row.oldest == row.newest and row.oldest in self._copies.versions]
        if not whole:
            return []
        version = Counter(row.oldest for row in whole).most_common(1)[0][0]
        queues: dict[str, list[Row]] = {}
        for row in whole:
            if row.oldest == version:
                queues.setdefault(row.replica, []).append(row)
        picked: list[Row] = []
        tokens = 0
        while queues and len(picked) < _MOST_ROWS and (tokens < _TOKENS or len(picked) < _LEAST_ROWS):
            for replica in list(queues):
                row = queues[replica].pop()
                picked.append(row)
                tokens += sum(row.mask)
                if not queues[replica]:
                    del queues[replica]
        # A shared model computes on all ranks at once, so that each needs as many rows.
        while len(picked) % self._ranks.size:
            picked.append(picked[0])
        return picked

    def _round(self, version: int, picked: Sequence[Row]) -> list[Mismatch]:
        mine = picked[self._ranks.rank :: self._ranks.size]
        with self._copies.worn(version):
            named = self._score(mine, False)
            other = self._score(mine, True) if self._judge is None else None
        others = {}
        base = [BASE] if self._copies.adapted else []
        for candidate in [*(v for v in self._copies.versions if v != version), *base]:
            with self._copies.worn(candidate):
                words = "the base model, without an adapter" if candidate == BASE else f"version {candidate}"
                others[words] = self._score(mine, False)
        assert named is not None
        scored = [
            Scored(
                row.replica,
                [value for value, ours in zip(row.logprobs, row.mask, strict=True) if ours],
                named[index],
                {words: (found or [])[index] for words, found in others.items()},
            )
            for index, row in enumerate(mine)
        ]
        noise = _difference(named, other) if other is not None else _NOISE_OF_BF16
        everybodys = self._ranks.gather((scored, noise))
        if self._judge is None:
            measured = max(_LEAST_NOISE, *(value for _, value in everybodys))
            self._judge = Judge(measured, self._comparable)
        everything = [part for parts, _ in everybodys for part in parts]
        self.error = _mean_error(everything)
        return self._judge.judge(everything)

    @property
    def noise(self) -> float:
        """The noise of numerics as it is known now; NaN before the first round."""
        return self._judge.noise if self._judge is not None else float("nan")


def _difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    differences = [abs(x - y) for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True)]
    return sum(differences) / max(1, len(differences))


def _mean_error(scored: Sequence[Scored]) -> float:
    return _difference([part.said for part in scored], [part.named for part in scored])


def _ending(version: int, findings: Sequence[Mismatch]) -> RunError:
    listed = "; ".join(map(str, findings))
    if all(finding.instead for finding in findings):
        advice = "look at `stoker adapters watch` in the log of these samplers; training resumes with new names"
        return RunError(ExitCode.CRASHED, f"samplers do not serve version {version}: {listed}: {advice}")
    advice = (
        "start the samplers with the base model of this run, the same --temperature and vLLM's `--logprobs-mode "
        "processed_logprobs`"
    )
    return RunError(ExitCode.CONFIG, f"samplers do not serve version {version}: {listed}: {advice}")


def scorer(trainer: Any) -> Score:
    """Return what scores rows with a TRL GRPO trainer's model as it is."""

    def score(rows: Sequence[Row], other_precision: bool) -> list[list[float]] | None:
        device, pad = trainer.accelerator.device, trainer._tokenizer.pad_token_id
        if other_precision and not _computes_in_float32(trainer):
            return None
        prompt, answer = max(len(r.prompt_ids) for r in rows), max(len(r.completion_ids) for r in rows)
        ids = torch.full((len(rows), prompt + answer), pad)
        seen = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            tokens = torch.tensor([*row.prompt_ids, *row.completion_ids])
            begin = prompt - len(row.prompt_ids)
            ids[index, begin : begin + len(tokens)] = tokens
            seen[index, begin : begin + len(tokens)] = 1
        found = _evaluated(trainer, ids.to(device), seen.to(device), answer, other_precision)
        return [
            [value for value, ours in zip(line[: len(row.mask)], row.mask, strict=True) if ours]
            for line, row in zip(found.float().cpu().tolist(), rows, strict=True)
        ]

    return score


def _computes_in_float32(trainer: Any) -> bool:
    unmixed: bool = trainer.accelerator.mixed_precision == "no"
    return unmixed and next(trainer.model.parameters()).dtype == torch.float32


def _evaluated(trainer: Any, ids: torch.Tensor, seen: torch.Tensor, answer: int, in_bf16: bool) -> torch.Tensor:
    from trl.models.utils import disable_gradient_checkpointing

    trainer.model.eval()
    try:
        with (
            torch.no_grad(),
            torch.autocast(ids.device.type, torch.bfloat16, enabled=in_bf16),
            disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs),
        ):
            found, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, seen, answer, batch_size=trainer.args.per_device_train_batch_size
            )
    finally:
        trainer.model.train()
    return found
