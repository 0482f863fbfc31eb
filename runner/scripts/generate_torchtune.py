"""Writes what TorchTune has (recipes, configs, components) as data, from the package itself.

Run with the Python of the image's environment: `python runner/scripts/generate_torchtune.py [--check]`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parent.parent / "src/stoker/frameworks/torchtune/flags"
sys.path[:0] = [str(FLAGS.parents[3]), str(FLAGS.parents[5])]

import torchtune  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from runner.scripts.generated import write  # noqa: E402
from torchtune._recipe_registry import get_all_recipes  # noqa: E402

from stoker.frameworks.torchtune.keys import RECIPES as NAMES  # noqa: E402
from stoker.frameworks.torchtune.keys import VERSION  # noqa: E402

RECIPES = Path(torchtune.__file__).parent.parent / "recipes"
# Where the components lie that a config may name.
MODULES = ("torchtune.datasets", "torchtune.modules.loss", "torchtune.rlhf.loss", "torchtune.training",
           "torchtune.training.metric_logging", "torchtune.training.lr_schedulers", "torch.optim")  # fmt: skip


def models() -> list[str]:
    """Return TorchTune's model packages that can be imported: those for pictures need torchvision."""
    package = importlib.import_module("torchtune.models")
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        try:
            importlib.import_module(f"torchtune.models.{module.name}")
        except ModuleNotFoundError:
            continue
        found.append(module.name)
    return found


def recipes() -> dict[str, Any]:
    """Return every recipe of a method: its file, the names of its configs, and the keys it reads."""
    wanted = {name for pair in NAMES.values() for name in pair}
    return {recipe.name: _recipe(recipe) for recipe in get_all_recipes() if recipe.name in wanted}


def _recipe(recipe: Any) -> dict[str, Any]:
    tree = ast.parse((RECIPES / recipe.file_path).read_text())
    needed, read = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cfg":
            needed.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "cfg" and isinstance(node.args[0], ast.Constant):
                read.add(node.args[0].value)
    # Read through a constant (PROFILER_KEY), or by the client of the checkpoints.
    read |= {"profiler", "enable_async_checkpointing", "optimizer_in_bwd"}
    needed -= {"get"}
    return {
        "file": recipe.file_path,
        "configs": {c.name: c.file_path for c in recipe.configs if c.name.split("/")[0] in models()},
        "needs": sorted(needed),
        "reads": sorted(read - needed),
    }


def configs(known: dict[str, Any]) -> dict[str, Any]:
    """Return every config of those recipes as flat keys with their values."""
    files = {name: file for recipe in known.values() for name, file in recipe["configs"].items()}
    found: dict[str, Any] = {}
    for name, file in sorted(files.items()):
        content = OmegaConf.to_container(OmegaConf.load(RECIPES / "configs" / file), resolve=False)
        found[name] = dict(_flat(content))
    return found


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def components() -> dict[str, Any]:
    """Return the parameters of every component by its dotted path; `**` if it takes any others too."""
    names = [*MODULES, *(f"torchtune.models.{name}" for name in models())]
    found = {}
    for name in names:
        module = importlib.import_module(name)
        for member in getattr(module, "__all__", None) or dir(module):
            thing = getattr(module, member, None)
            made = thing.func if isinstance(thing, functools.partial) else thing
            own = (getattr(made, "__module__", None) or "").startswith(name.split(".")[0])
            if (
                callable(thing)
                and own
                and not member.startswith("_")
                and (parameters := _parameters(thing)) is not None
            ):
                found[f"{name}.{member}"] = parameters
    return dict(sorted(found.items()))


def _parameters(thing: Any) -> list[str] | None:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    listed = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return listed + (["**"] if any(p.kind is p.VAR_KEYWORD for p in parameters) else [])


def files() -> Iterator[tuple[Path, str]]:
    """Make each kind's file."""
    known = recipes()
    for name, content in (("recipes", known), ("configs", configs(known)), ("components", components())):
        rows = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
        yield FLAGS / f"torchtune-{VERSION}" / f"{name}.json", "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    raise SystemExit(write(__doc__, "torchtune", VERSION, files))
