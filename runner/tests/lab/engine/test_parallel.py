"""Two ranks with tensor parallelism train and answer as one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runner.tests.lab.scripts import SERVING, environment_of, printed

from stoker.cluster.processes import free_ports

CASES = Path(__file__).with_name("parallel_cases.py")
# Files of an adapter with a name for each matrix; compared in the environment, which has safetensors.
COMPARE = """
import sys
from safetensors.torch import load_file
one, two = (load_file(folder + "/adapter_model.safetensors") for folder in sys.argv[1:])
assert one.keys() == two.keys()
print(max((one[name] - two[name]).abs().max().item() for name in one))
"""


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])  # one has biases, one a common matrix for input and output
def test_two_ranks_train_and_answer_as_one(lab_python: Path, tmp_path: Path, family: str) -> None:
    model = tmp_path / "model"
    printed(lab_python, CASES, "write", family, model, told=SERVING)
    (alone,) = _train(lab_python, model, tmp_path / "one", 1)
    ranks = _train(lab_python, model, tmp_path / "two", 2)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], abs=1e-5)
        assert rank["norms"] == pytest.approx(alone["norms"], rel=1e-4)
        assert rank["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-3)
        assert rank["loaded"]
        assert rank["drawn"] == ranks[0]["drawn"]
    assert alone["losses"][-1] < alone["losses"][0] - 0.1
    assert float(printed(lab_python, "-c", COMPARE, tmp_path / "one", tmp_path / "two")) <= 1e-3


def _train(python: Path, model: Path, folder: Path, ranks: int) -> list[dict[str, Any]]:
    (port,) = free_ports(1)
    told = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [python, CASES, model, folder],
            stdout=subprocess.PIPE, text=True,
            env=environment_of(
                {**SERVING, **told, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=1500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks
    return [json.loads(output.splitlines()[-1]) for output in outputs]
