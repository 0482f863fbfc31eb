"""The example for verifiers with the real package: `python verifiers_cases.py` prints what it saw as JSON.

Runs in an environment with `verifiers`. PYTHONPATH has the example's folder; the tasksets lie beside this file.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

EXAMPLE: Any = importlib.import_module("verifiers_environment")


def judged(taskset: str, answers: dict[int, list[str]]) -> list[float | None]:
    """Return the rewards of answers to the rows of a taskset, by row, as TRL asks for them.

    Args:
        taskset: its id.
        answers: the answers to each row.
    """
    rows = EXAMPLE.rows(taskset)
    factory = EXAMPLE.of(taskset=taskset)
    prompts: list[Any] = []
    completions: list[Any] = []
    environments: list[Any] = []
    for number, texts in answers.items():
        for text in texts:
            environment = factory()
            if environment.reset(**rows[number]) is not None:
                raise AssertionError("the prompt of a row is whole without what an environment would add to it")
            prompts.append(rows[number]["prompt"])
            completions.append([{"role": "assistant", "content": text}])
            environments.append(environment)
    return asyncio.run(EXAMPLE.judge(prompts, completions, environments=environments))


def main() -> None:
    """Print the rows of a taskset, and what its tasks and those of another say of answers."""
    seen = {
        "rows": EXAMPLE.rows("spoken-sums"),
        "judged": judged("spoken-sums", {0: ["4", "four", "6"], 1: ["6"]}),
        "contained": judged("contained-sums", {0: ["4"]}),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
