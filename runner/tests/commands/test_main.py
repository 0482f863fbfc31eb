"""Every command explains itself, and no input of a user's ends in a traceback or an unknown exit code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner.tests.command_line import invoke
from runner.tests.samples import POD

from stoker import __version__
from stoker.commands.main import main
from stoker.commands.runs import COMMANDS as RUNS
from stoker.contract.exits import ExitCode
from stoker.contract.variables import KNOWN
from stoker.frameworks import get_framework

ROOT = Path(__file__).resolve().parents[3]

CODES = {int(code) for code in ExitCode}


def expect_no_traceback(result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert result.exit_code in CODES


@pytest.mark.parametrize("command", sorted(main.commands))
def test_help_of_every_command_has_examples(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples:\n(  .*\n)*  .*stoker {command}", result.output), result.output


@pytest.mark.parametrize("columns", [110, 140])
def test_help_is_as_wide_as_the_terminal(columns: int) -> None:
    command = [sys.executable, "-m", "stoker", "rl", "up", "--help"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": str(columns)}
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    lines = [line for line in told.stdout.splitlines() if not line.startswith("  stoker ")]
    assert max(len(line) for line in lines) in range(columns - 12, columns + 1)


def test_help_lists_the_exit_codes() -> None:
    output = invoke("--help").output
    assert all(f"{int(code):>2}  {code.meaning}" in output for code in ExitCode)


def test_version() -> None:
    assert invoke("--version").output == f"stoker, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments", ["", "bogus", "--bogus", "plan --output xml", "flags", "flags bogus", "local", "doctor x"]
)
def test_wrong_commands_are_64(arguments: str) -> None:
    result = invoke(*arguments.split())
    assert result.exit_code == ExitCode.USAGE
    if arguments:
        assert all(line.startswith("stoker: error: ") for line in result.stderr.splitlines())
    else:
        assert "Usage: stoker [OPTIONS] COMMAND" in result.stderr


def test_what_click_refuses_is_told_as_our_errors_are() -> None:
    assert invoke("flags").stderr == "stoker: error: missing argument 'METHOD' (see `stoker flags --help`)\n"
    assert invoke("adapters", "--bogus").stderr.startswith("stoker: error: no such option")


def test_a_refusal_is_one_line_per_problem_and_its_code() -> None:
    result = invoke("plan", "--max_stps", "1", "--packing", "maybe", env=POD)
    assert result.exit_code == ExitCode.USAGE
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("stoker: error: --") for line in lines)
    assert result.stdout == ""


def test_run_refuses_what_plan_refuses_and_leaves_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    result = invoke("run", "--max_stps", "1", env={**POD, "STOKER_TERMINATION_LOG": str(log)})
    assert result.exit_code == ExitCode.USAGE
    assert log.read_text().startswith("wrong arguments: --max_stps")


def test_a_file_is_none_of_plans_arguments() -> None:
    result = invoke("plan", "trainjob.yaml", env={})
    assert result.exit_code == ExitCode.USAGE
    assert "`stoker validate trainjob.yaml` prints the plan of a TrainJob" in result.stderr


@pytest.mark.parametrize("words", [["--outputt", "json"], ["--ouput=json"]], ids=" ".join)
def test_a_misspelled_option_of_plan_is_named(words: list[str]) -> None:
    result = invoke("plan", *words, env={})
    assert result.exit_code == ExitCode.USAGE
    option = words[0].partition("=")[0]
    assert f"{option} is not an option of `stoker plan`: did you mean --output?" in result.stderr


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, ExitCode.NO_INPUT, "cannot be read (No such file or directory)"),
        (b"a: b: c", ExitCode.USAGE, "sft.yaml:1:5 is not YAML: mapping values are not allowed here: "),
        (b"- a", ExitCode.USAGE, "must be a mapping of flags to values"),
        (b"1: 2", ExitCode.USAGE, "must be a mapping of flags to values"),
        (b"", ExitCode.USAGE, "must be a mapping of flags to values"),
        (b"\xff\xfe\xff", ExitCode.USAGE, "is not YAML"),
        (b"max_steps: 1\nmax_steps: 2", ExitCode.USAGE, "key max_steps appears twice: keep one"),
        (b"a: &a {b: 1}\nc: {<<: *a, b: 2}", ExitCode.USAGE, "--a is an abbreviation"),
        (b"max_steps: 1\n---\nmax_steps: 2", ExitCode.USAGE, "must be a mapping of flags to values"),
        (b"max_stps: 1", ExitCode.USAGE, "did you mean --max_steps?"),
        (b"max_steps: 3", ExitCode.FINISHED, ""),
    ],
)
def test_config_files(tmp_path: Path, content: bytes | None, code: ExitCode, message: str) -> None:
    path = tmp_path / "sft.yaml"
    if content is not None:
        path.write_bytes(content)
    result = invoke("plan", "--config", str(path), env=POD)
    expect_no_traceback(result)
    assert result.exit_code == code
    assert message in result.stderr


def test_an_output_without_room_is_78_and_a_closed_one_nothing() -> None:
    command = f"{shlex.quote(sys.executable)} -m stoker flags sft"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"], check=False, capture_output=True, text=True, env=environ
    )
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith("stoker: error: the output of this command cannot be used (No space left on device)")
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        ["sh", "-c", f"{command} | head -1"], check=False, capture_output=True, text=True, env=environ
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_flags_are_listed_with_type_default_and_help() -> None:
    output = invoke("flags", "sft", "learning_rate").output
    assert "no flag of sft has 'lerning' in its name" in invoke("flags", "sft", "lerning").output
    assert output.startswith("--learning_rate <float> (default ")
    assert len(invoke("flags", "sft").output.splitlines()) == len(get_framework("trl").flag_table("sft").flags)


def test_doctor_names_variables_that_would_stop_a_run(tmp_path: Path) -> None:
    result = invoke("doctor", env={"STOKER_WORKSPACE": str(tmp_path), "STOKER_RESUM": "never"})
    assert re.search(r"^FAIL  STOKER_RESUM +never$", result.output, re.MULTILINE)
    assert "did you mean STOKER_RESUME?" in result.output


def test_local_says_why_a_workspace_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    example = ROOT / "examples/sft-lora/trainjob.yaml"
    runtime = ROOT / "examples/runtimes/trl-distributed-cpu.yaml"
    options = ["--runtime", str(runtime), "--workspace", str(tmp_path / "file"), "--volume", f"inputs={tmp_path}"]
    result = invoke("local", str(example), *options)
    assert result.exit_code == ExitCode.CONFIG
    assert result.stderr.startswith(f"stoker: error: --workspace {tmp_path}/file cannot be created (File exists)")


def test_doctor_shows_no_token(tmp_path: Path) -> None:
    output = invoke("doctor", env={"STOKER_WORKSPACE": str(tmp_path), "STOKER_ARG_HUB_TOKEN": "hunter2"}).output
    assert "STOKER_ARG_HUB_TOKEN  (not shown)" in output
    assert "hunter2" not in output


def test_doctor_fails_where_nothing_is_installed(tmp_path: Path) -> None:
    result = invoke("doctor", env={"STOKER_WORKSPACE": str(tmp_path / "missing"), "PET_NNODES": "two"})
    assert result.exit_code == ExitCode.CONFIG
    assert re.search(r"^FAIL  workspace .* is not a folder$", result.output, re.MULTILINE)
    assert re.search(r"^FAIL  world size ", result.output, re.MULTILINE)
    assert result.output.count("FAIL") == result.output.count("fix: ")


def test_local_names_a_file_that_is_missing(tmp_path: Path) -> None:
    result = invoke("local", "no.yaml", "--runtime", "no.yaml", "--workspace", str(tmp_path))
    assert result.exit_code == ExitCode.NO_INPUT
    assert "no.yaml cannot be read" in result.stderr


# Words that mean something here, so that random command lines get beyond the first check, and words that do not.
WORDS = st.one_of(
    st.sampled_from(
        [
            "trl.scripts.sft",
            "trl.scripts.dpo",
            "trl.scripts.",
            "--config",
            "--config=",
            "--max_steps",
            "--packing",
            "--no_packing",
            "--output_dir",
            "--report_to",
            "--use_peft",
            "--lora_target_modules",
            "--",
            "-",
            "--=",
            "-1",
            "0",
            "1e-4",
            "nan",
            "true",
            "/workspace",
            "²",
            "٣",
            "--resume_from_checkpoint",
            "--help_me",
            "plan",
            "--output",
            "json",
            "text",
        ]
    ),
    st.text(st.characters(exclude_characters="\0"), max_size=12),
)
NAMES = st.sampled_from(
    [
        *(name for name in KNOWN if name != "STOKER_TERMINATION_LOG"),
        *("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("JOB_COMPLETION_INDEX", "CUDA_VISIBLE_DEVICES", "STOKER_ARG_MAX_STEPS", "STOKER_ARG_REPORT_TO"),
        *("STOKER_ARG_", "STOKER_ARG_LORA_TARGET_MODULES", "STOKER_ARG_A__B", "STOKER_BOGUS", "STOKER_ARG_OUTPUT_DIR"),
    ]
)
VALUES = st.one_of(
    st.sampled_from(
        [
            "auto",
            "sft",
            "dpo",
            "trl",
            "nvidia",
            "never",
            "a-0.b",
            "a-node-0-0.a",
            "0",
            "1",
            "2",
            "100000",
            "-1",
            "[]",
            "{}",
            "[",
            "²",
            "٣",
            '["a"]',
            '{"STOKER_ARG_MAX_STEPS":"1"}',
            "9999999999999999999999999999999",
        ]
    ),
    st.sampled_from(["", "\udcff"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(words=st.lists(WORDS, max_size=5), env=st.dictionaries(NAMES, VALUES, max_size=4), pod=st.booleans())
def test_no_command_line_and_no_environment_ends_in_a_traceback(
    words: list[str], env: dict[str, str], pod: bool
) -> None:
    result = invoke("plan", *words, env={**(POD if pod else {}), **env})
    expect_no_traceback(result)
    assert (result.exit_code == 0) != bool(result.stderr), "either a plan or a reason"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(words=st.lists(st.text(st.characters(exclude_characters="\0"), max_size=8), max_size=3))
def test_no_word_after_stoker_ends_in_a_traceback(words: list[str]) -> None:
    # `run` would train, `local` and `doctor` look at the machine, and others at a cluster: the test is about the
    # parsing before.
    if not {"run", "local", "doctor", *(command.name for command in RUNS)} & {*words}:
        expect_no_traceback(invoke(*words))
