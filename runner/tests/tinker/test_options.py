"""What `stoker tinker` is told, by flags and by the pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stoker
from stoker.commands.main import main
from stoker.contract.exits import ExitCode, RunError
from stoker.tinker.options import fetched_from, options_of

KEY = "tml-" + "k" * 32
POD = {
    "STOKER_WORKSPACE": "/workspace",
    "STOKER_SAMPLERS": "http://run-sampler-0-0.run:8080",
    "STOKER_SAMPLERS_API_KEY": KEY,
    "STOKER_ARG_MODEL_NAME_OR_PATH": "/workspace/model",
}


def test_a_pod_of_a_session_needs_no_flags() -> None:
    options = options_of((), {**POD, "STOKER_IDLE_SECONDS": "1800", "STOKER_HANG_TIMEOUT_SECONDS": "60"})
    assert (options.model, options.samplers) == ("/workspace/model", POD["STOKER_SAMPLERS"])
    assert (options.output_dir, options.adapters) == (Path("/workspace/output"), Path("/workspace/adapters"))
    assert (options.idle_seconds, options.hang_seconds, options.port) == (1800.0, 60, 8000)
    asked = options.request()
    assert (asked.model, asked.name, asked.adapters, asked.rank) == (
        "/workspace/model",
        "base",
        "/workspace/adapters",
        32,
    )


def test_a_flag_wins_over_its_variable() -> None:
    env = {**POD, "STOKER_ARG_MAX_RANK": "8", "STOKER_ARG_MAX_MODELS": "2"}
    options = options_of(["--max_rank", "16", "--samplers=http://10.0.0.1:8000"], env)
    assert (options.max_rank, options.max_models) == (16, 2)
    assert not options.asks_samplers, "servers that are named wait for nobody"


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        ((), {"STOKER_SAMPLERS_API_KEY": ""}, 78, "`stoker rl up NAME --runtime trl-tinker`"),
        ((), {"STOKER_SAMPLERS_API_KEY": "abc"}, 78, "the key must begin with 'tml-'"),
        ((), {"STOKER_SAMPLERS": ""}, 64, "--samplers is missing"),
        ((), {"STOKER_ARG_MODEL_NAME_OR_PATH": ""}, 64, "--model_name_or_path is missing"),
        ((), {"STOKER_ARG_LORA_R": "8"}, 64, "STOKER_ARG_LORA_R is not a flag of `stoker tinker`: drop it"),
        ((), {"STOKER_ARG_MAX_RANK": "many"}, 64, "'many' is not a valid integer"),
        ((), {"PET_NNODES": "2"}, 78, "the TrainJob has 2 nodes: write numNodes: 1"),
        ((), {"STOKER_IDLE_SECONDS": "soon"}, 64, "STOKER_IDLE_SECONDS is 'soon': write whole seconds"),
        (("trl.scripts.sft",), {}, 64, "unexpected extra argument"),
        (("--max_models=0",), {}, 64, "`stoker tinker --help` shows the flags"),
    ],
)
def test_what_cannot_work_is_refused(words: tuple[str, ...], env: dict[str, str], code: int, said: str) -> None:
    with pytest.raises(RunError) as raised:
        options_of(words, {**POD, **env})
    assert (raised.value.code, said in raised.value.message) == (code, True), raised.value.message


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(RunError) as raised:
        options_of((), {"PET_NNODES": "2"})
    assert raised.value.code == ExitCode.CONFIG
    assert len(raised.value.message.splitlines()) == 4


def test_a_plan_of_an_endpoint_says_what_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**POD, "STOKER_ROLE": "tinker"}.items():
        monkeypatch.setenv(name, value)
    text = CliRunner().invoke(main, ["plan"])
    assert text.exit_code == 0, text.output
    assert "up to 16 LoRA models of rank 32 or less" in text.stdout
    made: dict[str, Any] = json.loads(CliRunner().invoke(main, ["plan", "--output", "json"]).stdout)
    assert (made["role"], made["port"], made["adapters"]) == ("tinker", 8000, "/workspace/adapters")
    assert KEY not in text.stdout + json.dumps(made)


def test_an_endpoint_whose_model_is_not_there_ends_with_66_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    env = {**POD, "STOKER_WORKSPACE": str(tmp_path), "STOKER_ARG_MODEL_NAME_OR_PATH": str(tmp_path / "model")}
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "tinker"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **env, "PYTHONPATH": str(Path(stoker.__file__).parents[1])},
    )
    assert done.returncode == ExitCode.NO_INPUT, done.stderr
    assert "config.json is missing; correct --model_name_or_path" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ('{"uri": "hf://Qwen/Qwen3-0.6B@main"}', "Qwen/Qwen3-0.6B"),
        ('{"uri": "hf://org/name/folder"}', "org/name"),
        ('{"uri": "s3://bucket/model"}', ""),
        ("{}", ""),
        ("[", ""),
    ],
)
def test_clients_call_a_model_as_the_hub_does(record: str, name: str) -> None:
    assert fetched_from(record) == name
