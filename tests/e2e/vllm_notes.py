"""A plugin of vLLM for tests: each batch that a worker computes has its lines in the journal of `VLLM_NOTES`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from device_journal import DeviceJournal  # type: ignore[import-not-found]  # it lies beside this file when it runs


def register() -> None:
    """Have the workers of this process note what they compute; vLLM calls this in each of its processes."""
    if "VLLM_NOTES" not in os.environ:
        return
    from vllm.v1.worker.gpu_worker import Worker

    journal = DeviceJournal(Path(os.environ["VLLM_NOTES"]))
    for name in ("execute_model", "sample_tokens"):
        setattr(Worker, name, _noted(journal, getattr(Worker, name)))


def _noted(journal: DeviceJournal, compute: Any) -> Any:
    def noted(*words: Any, **flags: Any) -> Any:
        with journal.use():
            return compute(*words, **flags)

    return noted
