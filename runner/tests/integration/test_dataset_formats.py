"""Data in other trainers' formats trains in real TRL, and a bad row ends the run with its number."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.jobs import LocalJob

SHORT = ("--max_steps", "2", "--per_device_train_batch_size", "2", "--max_length", "64")


def turns(a: int, b: int) -> list[dict[str, str]]:
    return [{"from": "human", "value": f"{a}+{b}="}, {"from": "gpt", "value": f"{a + b}"}]


ALPACA: list[dict[str, Any]] = [{"instruction": f"{n}+1=", "input": "", "output": f"{n + 1}"} for n in range(16)]
CHATML_ROLES = {"human": "user", "gpt": "assistant"}


def chatml(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": CHATML_ROLES[turn["from"]], "content": turn["value"]} for turn in turns(a, b)]


# Format → method → its rows.
ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "alpaca": {
        "sft": ALPACA,
        "dpo": [{"instruction": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"{n + 2}"} for n in range(16)],
    },
    "sharegpt": {
        "sft": [{"conversations": turns(n, 1)} for n in range(16)],
        "dpo": [
            {"conversations": turns(n, 1)[:1], "chosen": turns(n, 1)[1], "rejected": turns(n, 2)[1]} for n in range(16)
        ],
    },
    "chatml": {
        "sft": [{"messages": chatml(n, 1)} for n in range(16)],
        "dpo": [{"chosen": chatml(n, 1), "rejected": [*chatml(n, 1)[:1], chatml(n, 2)[1]]} for n in range(16)],
    },
}


def written(job: LocalJob, rows: list[dict[str, Any]]) -> dict[str, str]:
    folder = job.folder / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"STOKER_ARG_DATASET_NAME": str(folder)}


@pytest.mark.full
def test_a_bad_row_is_named_in_sft(job: LocalJob) -> None:
    told = written(job, [*ALPACA[:11], {**ALPACA[11], "instruction": None}, *ALPACA[12:]])
    ended = job.run(*SHORT, "--dataset_format", "alpaca", env=told)
    assert ended.code == 65, ended.output
    assert (
        f"row 12 of the data set {job.folder}/data (train) is not alpaca: instruction must be text: None"
        in ended.output
    )
    assert "Traceback" not in ended.output


@pytest.mark.full
@pytest.mark.parametrize(("name", "method"), [(name, method) for name, methods in ROWS.items() for method in methods])
def test_each_format_trains_in_each_method_on_two_nodes(job: LocalJob, name: str, method: str) -> None:
    told = {**written(job, ROWS[name][method]), "STOKER_METHOD": method}
    ended = job.run(*SHORT, "--dataset_format", name, nodes=2, env=told)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert manifest["metrics"]["loss"] > 0
    assert manifest["fingerprint"]["data"]["dataset_format"] == name


@pytest.mark.full
def test_a_bad_row_is_named_in_dpo_on_two_nodes(job: LocalJob) -> None:
    rows = ROWS["sharegpt"]["dpo"]
    told = {**written(job, [*rows[:6], {**rows[6], "chosen": 7}, *rows[7:]]), "STOKER_METHOD": "dpo"}
    ended = job.run(*SHORT, "--dataset_format", "sharegpt", nodes=2, env=told)
    assert ended.code == 65, ended.output
    assert re.search(r"row 7 of the data set \S+/data \(train\)", ended.output), ended.output
    assert "attempt 1" not in ended.output
    assert "Traceback" not in ended.output


_OTHERS = """
import datasets
from stoker.frameworks.trl.dataset_conversion import convert_loaded

convert_loaded("alpaca", "sft", "own", None, {"train"})
for path, options in (("own", {"name": None, "streaming": False}), ("other", {}), ("own", {"split": "train"})):
    loaded = datasets.load_dataset(path, **options)
    print(sorted(loaded["train"].column_names if "split" not in options else loaded.column_names))
"""


@pytest.mark.full
def test_only_the_runs_own_data_set_is_converted(trainer_python: Path, tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ALPACA))
    done = subprocess.run(
        [trainer_python, "-c", _OTHERS],
        cwd=tmp_path,
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    alpaca = "['input', 'instruction', 'output']"
    assert done.stdout.splitlines() == ["['completion', 'prompt']", alpaca, alpaca], done.stderr
