"""What a user wrote for TRL: a command line of flags, and the file that `--config` names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.frameworks import command_line
from stoker.frameworks.trl.checks import config_variables
from stoker.frameworks.trl.flags import METHODS
from stoker.plan.framework import Command, ConfigFile, Reader

MODULE_PREFIX = "trl.scripts."
# Methods whose trainer TRL has without a script.
_OWN_SCRIPTS = {"orpo": "stoker.scripts.orpo"}
# Keys of a `--config` file that are no flags (trl/scripts/utils.py: TrlParser, DatasetMixtureConfig).
_CONFIG_SECTIONS = ("env", "datasets")


def module_of(method: str) -> str:
    """Return TRL's module for a method, or ours where TRL has the trainer alone."""
    return _OWN_SCRIPTS.get(method, MODULE_PREFIX + method)


def method_of(word: str) -> str | None:
    """Return `sft` for `trl.scripts.sft`; any other module of TRL's scripts by its last part too.

    A script of ours is named as if it were TRL's.
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
        # TRL ignores keys of the file that it does not know; a typing error must not train with a default.
        flags = {key: value for key, value in content.items() if key not in _CONFIG_SECTIONS}
        mixture = content.get("datasets")
        return ConfigFile(
            named,
            command_line.config_flags(flags),
            command_line.keys_with_values(content),
            config_variables(content),
            # A mixture is no flag, but another mixture is other data.
            {} if mixture is None else {"datasets": json.dumps(mixture, sort_keys=True, default=str)},
        )
