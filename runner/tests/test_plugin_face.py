"""`stoker.plugin` is all that a plugin imports: exactly these names, each explained, none missing."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker import plugin

ROOT = Path(__file__).parents[2]

# Plugins import these names: a name may join the list, but none may leave it.
CONSTANTS = {"DATASET", "MODEL"}
CLASSES = {
    *("Asked", "Command", "ConfigFile", "Dataset", "DatasetColumns", "Decision", "Estimator"),
    *("ExitCode", "Flag", "FlagNames"),
    *("FlagTable", "Framework", "Initialized", "Input", "Job", "LLMBackend", "Layer", "ModelFolder", "Options"),
    *("Outcome", "RunError", "Setting", "StopRequested", "TrainingFramework"),
}
FUNCTIONS = {
    *("any_rank", "barrier", "dataset_folder", "register_backend", "register_framework", "resolve", "seal"),
    *("split_args",),
}
NAMES = CONSTANTS | CLASSES | FUNCTIONS
# Types of ours that a plugin is given by what it imports, and never has to name.
GIVEN = {
    "Account": "Decision.accounts_needed",
    "Guard": "Job.guard",
    "Machine": "Asked.machine",
    "ModelShape": "ModelFolder.shape",
    "Plan": "Job.plan",
    "Pulse": "Job.pulse",
    "Resolution": "what resolve returns",
    "SamplerRequest": "Decision.samplers, for frameworks with samplers of their own",
    "Way": "what Estimator.ways returns, where a plugin can tell",
    "Stored": "Initialized.model and .dataset",
}


def test_the_face_has_exactly_these_names() -> None:
    assert set(plugin.__all__) == NAMES
    assert {name for name in vars(plugin) if not name.startswith("_")} - {"annotations"} == NAMES


@pytest.mark.parametrize("name", sorted(CLASSES | FUNCTIONS))
def test_each_says_what_it_is(name: str) -> None:
    text = vars(plugin)[name].__doc__ or ""
    # A dataclass without a docstring gets its signature as one.
    assert text.strip(), f"{name} has no docstring"
    assert not text.startswith(f"{name}("), f"{name} has no docstring"


def test_the_reference_lists_each_once() -> None:
    page = (ROOT / "docs/reference/plugin.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(NAMES)


def hints(name: str) -> Iterator[object]:
    """Yield the types in what a name of the face takes, returns or holds."""
    member = vars(plugin)[name]
    functions = [member] if name in FUNCTIONS else []
    if inspect.isclass(member):
        functions += [value for key, value in vars(member).items() if inspect.isfunction(value) and key[0] != "_"]
        if dataclasses.is_dataclass(member) or inspect.isabstract(member):
            yield from typing.get_type_hints(member).values()
    for function in functions:
        if function.__module__.startswith("stoker.") and function is not plugin.any_rank:  # takes a torch.device
            yield from typing.get_type_hints(function).values()


def ours(hint: object) -> Iterator[str]:
    """Yield the classes of the runner in a type."""
    if inspect.isclass(hint) and hint.__module__.startswith("stoker."):
        yield hint.__name__
    for part in typing.get_args(hint):
        yield from (found for item in (part if isinstance(part, list) else [part]) for found in ours(item))


def test_a_plugin_can_name_every_type_it_has_to_write() -> None:
    needed = {found for name in sorted(CLASSES | FUNCTIONS) for hint in hints(name) for found in ours(hint)}
    assert needed - NAMES == GIVEN.keys()


def test_the_example_imports_nothing_else_of_stoker() -> None:
    for path in sorted((ROOT / "examples/backend-plugin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found = {name for name in modules if name.split(".")[0] == "stoker"}
            assert found <= {"stoker.plugin"}, f"{path.name}, line {getattr(node, 'lineno', 0)}"
        strings = set(re.findall(r'"(stoker\.[a-z.]+)"', path.read_text()))
        assert strings <= {"stoker.training.transformers"}, path.name
