"""What later changes meant to change, each as narrow as it can be and with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.tests.parity.configurations import TRL_METHODS, Configuration
from runner.tests.parity.outcomes import Outcome

from builders import kept

_IMAGE = "a note says that the packages of an image that is not Stoker's were not checked"
_REWARDS = "validate {'args': ['trl.scripts.grpo', '--reward_funcs', 'accuracy_reward']}"
_OUTPUT = "validate {'args': ['--output_dir', '/elsewhere']}"
_CPUS = "validate {'resourcesPerNode': {'requests': {'cpu': '3500m'}, 'limits': {'nvidia.com/gpu': 2}}}"
_NONE = "`null` reads `none`, which TRL takes as no value too"
_PRINTED = "validate stoker plan --output json --max_steps 3"


def _refused(
    name: str, code: int, reason: str, lines: str = "1 of them before, 0 now: about [[]] and []"
) -> dict[str, str]:
    """Return the differences of a TrainJob that was valid and is refused."""
    return {
        f"{name}: code: 0 before, {code} now": reason,
        f"{name}: messages: 0 of them before, 1 now: about [] and [[]]": reason,
        f"{name}: lines: {lines}": reason,
    }


# Difference of one configuration → why.
LINES = {
    **dict.fromkeys(
        ("0931 rloo: code: 64 before, 78 now", "0931 rloo: messages.0: about ['report_to'] before, ['pet_nnodes'] now"),
        "several trackers are a list, so the next problem shows",
    ),
    "0320 reward: messages.1: about ['pet_nproc_per_node'] before, [] now": (
        "where a device is missing, Trainer's default number of processes is not to blame for it"
    ),
    **{
        f"{name}: messages.0: about ['max_steps'] before, [] now": (
            "the example of a config file names a setting that every framework has"
        )
        for name in ("0638 kto", "0684 reward")
    },
    **{
        f"validate trl-distributed of {kind}: lines: 1 of them before, 2 now: about [[]] and [[], []]": _IMAGE
        for kind in ("amd", "intel", "tpu")
    },
    f"{_PRINTED}: lines: 1 of them before, 2 now: about [[]] and [[], []]": "a note says that nothing is trained",
    **_refused(_REWARDS, 78, "the image lacks math_verify, which its pod says too"),
    **_refused(_OUTPUT, 78, "the container's own filesystem is read-only, so its pod cannot write there"),
    **_refused(_CPUS, 64, "the request is above the runtime's limit, so Kubernetes accepts no such pod"),
    **_refused(
        "validate python -um trl.scripts.sft --max_steps 3",
        78,
        "the pod's guard refuses a trainer that is alone in a world of two",
        "2 of them before, 0 now: about [[], []] and []",
    ),
}

# Why → the configurations that are refused for it now, whatever else was wrong with them before.
REFUSED = {
    "TRL reads a mapping or a tuple from a file only, and `parallelism_config` never": (
        *("0061 dpo", "0101 kto", "0120 orpo", "0213 sft", "0223 reward", "0264 dpo", "0299 dpo", "0318 rloo"),
        *("0349 distillation", "0362 reward", "0385 distillation", "0477 distillation", "0481 reward", "0526 orpo"),
        *("0590 dpo", "0746 reward", "0882 dpo", "0922 orpo"),
    ),
    "transformers knows no such tracker": (
        *("0020 reward", "0066 reward", "0151 distillation", "0260 sft", "0282 sft", "0290 sft", "0409 dpo"),
        *("0411 orpo", "0559 kto", "0565 rloo", "0607 kto", "0629 orpo", "0647 grpo", "0778 kto", "0806 kto"),
        *("0844 reward", "0864 orpo", "0896 sft", "0954 reward"),
    ),
    "TRL and transformers know no such word: they refuse it, some at the first step": (
        *("0019 grpo", "0044 rloo", "0088 rloo", "0097 dpo", "0183 dpo", "0220 reward", "0334 sft", "0344 rloo"),
        *("0348 distillation", "0359 dpo", "0378 dpo", "0388 grpo", "0395 kto", "0404 orpo", "0405 grpo"),
        *("0413 grpo", "0462 rloo", "0470 distillation", "0474 dpo", "0499 rloo", "0527 dpo", "0547 orpo"),
        *("0614 sft", "0704 rloo", "0786 reward", "0810 distillation", "0834 dpo", "0839 dpo", "0887 sft"),
        *("0912 orpo", "0928 grpo", "0956 orpo", "0972 sft", "0981 grpo", "0035 sft", "0128 kto", "0234 sft"),
        *("0787 distillation", "0849 sft"),
    ),
    "transformers refuses these schedules and arguments of an optimizer once the model is loaded": (
        *("0065 sft", "0418 kto", "0480 reward", "0500 grpo", "0541 sft", "0633 dpo", "0687 reward", "0694 sft"),
        *("0742 rloo", "0843 sft"),
    ),
    "without evaluations TRL's scripts hand over no data that an evaluation at the start could use": (
        *("0354 reward", "0431 kto"),
    ),
    "`debug` knows two words": ("0093 grpo", "0205 dpo", "0283 sft", "0543 grpo"),
    "TRL takes a number, a list or a mapping of a file as it is, where it needs text": (
        *("0178 rloo", "0221 rloo", "0306 grpo", "0321 dpo", "0407 rloo", "0437 distillation", "0484 reward"),
        *("0608 reward", "0759 reward", "0817 dpo"),
    ),
    _NONE: ("0023 distillation",),
}


@dataclass(frozen=True, slots=True)
class Change:
    """Why the output of configurations is another, and where.

    Attributes:
        why: the reason.
        lines: patterns; each line of a difference fits one of them.
    """

    why: str
    lines: tuple[str, ...]


def _value(before: str, now: str, argument: str) -> tuple[str, ...]:
    """Return patterns of the lines that differ where one setting has another value, as Python and argv write it."""
    return (
        r"plan\.hash: .*",
        rf"plan\.settings\.\d+\.value: {re.escape(before)} before, {re.escape(now)} now",
        rf"plan\.trainer_argv\.\d+: {re.escape(before)} before, {re.escape(argument)} now",
    )


_TRACKERS = Change(
    "several trackers are a list, and no longer one word too many",
    (
        *_value("'tensorboard wandb'", "['tensorboard', 'wandb']", """'["tensorboard", "wandb"]'"""),
        r"messages: .*\['report_to'\].* and (?!.*'report_to').*",
        # What was refused for nothing else is planned.
        *(
            r"code: 64 before, 0 now",
            r"\.lines: \[\] before, '\(not there\)' now",
            r"\.plan: '\(not there\)' before, .*",
        ),
    ),
)
_JSON = Change("`optim_target_modules` reads JSON, as every flag of a list does", _value("""'["a"]'""", "'a'", "'a'"))
_FILE = Change(
    "a file that a flag names must be there",
    (r"plan\.checks: .* gone \[\], new \[{'kind': 'exists', 'path': '/data/x', 'what': 'configuration', [^{]*\]",),
)
_NULL = Change(_NONE, _value("'null'", "'none'", "'none'"))
_MERGED = Change(
    "the merged model is saved where TorchTune writes no adapter that PEFT reads",
    (
        r"plan\.hash: .*",
        r"plan\.settings: .* gone \[{'name': 'save_adapter_weights_only', [^{]*\], new \[\]",
        r"plan\.trainer_argv: .* gone \['save_adapter_weights_only=[Tt]rue'\], new \[\]",
    ),
)
_FLAGS = Change("the tables tell JSON from text, and what only a file can hold", (r"sha256: .*",))
_DATA_SET = r"({'kind': 'exists', [^{}]*'what': 'data set', [^{}]*})?"
_OF_MIXTURE = re.compile(
    rf"plan\.checks: .* gone \[{_DATA_SET}\], new \[{_DATA_SET}\]"
    r"|plan\.checks\.\d+\.path: '/\w+/dataset' before, '/data/c' now"
)
# Configuration → why its output is another, and where.
CHANGED = {
    **{f"flags {method}": _FLAGS for method in TRL_METHODS},
    **dict.fromkeys(
        (
            *("0006 distillation", "0110 orpo", "0191 distillation", "0231 grpo", "0292 rloo", "0340 kto", "0372 grpo"),
            *("0401 reward", "0463 reward", "0573 reward", "0600 kto", "0709 dpo", "0711 distillation", "0850 kto"),
            *("0851 distillation", "0892 sft", "0966 rloo"),
        ),
        _TRACKERS,
    ),
    **dict.fromkeys(("0905 kto", "0925 reward", "0994 reward"), _JSON),
    **dict.fromkeys(("0238 distillation", "0482 distillation", "0950 dpo"), _FILE),
    "0867 kto": _NULL,
    **dict.fromkeys(("0250 qlora", "0861 lora", "0923 lora"), _MERGED),
}


def is_intended(configuration: str, line: str, before: Outcome, after: Outcome) -> bool:
    """Return whether a difference between a configuration's outcomes was meant."""
    refused = any(configuration in names for names in REFUSED.values())
    return (
        f"{configuration}: {line}" in LINES
        or (configuration in CHANGED and _fits(CHANGED[configuration], line))
        or (refused and _refuses_more(before, after))
        or _is_for_mixtures(line, after)
    )


