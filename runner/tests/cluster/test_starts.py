"""`stoker validate` reads a start command as the image does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from builders import RUNTIME, gpu_runtime, kept, trainjob, variables
from stoker.cluster.validate import Validation, validate_one
from stoker.commands.main import main
from stoker.contract.exits import ExitCode
from stoker.entry import own_command

KEPT = kept(RUNTIME)


def of(command: str, runtime: Mapping[str, Any] = KEPT, **trainer: Any) -> Validation:
    return validate_one(trainjob(**{"command": command.split(), "args": [], **trainer}), runtime)


def test_the_commands_that_are_known_are_those_there_are() -> None:
    assert {*main.commands} == {own_command.RUN, own_command.PLAN, *own_command.OTHERS}


@pytest.mark.parametrize(
    "words",
    [
        *("stoker rn", "stoker", "stoker --verison", "stoker --bogus run", "stoker --", "stoker Run"),
        *("stoker plan --output yaml", "stoker plan --output"),
    ],
)
def test_what_stoker_refuses_is_refused_in_its_own_words(words: str) -> None:
    verdict = of(words)
    assert verdict.code is ExitCode.USAGE
    refused = CliRunner().invoke(main, words.split()[1:], prog_name="stoker")
    assert refused.exit_code == ExitCode.USAGE
    if len(words.split()) > 1:
        assert [text for _, text in verdict.problems] == [refused.stderr.removeprefix("stoker: error: ").rstrip("\n")]


@pytest.mark.parametrize("word", ["tune run", "torchrun train.py", "/usr/bin/trl sft", "python -m trl", "stoker run"])
def test_a_command_line_in_one_word_starts_no_program(word: str) -> None:
    verdict = validate_one(trainjob(command=[word], args=[]), KEPT)
    assert verdict.code is ExitCode.USAGE
    (problem,) = [text for _, text in verdict.problems]
    assert f"command begins with {word!r}, and no program has that name: write each word as an item" in problem


@pytest.mark.parametrize(
    "words", ["stoker --version", "stoker -h", "stoker run --help", "stoker doctor", "stoker --help run"]
)
def test_what_trains_nothing_is_said_to_be_unjudged(words: str) -> None:
    verdict = of(words)
    assert (verdict.problems, verdict.plan) == ((), None)
    assert "stoker does not launch the command 'stoker'" in str(verdict)


@pytest.mark.parametrize(
    "words",
    [
        *("stoker run", "/usr/local/bin/stoker run", "python -m stoker run", "python3 -u -m stoker run"),
        *("python /opt/venv/bin/stoker run", "python -m trl sft", "trl sft", "torchrun -m trl.scripts.sft"),
    ],
)
def test_every_way_to_start_is_planned(words: str) -> None:
    assert "valid: trl sft on 2 nodes × 1 processes" in str(of(words, numNodes=2))
    assert "did you mean --max_steps?" in str(of(words, args=["--max_stps", "3"]))


def test_a_plan_that_is_only_printed_needs_no_data() -> None:
    verdict = of("stoker plan --output json", RUNTIME)
    assert (verdict.problems, verdict.plan is not None) == ((), True)
    assert "the pods only print the plan: nothing is trained" in verdict.notices
    assert of("stoker run", RUNTIME).code is ExitCode.NO_INPUT
    assert of("stoker plan --max_stps 3", RUNTIME).code is ExitCode.USAGE


def test_a_bare_trainer_in_another_world_is_refused_as_its_guard_does() -> None:
    verdict = of("python -m trl.scripts.sft", numNodes=2)
    assert verdict.code is ExitCode.CONFIG
    assert "the world size is 1, but 2 was requested: this process would train alone" in verdict.errors
    alone = of("python -m trl.scripts.sft")
    assert (alone.problems, alone.plan) == ((), None)
    assert "stoker does not launch the command 'python'" in str(alone)
    assert of("python -m trl.scripts.sft --help", numNodes=2).problems == ()


def test_a_launchers_processes_are_split_over_the_nodes_that_the_pod_is_told() -> None:
    words = "accelerate launch --num_processes 2 -m trl.scripts.sft"
    assert "valid: trl sft on 2 nodes × 1 processes" in str(of(words, numNodes=2))


@pytest.mark.parametrize(
    ("visible", "processes"),
    [("0", 1), ("1,0", 2), ("0,7", 1), ("", None), ("-1", None), ("all", None), ("GPU-5c1a", 1)],
)
def test_devices_that_a_variable_hides_are_not_counted(visible: str, processes: int | None) -> None:
    verdict = of("stoker run", gpu_runtime(), env=variables({"CUDA_VISIBLE_DEVICES": visible}))
    if processes is None:
        hides = f"CUDA_VISIBLE_DEVICES={visible!r} hides all that it has: leave it out, or write the numbers of devices"
        assert f"the runtime is for nvidia, but this container sees no such device: {hides}" in verdict.errors
    else:
        assert verdict.plan is not None
        assert verdict.plan.world.nproc_per_node == processes
