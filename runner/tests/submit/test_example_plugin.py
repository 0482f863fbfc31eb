"""The example of a backend in a package of its own, installed as its users would install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples" / "backend-plugin"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package; the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *offline, "--target", str(folder), str(PLUGIN)], check=True)
    return folder


def stoker(installed: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "runner" / "src"), str(installed)])
    environ = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run(
        [sys.executable, "-m", "stoker", *words], check=False, capture_output=True, text=True, env=environ
    )


def test_doctor_lists_it(installed: Path) -> None:
    shown = stoker(installed, "doctor").stdout
    assert "backend classifier  stoker_classifier.config.ClassifierConfig, runs classify" in shown


def test_the_runner_plans_it_and_refuses_what_it_does_not_know(installed: Path) -> None:
    words = ("stoker_classifier.train", "--model_name_or_path", "/m", "--dataset_name", "/d")
    told = {"STOKER_FRAMEWORK": "classifier", "STOKER_ACCELERATOR": "cpu"}
    done = stoker(installed, "plan", "--output", "json", *words, "--max_steps", "3", **told)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["framework"], plan["method"], plan["module"]) == ("classifier", "classify", "stoker_classifier.train")
    assert plan["budget"] == {"steps": 3.0}
    done = stoker(installed, "plan", *words, "--learning_rat", "1", **told)
    assert (done.returncode, "write --learning_rate" in done.stderr) == (64, True)


def test_a_config_of_it_becomes_a_trainjob(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(
        "from stoker_classifier.config import ClassifierConfig\n"
        "config = ClassifierConfig(label_column='topic', num_nodes=2)\n"
    )
    words = ("--name", "topics", "--runtime", "classifier", "--model", "hf://Qwen/Qwen3-0.6B")
    done = stoker(installed, "trainjob", f"{path}:config", *words, "--dataset", "hf://fancyzhx/ag_news")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["spec"]["trainer"] == {
        "numNodes": 2,
        "args": [
            *("stoker_classifier.train", "--model_name_or_path", "/workspace/model"),
            *("--dataset_name", "/workspace/dataset", "--label_column", "topic"),
        ],
    }


def test_without_it_the_framework_is_unknown(tmp_path: Path) -> None:
    done = stoker(tmp_path, "plan", "stoker_classifier.train", STOKER_FRAMEWORK="classifier")
    assert (done.returncode, "framework 'classifier' is unknown" in done.stderr) == (78, True)
