"""The metrics of a run: a file that training writes, and whoever looks at the run reads.

schemas/metrics-v1.json describes a line. There is one line for each step that something is known of, in the order of
the steps.
"""

from __future__ import annotations

import math
from typing import Any

METRICS, SAMPLES, REPORT = "metrics.jsonl", "samples.jsonl", "report.html"

# Names that all frameworks share; other names are the framework's own. Evaluations have the prefix.
LOSS, LEARNING_RATE, GRADIENT_NORM = "loss", "learning_rate", "grad_norm"
# Those of all processes since the start, where the framework counts them.
TOKENS = "num_tokens"
TOKENS_PER_SECOND, PEAK_MEMORY = "tokens_per_second", "peak_memory_gib"
EVALUATION = "eval_"


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: numbers that are not finite become null, also in lists."""
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None
