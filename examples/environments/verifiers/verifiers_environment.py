"""A taskset of verifiers as TRL's `environment_factory`, for the method grpo_async; its rewards as a reward function.

`python verifiers_environment.py TASKSET > rows.jsonl` writes the data set: each task's prompt and number.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.state import state_cls


class TaskOf:
    """The task of one sample.

    Args:
        tasks: all tasks, in the order of their numbers.

    Attributes:
        task: the sample's.
    """

    def __init__(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks
        self.task: Any = None

    def reset(self, task: int, **row: Any) -> None:
        """Take the task of a row."""
        self.task = self._tasks[task]


def tasks(taskset: str) -> list[Any]:
    """Return the tasks of a taskset by its id."""
    return list(vf.load_taskset(vf.taskset_config_type(taskset)(id=taskset)))


def of(taskset: str) -> Callable[[], TaskOf]:
    """Return a factory for the tasks of a taskset."""
    return functools.partial(TaskOf, tasks(taskset))


async def judge(prompts: Any, completions: Any, environments: Sequence[TaskOf], **columns: Any) -> list[float | None]:
    """Return the weighted sum of the task's own rewards and judges for each completion."""
    samples = zip(prompts, completions, environments, strict=True)
    return list(await asyncio.gather(*(_score(prompt + said, own.task) for prompt, said, own in samples)))


async def _score(messages: Sequence[dict[str, Any]], task: Any) -> float | None:
    told = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=told, agent=vf.AgentInfo(config=vf.AgentConfig()), state=state_cls(type(task))())
    for at, message in enumerate(messages):
        parent = at - 1 if at else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message["role"] == "assistant"))
    await task.score(trace)  # rewards that need a container are left out
    return trace.reward if any(reward is not None for reward in trace.rewards.values()) else None


def rows(taskset: str) -> list[dict[str, Any]]:
    """Return the rows of the data set."""
    found = []
    for number, task in enumerate(tasks(taskset)):
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        found.append({"prompt": [*system, {"role": "user", "content": task.data.prompt_text}], "task": number})
    return found


if __name__ == "__main__":
    for row in rows(sys.argv[1]):
        print(json.dumps(row))
