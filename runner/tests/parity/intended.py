"""What later changes meant to change, each as narrow as it can be and with its reason."""

from __future__ import annotations

from runner.tests.parity.outcomes import Outcome

from stoker.frameworks import get_framework

_NOT_CHECKED = "a note says that the packages of an image that is not Stoker's were not checked"
_REWARD = "validate {'args': ['trl.scripts.grpo', '--reward_funcs', 'accuracy_reward']}"
_LACKED = "the image lacks math_verify, which its pod says too"
# Difference of one configuration → why.
LINES = {
    **{
        f"validate trl-distributed of {kind}: lines: 1 of them before, 2 now: about [[]] and [[], []]": _NOT_CHECKED
        for kind in ("amd", "intel", "tpu")
    },
    f"{_REWARD}: code: 0 before, 78 now": _LACKED,
    f"{_REWARD}: messages: 0 of them before, 1 now: about [] and [[]]": _LACKED,
    f"{_REWARD}: lines: 1 of them before, 0 now: about [[]] and []": _LACKED,
    "0320 reward: messages.1: about ['pet_nproc_per_node'] before, [] now": (
        "where a device is missing, Trainer's default number of processes is not to blame for it"
    ),
}

# Why → the configurations that are refused for it now, whatever else was wrong with them before.
REFUSED = {
    "TRL reads a mapping or a tuple from a file only, and `parallelism_config` never": (
        *("0061 dpo", "0101 kto", "0120 orpo", "0213 sft", "0223 reward", "0264 dpo", "0299 dpo", "0318 rloo"),
        *("0349 distillation", "0362 reward", "0385 distillation", "0477 distillation", "0481 reward", "0526 orpo"),
        *("0590 dpo", "0746 reward", "0882 dpo", "0922 orpo"),
    ),
    "`debug` knows two words": ("0093 grpo", "0205 dpo", "0283 sft", "0543 grpo"),
    "TRL takes a number, a list or a mapping of a file as it is, where it needs text": (
        *("0178 rloo", "0221 rloo", "0306 grpo", "0321 dpo", "0407 rloo", "0437 distillation", "0484 reward"),
        *("0608 reward", "0759 reward", "0817 dpo"),
    ),
}
# Configuration → why its output is another.
CHANGED = {
    **{
        f"flags {method}": "the tables tell JSON from text, and what only a file can hold"
        for method in get_framework("trl").methods
    },
    **dict.fromkeys(("0023 distillation", "0867 kto"), "`null` reads `none`, which TRL takes as no value too"),
}


def is_intended(configuration: str, line: str, before: Outcome, after: Outcome) -> bool:
    """Return whether a difference between a configuration's outcomes was meant."""
    refused = any(configuration in names for names in REFUSED.values())
    return f"{configuration}: {line}" in LINES or configuration in CHANGED or (refused and _refuses_more(before, after))


def _refuses_more(before: Outcome, after: Outcome) -> bool:
    """Return whether a run is refused for its arguments now, for one more reason than before."""
    if after["code"] != 64 or before["code"] != 64:
        return bool(after["code"] == 64)
    kept = iter(after["messages"])
    same = all(message in kept for message in before["messages"])
    return same and len(after["messages"]) > len(before["messages"])
