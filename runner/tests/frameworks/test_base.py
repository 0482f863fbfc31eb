"""A plugin's framework may answer each question of the base class in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from runner.tests.samples import alone

from stoker.frameworks import Framework
from stoker.plan.arguments import Flag, FlagTable, Setting
from stoker.plan.inputs import Input
from stoker.plan.interfaces import Asked
from stoker.plan.resolve import read_request, resolve_plan


class Words(Framework):
    """A trainer that reads `flag=value`, and variables from its config file."""

    name: ClassVar[str] = "words"
    methods: ClassVar[tuple[str, ...]] = ("one", "two")
    training: ClassVar[str] = "words.trainer"
    packages: ClassVar[tuple[str, ...]] = ()
    secrets: ClassVar[tuple[str, ...]] = ("key",)

    def flag_table(self, method: str) -> FlagTable:
        flags = {name: Flag(name, "str") for name in ("output_dir", "key", "size")}
        return FlagTable("words 1.0", method, flags)

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        return f"words.{method}"

    def method_of(self, word: str) -> str | None:
        return word.removeprefix("words.") if word.startswith("words.") else None

    def method_meant(self, asked: Asked) -> str:
        return "two" if "size" in asked.values else asked.method

    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        return {"output_dir": (f"{asked.workspace}/output", "here")}

    def config_values(self, content: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        return {name.lower(): (str(value),) for name, value in content.items() if name != "ENV"}

    def variables(self, content: Mapping[str, Any]) -> Mapping[str, str]:
        return dict(content.get("ENV", {}))

    def to_argv(self, settings: Iterable[Setting], config: str | None) -> list[str]:
        return [f"config={config}", *(f"{setting.name}={setting.value}" for setting in settings)]

    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        return []

    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        return []

    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        return None, None

    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        return {"epochs": 1.0}

    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        return {"method": table.method}


def test_each_answer_of_a_plugin_counts() -> None:
    facts = alone({"STOKER_ARG_MODEL_NAME_OR_PATH": "", "STOKER_ARG_DATASET_NAME": ""})
    request = read_request(facts, Words(), ["words.one", "--config", "/c.yaml", "--key", "hidden", "--size", "3"])
    plan = resolve_plan(request, {"OUTPUT_DIR": "/workspace/here", "ENV": {"A": "b"}})
    assert (plan.method, plan.module, plan.output_dir) == ("two", "words.two", "/workspace/here")
    assert plan.trainer_argv == ("config=/c.yaml", "key=hidden", "size=3")
    assert plan.shown_argv == ["config=/c.yaml", "key=(not shown)", "size=3"]
    assert plan.env["A"] == "b"
