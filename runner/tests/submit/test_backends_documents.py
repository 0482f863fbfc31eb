"""What the documents say of the backends is so: its code runs, its commands print TrainJobs, its names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubeflow import trainer as kubeflow
from runner.tests.kubernetes_api import Api

from stoker import backends
from stoker.backends import LLMBackend
from stoker.commands.main import main
from stoker.frameworks import TRL
from stoker.submit.trl_methods import METHOD_CONFIGS

PAGES = ("guides/python.md", "reference/kep-2839.md")
TEXT = "\n".join((Path(__file__).parents[3] / "docs" / page).read_text() for page in PAGES)
PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("code", PYTHON)
def test_the_code_runs_and_its_configs_are_valid(
    code: str, client: Any, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeflow, "TrainerClient", lambda: client)
    names: dict[str, Any] = {}
    exec(code, names)
    made = [value for value in names.values() if isinstance(value, LLMBackend)]
    assert made
    for config in made:
        config.validate()
        assert config.sdk(client)["runtime"].trainer.framework == config.framework
    if "client.train" in code:
        assert [job["metadata"]["name"] for job in api.submitted] == ["capybara"]


@pytest.mark.parametrize("line", SHELL.replace("\\\n", " ").strip().splitlines())
def test_the_commands_print_trainjobs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text("from stoker.backends import TRLConfig\nconfig = TRLConfig(method='sft')\n")
    (tmp_path / "tune.py").write_text(
        "from stoker.backends import TorchTuneConfig\nconfig = TorchTuneConfig(epochs=1)\n"
    )
    words = shlex.split(line)[1:]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.output)["metadata"]["name"] == words[words.index("--name") + 1]


def test_the_table_of_methods_is_complete() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| `(TRL\w+Config)` \|$", TEXT, re.MULTILINE))
    assert rows == {kind.value: config.__name__ for kind, config in METHOD_CONFIGS.items()}
    assert list(rows) == list(TRL.methods)


def test_every_name_of_the_texts_exists() -> None:
    named = set(re.findall(r"`(LLM\w+|TRL\w+|TorchTune\w+|ConfigTrainer|FrameworkConfig|register_\w+)", TEXT))
    assert named >= {"LLMBackend", "ConfigTrainer", "FrameworkConfig", "TRLTrainer", "TorchTuneTrainer"}
    assert [name for name in named if not hasattr(backends, name)] == []
