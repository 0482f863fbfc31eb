"""What scripts of cases share that run in an environment with the trainers."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy
import torch

from stoker.contract.exits import ExitCode
from stoker.lab import LabError


def report(cases: Iterable[Callable[[], None]]) -> None:
    """Run cases, and print the tracebacks of those that fail."""
    failed = {}
    for case in cases:
        try:
            case()
        except Exception:  # noqa: BLE001 - whatever it is, the case fails
            failed[case.__name__] = traceback.format_exc()
    print(json.dumps(failed))


def drawn() -> list[float]:
    """Return the next random number of each kind."""
    return [random.random(), float(numpy.random.random()), float(torch.rand(1))]


def refused(what: Callable[[], object], told: str, code: ExitCode | None = None) -> None:
    """Fail unless something is refused with one message."""
    try:
        what()
    except LabError as error:
        found = error
    else:
        raise AssertionError(f"not refused: {told}")
    assert told in str(found), str(found)
    assert code is None or found.code is code


def interrupted(llm: Any, ask: Callable[[], object]) -> None:
    """Interrupt a call of a `vllm.LLM` before the second step of its engine."""
    engine, steps = llm.llm_engine, iter((True, False))
    step = engine.step

    def once() -> Any:
        if next(steps):
            return step()
        raise KeyboardInterrupt

    with mock.patch.object(engine, "step", once):
        try:
            ask()
        except KeyboardInterrupt:
            return
    raise AssertionError("it came to its end")
