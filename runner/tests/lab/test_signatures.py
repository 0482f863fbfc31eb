"""The names, parameters and defaults of the vLLM-Train plan, as plan.txt has them, whatever else there is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stoker.lab
from stoker.lab import LoRATrainConfig, RLHFConfig

SOURCE = Path(stoker.lab.__file__).parent
PLAN = {node.name: node for node in ast.parse(Path(__file__).with_name("plan.txt").read_text()).body
        if isinstance(node, ast.ClassDef)}  # fmt: skip
METHODS = [
    (name, node.name) for name, promised in PLAN.items() for node in promised.body if isinstance(node, ast.FunctionDef)
]
REQUIRED = "required"


def fields(name: str) -> dict[str, object]:
    """Return the attributes that the plan gives an object, with their defaults."""
    return {
        node.target.id: REQUIRED if node.value is None else ast.literal_eval(node.value)
        for node in PLAN[name].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


CONFIGS = ("LoRATrainConfig", "RLHFConfig")
ATTRIBUTES = [(name, attribute) for name in PLAN if name not in CONFIGS for attribute in fields(name)]


def test_the_text_has_all_phases() -> None:
    assert len(PLAN) == 12
    assert len(METHODS) == 27
    assert len(ATTRIBUTES) == 20
    assert len(fields("LoRATrainConfig")) == 11


@pytest.mark.parametrize("name", PLAN)
def test_a_name_is_public(name: str) -> None:
    assert name in stoker.lab.__all__


def test_the_configs_fields_come_in_order_and_have_the_plans_defaults() -> None:
    config, promised = LoRATrainConfig(), fields("LoRATrainConfig")
    assert {name: getattr(config, name) for name in promised} == promised
    positional = LoRATrainConfig(*promised.values())  # type: ignore[arg-type]
    assert positional == config


def test_the_config_of_rlhf_has_what_the_plan_reads() -> None:
    config, promised = RLHFConfig(), [*fields("RLHFConfig")]
    assert [*vars(config)][: len(promised)] == promised
    assert config.lora_config == LoRATrainConfig()


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_a_method_takes_what_the_plan_gives_it(name: str, method: str) -> None:
    promised, ours = function(PLAN[name], method), function(source_of(name), method)
    asked, takes = parameters(promised), parameters(ours)
    assert dict([*takes.items()][: len(asked)]) == asked
    assert REQUIRED not in [default for key, default in takes.items() if key not in asked], "the plan's calls must work"
    assert None not in ours.args.kw_defaults, "the plan's calls must work"
    assert ours.args.kwarg or not promised.args.kwarg


@pytest.mark.parametrize(("name", "attribute"), ATTRIBUTES)
def test_an_object_has_what_the_plan_gives_it(name: str, attribute: str) -> None:
    source = source_of(name)
    written = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    properties = {
        node.name
        for node in source.body
        if isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list)
    }
    assert attribute in written | properties


def source_of(name: str) -> ast.ClassDef:
    """Return the source of a class of ours: torch is not here to import it."""
    module = SOURCE / f"{stoker.lab._MODULES[name].replace('.', '/')}.py"
    (found,) = (node for node in ast.parse(module.read_text()).body if getattr(node, "name", None) == name)
    assert isinstance(found, ast.ClassDef)
    return found


def function(owner: ast.ClassDef, method: str) -> ast.FunctionDef:
    """Return a class's method."""
    (found,) = (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == method)
    return found


def parameters(method: ast.FunctionDef) -> dict[str, object]:
    """Return the positional parameters of a method with their defaults."""
    names = [argument.arg for argument in method.args.args[1:]]
    defaults = [ast.literal_eval(default) for default in method.args.defaults]
    return dict(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))
