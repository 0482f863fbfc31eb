"""A taskset of verifiers: sums, with two rewards of different weights and one that needs a container."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["SpokenSums"]


class Sum(vf.TaskData):
    """A sum and its result."""

    answer: str


class SumTask(vf.Task[Sum]):
    """Say the result."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def exact(self, trace: vf.Trace) -> float:
        """Reward the right answer."""
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)  # type: ignore[untyped-decorator]
    async def brief(self, trace: vf.Trace) -> float:
        """Reward an answer of one character."""
        return float(len(trace.last_reply) == 1)

    @vf.reward  # type: ignore[untyped-decorator]
    async def compiled(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """Reward what a container says."""
        raise NotImplementedError


class SpokenSums(vf.Taskset[SumTask, vf.TasksetConfig]):
    """Two sums."""

    def load(self) -> list[SumTask]:
        """Return them."""
        asked = [("2+2?", "4"), ("3+3?", "6")]
        return [
            SumTask(Sum(idx=n, prompt=prompt, system_prompt="Be short.", answer=answer), self.config.task)
            for n, (prompt, answer) in enumerate(asked)
        ]
