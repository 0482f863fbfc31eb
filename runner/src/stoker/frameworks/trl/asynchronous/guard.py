"""The identity guard in the trainer: picks samples, scores them with the versions that wrote them, and ends the run.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.frameworks.trl.asynchronous.handout import Ranks
from stoker.frameworks.trl.asynchronous.identity import LEAST_TOKENS, Judge, Mismatch, Scored
from stoker.frameworks.trl.asynchronous.rounds import Rounds
from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.frameworks.trl.asynchronous.snapshot import BASE, Copies

# Tokens and samples to score while every sampler is judged once, and the most samples of one sampler and of one look.
_TOKENS, _LEAST_ROWS, _MOST_ROWS = 1024, 8, 128
# bf16 has 8 bits: two correct implementations of a model differ by about this much per token.
_NOISE_OF_BF16 = 0.02
# Even where the trainer's own two computations agree better.
_LEAST_NOISE = 1e-3

# How many times as many steps may have nothing to look at before it says so.
_BLIND = 4

# Log-probabilities of the answers of rows by the model as it is. With True: in the other precision, None without one.
Score = Callable[[Sequence[Row], bool], list[list[float]] | None]


class IdentityGuard:
    """Ends the run if samplers do not serve the policy they name.

    It looks at each sampler once in `every` steps or more often, and at one that is at fault again as soon as there are
    samples of it: only what is found twice counts.

    Args:
        every: within how many steps it must find a fault.
        comparable: False if the log-probabilities of sampler and trainer differ by what the user set.
        copies: versions of what is trained.
        ranks: all ranks; each scores a part.
        score: scores rows with the model as it is.
    """

    def __init__(self, every: int, comparable: bool, copies: Copies, ranks: Ranks, score: Score) -> None:
        self._every = every
        self._comparable = comparable
        self._copies = copies
        self._ranks = ranks
        self._score = score
        self._rounds = Rounds(every)
        self._judge: Judge | None = None
        self._blind = 0  # steps in a row that had nothing to look at
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
        comes = newest if newest >= step - lag else -1
        return self._rounds.lack(step, step + (1 if self._hears else lag), comes)

    def hear(self, probed: Sequence[Row]) -> None:
        """Take rows that one version wrote alone, for the next look. Every rank calls this with the same."""
        self._probed = probed
        self._hears = self._hears or bool(probed)

    def look(self, step: int, rows: Sequence[Row]) -> None:
        """Check the samples of a step, trained or skipped. Every rank calls this with the rows of all ranks.

        Raises:
            RunError: samplers serve something else (70: another version; 78: another model or another way to sample).
        """
        probed, self._probed = self._probed, ()
        self._rounds.see(step, {row.replica for row in rows})
        whole = self._whole([*rows, *probed])
        self._blind = 0 if whole else self._blind + 1
        if self._blind == _BLIND * self._every:
            say(
                f"step {step}: for {_BLIND} times --guard_every steps no sampler has written {LEAST_TOKENS} tokens of "
                "one version alone, so the identity guard cannot compare: raise --publish_every, --publish_seconds or "
                "--num_generations"
            )
        due = [part for replica, part in whole.items() if self._rounds.is_due(replica, step, self._rare(part))]
        if due:
            self._judged(step, self._picked(due, max(len(due), self._rounds.present(step))))

    def _whole(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        """Return rows by sampler: what one version wrote, the newest one of which there is enough to judge it."""
        versions = self._copies.versions
        found: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if row.oldest == row.newest and row.oldest in versions:
                found.setdefault((row.replica, row.oldest), []).append(row)
        return {place[0]: found[place] for place in sorted(found) if _suffice(found[place])}

    def _rare(self, part: Sequence[Row]) -> int:
        """Return the version of rows where there is seldom a copy of what wrote some; else -1."""
        return part[0].oldest if self._copies.scarce else -1

    def _picked(self, due: Sequence[Sequence[Row]], present: int) -> list[Row]:
        """Return each sampler's share of the rows to score, and as many for each rank."""
        picked: list[Row] = []
        for part in due:
            if len(picked) < _MOST_ROWS:  # the others are due in the next step too
                picked += _share(part, present)
        # A shared model computes on all ranks at once, so that each needs as many rows.
        while len(picked) % self._ranks.size:
            picked.append(picked[0])
        return picked

    def _judged(self, step: int, picked: Sequence[Row]) -> None:
        versions = {row.replica: row.oldest for row in picked}
        findings = self._round(picked)
        twice = self._rounds.judged(step, versions, {finding.replica for finding in findings})
        if twice:
            raise _ending(versions, [finding for finding in findings if finding.replica in twice])
        if findings:
            say(f"step {step}: {findings[0]}; looking again at its next samples")

    def _round(self, picked: Sequence[Row]) -> list[Mismatch]:
        mine = picked[self._ranks.rank :: self._ranks.size]
        scores = {}
        for version in [*self._copies.versions, *([BASE] if self._copies.adapted else [])]:
            with self._copies.worn(version):
                scores[version] = self._scored(mine)
        noise = _NOISE_OF_BF16
        if self._judge is None:
            with self._copies.worn(picked[0].oldest):
                other = self._score(mine, True)
            if other is not None:
                noise = _difference(scores[picked[0].oldest], other)
        scored = [
            Scored(
                row.replica,
                [value for value, ours in zip(row.logprobs, row.mask, strict=True) if ours],
                scores[row.oldest][index],
                {_words(version): found[index] for version, found in scores.items() if version != row.oldest},
            )
            for index, row in enumerate(mine)
        ]
        everybodys = self._ranks.gather((scored, noise))
        if self._judge is None:
            measured = max(_LEAST_NOISE, *(value for _, value in everybodys))
            self._judge = Judge(measured, self._comparable)
        everything = [part for parts, _ in everybodys for part in parts]
        self.error = _mean_error(everything)
        return self._judge.judge(everything)

    def _scored(self, rows: Sequence[Row]) -> list[list[float]]:
        found = self._score(rows, False)
        assert found is not None, "only another precision may be missing"
        return found

    @property
    def noise(self) -> float:
        """The noise of numerics as it is known now; NaN before the first round."""
        return self._judge.noise if self._judge is not None else float("nan")


