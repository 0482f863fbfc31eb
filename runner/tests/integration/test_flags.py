"""The flag tables say what TRL's real parsers read, on command lines, in variables and in config files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.frameworks.trl.known_words import EVERYWHERE, KNOWN
from stoker.frameworks.trl.lists import LISTED
from stoker.frameworks.trl.mappings import KEYS, keys_of
from stoker.frameworks.trl.optimizers import ARGUMENTS
from stoker.frameworks.trl.packages import PACKAGES
from stoker.frameworks.trl.schedules import SCHEDULES

HERE = Path(__file__).parent


def test_the_flag_tables_are_those_of_the_installed_trainer(trainer_python: Path) -> None:
    script = HERE.parents[1] / "scripts" / "generate_flags.py"
    done = subprocess.run([trainer_python, script, "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("count", "seed"),
    [(200, 1), pytest.param(20_000, 2, marks=pytest.mark.full)],
    ids=["200", "20 thousand"],
)
def test_stoker_reads_flags_as_trls_parsers_read_them(trainer_python: Path, count: int, seed: int) -> None:
    script = HERE / "flag_cases.py"
    done = subprocess.run(
        [trainer_python, script, str(count), str(seed)], check=False, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["disagreements"] == []
    # A comparison of refusals alone would show nothing.
    assert all(found["seen"][f"{kind}: both"] > count / 10 for kind in ("args", "env", "file")), found["seen"]


def test_what_takes_a_text_or_a_list_is_known_to_the_parsers_of_a_run() -> None:
    for method in METHODS:
        listed = {name for name, flag in flag_table(method).flags.items() if flag.listed}
        assert listed == {*LISTED}


@pytest.mark.full
def test_known_words_and_keys_are_those_of_the_trainer(trainer_python: Path) -> None:
    done = subprocess.run([trainer_python, HERE / "known_words.py"], check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    found = {method: words for method, words in told["words"].items() if words}
    known = {method: {name: sorted(words) for name, words in flags.items()} for method, flags in KNOWN.items()}
    # vLLM's own client refuses other modes; a trainer may ask for one of them only.
    for flags in (*found.values(), *known.values()):
        flags.pop("vllm_mode", None)
    del known["grpo_async"]  # it is the trainer of grpo
    assert {method: words for method, words in found.items() if words} == {
        m: words for m, words in known.items() if words
    }
    assert len(found["dpo"]["loss_type"]) > 10
    shared = {name: sorted({*words} - {"true", "false"}) for name, words in EVERYWHERE.items()}
    assert told["everywhere"] == shared
    assert told["keys"].keys() == {*METHODS} - {"grpo_async"}
    for method, flags in told["keys"].items():
        assert flags == {flag: sorted(keys_of(method, flag)) for flag in KEYS}, method
    # The environment for CPUs has none of them.
    assert told["optimizers"] == sorted(PACKAGES["optim"])
    assert told["arguments"] == {name: sorted(arguments) for name, arguments in ARGUMENTS.items()}
    assert told["schedules"] == {name: sorted(keys) for name, keys in SCHEDULES.items()}


@pytest.mark.full
def test_values_of_mappings_are_refused_as_the_classes_refuse_them(trainer_python: Path) -> None:
    done = subprocess.run([trainer_python, HERE / "option_cases.py"], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["disagreements"] == []
    for kind in ("fsdp_config", "schedule"):
        assert all(found["seen"][f"{kind}: both {end}"] > 100 for end in ("take", "refuse")), found["seen"]
