"""A taskset of verifiers whose only reward needs a container."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["ContainedSums"]


class ContainedTask(vf.Task[vf.TaskData]):
    """Say the result to a container."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def compiled(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """Reward what a container says."""
        raise NotImplementedError


class ContainedSums(vf.Taskset[ContainedTask, vf.TasksetConfig]):
    """One sum."""

    def load(self) -> list[ContainedTask]:
        """Return it."""
        return [ContainedTask(vf.TaskData(idx=0, prompt="2+2?"), self.config.task)]
