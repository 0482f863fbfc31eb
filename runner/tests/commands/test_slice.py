"""`stoker slice` refuses what cannot work, with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.commands.main import main
from stoker.contract.exits import RunError
from stoker.serve.slices.hooks import CommandHooks

pytestmark = pytest.mark.usefixtures("own_signals")

VLLM = ("--engine", "http://127.0.0.1:1")
COMMANDS = ("--park-command", "true", "--use-command", "true")


def run(folder: Path, *words: str, **environ: str) -> Result:
    told: dict[str, str | None] = {"KUBERNETES_SERVICE_HOST": None, **environ}
    return CliRunner().invoke(main, ["slice", "run", "gpu-0", "--folder", str(folder), *words], env=told)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (VLLM, 78, "there is no cluster here: KUBERNETES_SERVICE_HOST is not set"),
        ((*VLLM, "--api", "http://kubernetes", "--namespace", "ml"), 78, "write https://HOST:PORT; the token is a"),
        ((*VLLM, "--api", "http://127.0.0.1:1", "--account", "/nowhere"), 78, "/nowhere/namespace cannot be read"),
        (
            (*VLLM, "--api", "https://127.0.0.1:1", "--namespace", "ml", "--account", "/nowhere"),
            78,
            "is not a certificate",
        ),
        ((), 64, "name the engine: --engine for vLLM, else --park-command and --use-command"),
        (("--park-command", "true"), 64, "name the engine"),
        ((*VLLM, "--use-command", "true"), 64, "name the engine"),
        ((*VLLM, "--sleep-level", "3"), 64, "invalid value for '--sleep-level'"),
        ((*VLLM, "--quantum", "0"), 64, "invalid value for '--quantum'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    result = run(tmp_path, *words)
    assert (result.exit_code, says in result.output) == (code, True), result.output


def test_level_two_is_refused_with_lora(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("enable-lora: true\n")
    result = run(tmp_path, *VLLM, "--sleep-level", "2", "--config", str(config))
    assert result.exit_code == 78
    assert "write --sleep-level 1" in result.output
    config.write_text("model: m\n")
    assert "no cluster" in run(tmp_path, *VLLM, "--sleep-level", "2", "--config", str(config)).output
    config.write_text("- 1\n")
    assert "is not a vLLM configuration" in run(tmp_path, *VLLM, "--config", str(config)).output


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_samplers_that_take_whole_weights_sleep_at_each_level(tmp_path: Path, level: str) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("worker-extension-cls: stoker_in_vllm.Weights\n")
    assert "no cluster" in run(tmp_path, *VLLM, "--sleep-level", level, "--config", str(config)).output


def test_commands_are_refused_for_a_run_that_trains_all_weights(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("worker-extension-cls: stoker_in_vllm.Weights\n")
    result = run(tmp_path, *COMMANDS, "--config", str(config))
    assert result.exit_code == 78
    assert f"{config} has worker-extension-cls: a run that trains all weights needs vLLM" in result.output
    assert "write --engine ADDRESS instead of --park-command and --use-command" in result.output
    config.write_text("enable-lora: true\n")
    assert "no cluster" in run(tmp_path, *COMMANDS, "--config", str(config)).output


def test_commands_refuse_a_version_that_a_watcher_asks_for() -> None:
    # Without --config nobody knows that the run trains all weights before a version comes.
    with pytest.raises(RunError) as found:
        CommandHooks("true", "true", 1.0, {}).reload("run-a0:0")
    assert found.value.code == 78
    assert "the watcher asks for run-a0:0" in found.value.message
    assert "write --engine ADDRESS" in found.value.message


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    words = ("--api", "http://127.0.0.1:1", "--namespace", "ml", "--account", str(account))
    result = run(tmp_path / "none", *VLLM, *words)
    assert (result.exit_code, "is not a folder" in result.output) == (78, True)
    assert CliRunner().invoke(main, ["slice", "guard", "--folder", str(tmp_path / "none"), "true"]).exit_code == 78


def test_the_guard_can_be_installed_beside_an_engine(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["slice", "install", "--folder", str(tmp_path)])
    assert result.output == f"{tmp_path / 'guard.py'}\n"
    assert "import stoker" not in (tmp_path / "guard.py").read_text()
