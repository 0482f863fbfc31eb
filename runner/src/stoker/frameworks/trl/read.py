"""Reads what a user wrote for TRL: a command line of flags, and the file that `--config` names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.frameworks import command_line
from stoker.frameworks.trl.file_checks import config_variables
from stoker.frameworks.trl.flags import METHODS
from stoker.plan.interfaces import Command, ConfigFile, Reader

MODULE_PREFIX = "trl.scripts."
# Methods for which TRL has a trainer but no script, and the one that is ours.
_OWN_SCRIPTS = {"orpo": "stoker.scripts.orpo", "grpo_async": "stoker.scripts.grpo_async"}
# Keys of a `--config` file that are not flags (trl/scripts/utils.py: TrlParser, DatasetMixtureConfig).
_CONFIG_SECTIONS = ("env", "datasets")


def module_of(method: str) -> str:
    """Return TRL's script for a method, or Stoker's if TRL has none."""
    return _OWN_SCRIPTS.get(method, MODULE_PREFIX + method)


def method_of(word: str) -> str | None:
    """Return the last part of a module of TRL's scripts, for example `sft` for `trl.scripts.sft`.

    Stoker's scripts can be named like TRL's: `trl.scripts.orpo`.
    """
    for method, module in _OWN_SCRIPTS.items():
        if word == module:
            return method
    return word.removeprefix(MODULE_PREFIX) if word.startswith(MODULE_PREFIX) else None


class TRLReader(Reader):
    """Reads TRL's command line and config files."""

    def read(self, args: Sequence[str]) -> Command:
        """Read `[trl.scripts.<method>] --flag value …`."""
        return command_line.read_command(args, METHODS, method_of, module_of)

    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Read a file of flags, with sections for variables and a mixture of data sets."""
        content = content or {}
        # TRL ignores unknown keys, and would then train with a default instead of a misspelled key's value.
        flags = {key: value for key, value in content.items() if key not in _CONFIG_SECTIONS}
        mixture = content.get("datasets")
        return ConfigFile(
            named,
            command_line.config_flags(flags),
            command_line.keys_with_values(content),
            config_variables(content),
            # Another mixture is other data, so it belongs to the fingerprint.
            {} if mixture is None else {"datasets": json.dumps(mixture, sort_keys=True, default=str)},
        )
