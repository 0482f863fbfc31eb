"""Values with which each chart renders objects of every kind that it has, and writes every key of its own."""

from __future__ import annotations

from charts.helm import STOKER_BOARD, TRAINING_RUNTIMES, VLLM_SERVING

VALUES = {
    TRAINING_RUNTIMES: TRAINING_RUNTIMES / "ci" / "policies-values.yaml",
    VLLM_SERVING: VLLM_SERVING / "ci" / "full-values.yaml",
    STOKER_BOARD: STOKER_BOARD / "ci" / "full-values.yaml",
}
MORE = {
    TRAINING_RUNTIMES: (
        "keep=true",
        "serviceAccount.create=true",
        'monitoring={"podMonitor": true, "rules": true, "dashboard": true}',
        'runtimes.trl-distributed.deprecated.replacement="trl-qwen3-8b"',
        'runtimes.trl-grpo-async={"enabled": true, "accelerator": "nvidia-dra", "samplers": {"slice": {"lease": "a"}}}',
    ),
    VLLM_SERVING: ("serviceAccount.create=true", "fleet.enabled=true", "rl.adaptersOnly=true"),
    STOKER_BOARD: (),
}
"""Settings beside these values."""
