"""Reads what a user wrote for TorchTune: `[recipe] [--config name] key=value …`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.frameworks.torchtune.keys import RECIPES
from stoker.plan.interfaces import Command, ConfigFile, Reader


def method_of(word: str) -> str | None:
    """Return the method of a recipe, for example `full` for `full_finetune_distributed`; None for any other word."""
    return next((method for method, recipes in RECIPES.items() if word in recipes), None)


def is_own_file(config: str) -> bool:
    """Return whether a config is a user's file, not the name of one of TorchTune's configs."""
    return config.endswith((".yaml", ".yml"))


class TorchTuneReader(Reader):
    """Reads TorchTune's command line and config files."""

    def read(self, args: Sequence[str]) -> Command:
        """Read `[recipe] [--config name] key=value …`."""
        words = list(args)
        method = method_of(words[0]) if words else None
        if method is not None:
            words.pop(0)
        config = None
        values: dict[str, tuple[str, ...]] = {}
        problems = []
        if words and not words[0].startswith(("-", "~")) and "=" not in words[0] and method is None:
            problems.append(_not_a_recipe(words.pop(0)))
        while words:
            word = words.pop(0)
            key, equals, value = word.partition("=")
            if key == "--config":
                config = value if equals else (words.pop(0) if words else "")
                if not config:
                    problems.append("--config needs a value: write --config llama3_2/1B, or the path of a file")
            elif word.startswith("~"):
                values[key] = ("",)
            elif word.startswith("-") or not equals:
                problems.append(f"{word!r} is not a setting: write key=value, for example batch_size=2")
            elif "=" in value:
                problems.append(f"{word!r} has a second '=', which TorchTune cannot read: write it in a --config file")
            else:
                values[key] = (value,)
        return Command(method, config or None, values, tuple(problems))

    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Return the path of a user's config; its values are the defaults that flags override, not flags."""
        return ConfigFile(named if is_own_file(named) else None)


def _not_a_recipe(word: str) -> str:
    recipes = [recipe for pair in RECIPES.values() for recipe in pair if recipe is not None]
    close = difflib.get_close_matches(word, recipes, n=1, cutoff=0.95)
    if word in RECIPES:
        close = [RECIPES[word][1]]
    advice = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(recipes)}"
    return f"{word!r} is not a recipe that stoker launches: {advice}"
