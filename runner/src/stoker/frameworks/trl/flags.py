"""The flags of TRL's methods, generated from TRL's own parsers (`make generate-flags`), and those that Stoker adds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources

from stoker.frameworks.trl.dataset_formats import own_flags
from stoker.frameworks.trl.former_flags import DEPRECATED, REMOVED, RENAMED, TRANSLATED
from stoker.plan.arguments import Flag, FlagTable

VERSION = "1.16.0"
METHODS = ("sft", "dpo", "kto", "orpo", "grpo", "rloo", "reward", "distillation", "grpo_async")

_NAMED = re.compile(r"--([a-z0-9_]+)")
_RESERVED = {
    "resume_from_checkpoint": "leave it out and set STOKER_RESUME to auto, never or require",
    "enable_jit_checkpoint": "leave it out, all ranks save the same step when a run is stopped",
    "local_rank": "leave it out, torchrun sets the rank of each process",
}


@cache
def flag_table(method: str) -> FlagTable:
    """Return the flags of a method's script."""
    data = json.loads(
        resources.files(__package__).joinpath(f"flags/trl-{VERSION}/{method}.json").read_text(encoding="utf-8")
    )
    flags = {
        name: Flag(
            name,
            entry["type"],
            entry.get("many", False),
            tuple(entry.get("choices", ())),
            entry.get("default"),
            entry.get("help", ""),
            entry.get("alone", False),
            entry.get("none", False),
            entry.get("listed", False),
        )
        for name, entry in data["flags"].items()
    }
    flags |= own_flags(method)
    others = partial(_other_methods, method)
    translated = TRANSLATED.get(method, {})
    return FlagTable(
        *(data["trainer"], method, flags, RENAMED, _removed(method, flags), _RESERVED, DEPRECATED, others),
        translated=translated,
    )


def _removed(method: str, flags: Mapping[str, Flag]) -> dict[str, str]:
    """Return what to do instead of each flag that is gone, with flags that the method has."""
    return {
        name: advice if flags.keys() >= {*_NAMED.findall(advice)} else f"leave it out, {method} has no flag for it"
        for name, advice in REMOVED.items()
    }


def _other_methods(method: str, flag: str) -> tuple[str, ...]:
    return tuple(other for other in METHODS if other != method and flag in flag_table(other).flags)