def _fits(change: Change, line: str) -> bool:
    return any(re.fullmatch(pattern, line) for pattern in change.lines)


def _is_for_mixtures(line: str, after: Outcome) -> bool:
    """Return whether the folder of a mixture of data sets is looked for, and no more the data set that it replaces."""
    return bool(_OF_MIXTURE.fullmatch(line)) and "datasets" in after["plan"]["fingerprint"]["data"]


def _refuses_more(before: Outcome, after: Outcome) -> bool:
    """Return whether a run is refused for its arguments now, for one more reason than before."""
    if after["code"] != 64 or before["code"] != 64:
        return bool(after["code"] == 64)
    kept = iter(after["messages"])
    same = all(message in kept for message in before["messages"])
    return same and len(after["messages"]) > len(before["messages"])


def with_workspace(recorded: Configuration) -> Configuration:
    """Return a configuration whose pods have a workspace that may hold model and data.

    In the record, nobody asks what a new claim holds: an empty one is refused since.
    """
    if recorded.arguments[0] != "validate":
        return recorded
    files = dict(_filled(recorded))
    return Configuration(recorded.name, recorded.arguments, recorded.env, files, recorded.machine)


def _filled(recorded: Configuration) -> Iterator[tuple[str, str]]:
    for name, text in recorded.files.items():
        is_runtime = name.endswith("-runtime.json")
        yield name, json.dumps(kept(json.loads(text))) if is_runtime else text
