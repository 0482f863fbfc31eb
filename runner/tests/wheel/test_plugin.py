"""A plugin that was built for stoker 0.1 at 869a3b6, unedited, beside today's wheel: nothing it uses has moved away."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from runner.tests.wheel.installed import Installed

WORDS = ("stoker_classifier.train", "--model_name_or_path", "/m", "--dataset_name", "/d")
TOLD = {"STOKER_FRAMEWORK": "classifier", "STOKER_ACCELERATOR": "cpu"}


def test_it_is_listed(plugin: Installed) -> None:
    assert "stoker_classifier.config.ClassifierConfig" in plugin.run("stoker", "doctor").stdout


def test_its_runs_are_planned(plugin: Installed) -> None:
    done = plugin.run("stoker", "plan", "--output", "json", *WORDS, "--max_steps", "3", **TOLD)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["framework"], plan["method"], plan["module"]) == ("classifier", "classify", "stoker_classifier.train")
    assert plan["budget"] == {"steps": 3.0}
    assert {setting["name"]: setting["source"] for setting in plan["settings"]} == {
        "dataset_name": "args",
        "max_steps": "args",
        "model_name_or_path": "args",
        "output_dir": "recipe",
        "use_cpu": "recipe",
    }


def test_what_it_does_not_know_is_refused(plugin: Installed) -> None:
    done = plugin.run("stoker", "plan", *WORDS, "--learning_rat", "1", **TOLD)
    assert (done.returncode, "--learning_rate" in done.stderr) == (64, True), done.stderr
    done = plugin.run("stoker", "plan", WORDS[0], **TOLD)
    assert (done.returncode, len(done.stderr.splitlines())) == (64, 2), done.stderr


def test_its_config_becomes_a_trainjob(plugin: Installed, tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(
        "from stoker_classifier.config import ClassifierConfig\n"
        "config = ClassifierConfig(label_column='topic', num_nodes=2)\n"
    )
    words = ("--name", "topics", "--runtime", "classifier", "--model", "hf://a/b", "--dataset", "hf://c/d")
    done = plugin.run("stoker", "trainjob", f"{path}:config", *words)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["spec"]["trainer"] == {
        "numNodes": 2,
        "args": [
            *("stoker_classifier.train", "--model_name_or_path", "/workspace/model"),
            *("--dataset_name", "/workspace/dataset", "--label_column", "topic"),
        ],
    }
