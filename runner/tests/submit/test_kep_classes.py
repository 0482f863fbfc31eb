"""Classes after KEP-2839's first text, which define methods for label and command, work as ours do."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from runner.tests.submit.kep_classes import CLASSES

from builders import RUNTIME, kept, trainjob
from stoker.backends import LLMBackend, TRLConfig, get_backend, register_backend, register_framework
from stoker.cluster.validate import validate_one
from stoker.commands.main import main
from stoker.frameworks import registry
from stoker.submit import sdk


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def run_py(tmp_path: Path) -> Path:
    """A user's file with the text's classes and two runs."""
    path = tmp_path / "run.py"
    path.write_text(CLASSES)
    return path


def printed(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["trainjob", *words])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = yaml.safe_load(result.output)
    return found


def test_the_texts_classes_register_under_their_names(run_py: Path) -> None:
    found = runpy.run_path(str(run_py))
    assert (get_backend("trl"), get_backend("torchtune")) == (found["TRLConfig"], found["TorchTuneConfig"])
    sft = found["sft"]
    assert (sft.framework(), sft.framework, type(sft).framework) == ("trl", "trl", "trl")
    assert (sft.num_nodes, sft._num_nodes, sft.resources_per_node) == (2, 2, None)
    assert TRLConfig().framework() == "trl"  # type: ignore[operator]


def test_a_trainjob_of_the_texts_class_has_its_command_and_is_valid(run_py: Path) -> None:
    job = printed(f"{run_py}:sft", "--name", "sft", "--runtime", "trl-distributed")
    trainer = job["spec"]["trainer"]
    assert (trainer["command"], trainer["args"][0], trainer["numNodes"]) == (["python", "-m", "trl"], "sft", 2)
    verdict = validate_one(job, kept(RUNTIME))
    assert verdict.problems == ()
    plan = verdict.plan
    assert plan is not None
    assert (plan.module, plan.world.size) == ("trl.scripts.sft", 2)
    assert {"--lora_r", "--num_train_epochs"} <= set(plan.trainer_argv)


def test_the_command_line_may_set_the_texts_placement(run_py: Path) -> None:
    job = printed(
        f"{run_py}:tune", "--name", "tune", "--runtime", "torchtune-llama3.2-1b", "--nodes", "1", "--resources", "gpu=2"
    )
    assert job["spec"]["trainer"] == {
        "numNodes": 1,
        "resourcesPerNode": {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
        "command": ["tune", "run"],
        "args": ["epochs=2"],
    }


def test_the_sdk_gets_the_command_of_the_texts_class(run_py: Path, client: Any, api: Any) -> None:
    config = runpy.run_path(str(run_py))["sft"]
    client.train(**sdk.train_arguments(config, client, runtime="trl-distributed"))
    (submitted,) = api.submitted
    trainer = submitted["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["python", "-m", "trl"], config.to_args())


def test_a_method_that_needs_a_configs_fields_cannot_be_registered() -> None:
    class Own(LLMBackend):
        command = ("own",)

        def framework(self) -> str:  # type: ignore[override]
            return self.label  # type: ignore[attr-defined, no-any-return]

        def to_args(self, initializer: object = None) -> list[str]:
            return []

    with pytest.raises(ValueError, match=r"or define framework\(\) and to_command\(\), the former without the fields"):
        register_framework(Own)
    with pytest.raises(ValueError, match="must declare a framework and a command"):
        register_backend("own")(Own)


def test_python_m_trl_starts_what_trl_starts() -> None:
    runtime = kept(RUNTIME)
    words = ["sft", "--max_steps", "3"]
    plans = [
        validate_one(trainjob(command=command, args=words), runtime).plan
        for command in (["trl"], ["python", "-m", "trl"], ["/opt/venv/bin/python3.12", "-um", "trl"])
    ]
    assert plans[0] is not None
    assert {plan.hash for plan in plans if plan is not None} == {plans[0].hash}
    assert None not in plans