def _tokens(row: Row) -> int:
    return sum(row.mask)


def _suffice(rows: Sequence[Row]) -> bool:
    """Return whether a sampler can be judged by these rows; of many the first ones say so."""
    return any(tokens >= LEAST_TOKENS for tokens in accumulate(map(_tokens, rows)))


def _share(rows: Sequence[Row], present: int) -> list[Row]:
    """Return as many rows of one sampler as make its share and suffice to judge it."""
    taken: list[Row] = []
    tokens = 0
    for row in reversed(rows):  # what was asked for is last, and short
        enough = tokens >= max(_TOKENS / present, LEAST_TOKENS) and len(taken) >= _LEAST_ROWS / present
        if enough or len(taken) == _MOST_ROWS:
            break
        taken.append(row)
        tokens += _tokens(row)
    return taken


def _words(version: int) -> str:
    return "the base model, without an adapter" if version == BASE else f"version {version}"


def _difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    differences = [abs(x - y) for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True)]
    return sum(differences) / max(1, len(differences))


def _mean_error(scored: Sequence[Scored]) -> float:
    return _difference([part.said for part in scored], [part.named for part in scored])


def _ending(versions: Mapping[str, int], findings: Sequence[Mismatch]) -> RunError:
    named = sorted({versions[finding.replica] for finding in findings})
    what = f"samplers do not serve {' and '.join(map(_words, named))}: {'; '.join(map(str, findings))}"
    if all(finding.instead for finding in findings):
        advice = "look at `stoker adapters watch` in the log of these samplers; training resumes with new names"
        return RunError(ExitCode.CRASHED, f"{what}: {advice}")
    advice = (
        "start the samplers with the base model of this run, the same --temperature and vLLM's `--logprobs-mode "
        "processed_logprobs`"
    )
    return RunError(ExitCode.CONFIG, f"{what}: {advice}")


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
