"""However a run is started, it is the same run: the launchers people type, and a user's own script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from e2e.trainjobs import LORA_SFT, Reader, Run, trainjob

MODULE = "trl.scripts.sft"

LAUNCHERS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "by-torchrun": (["torchrun", "-m"], [MODULE, *LORA_SFT]),
    "by-trl": (["trl", "sft"], LORA_SFT),
    "by-module": (
        ["python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"],
        ["-m", MODULE, *LORA_SFT],
    ),
}
OWN_SCRIPT = "import os, torch; print('own script, rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
START_OWN_SCRIPT = 'printf "%s" "$OWN_SCRIPT" > /tmp/own.py && exec torchrun /tmp/own.py'


@pytest.fixture(scope="module")
def runs(submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]) -> Mapping[str, Run]:
    """One TrainJob for each way to start."""
    return submit_together(
        [
            *(trainjob(name, args, command=command) for name, (command, args) in LAUNCHERS.items()),
            trainjob("by-python", [*LORA_SFT, "--use_cpu"], command=["python", "-m", MODULE]),
            trainjob("own-script", ["-c", START_OWN_SCRIPT], command=["sh"], env={"OWN_SCRIPT": OWN_SCRIPT}),
        ]
    )


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_lead_to_the_same_guarded_run(runs: Mapping[str, Run], reader: Reader, name: str) -> None:
    run = runs[name]
    run.wait_complete()
    manifest = run.manifest(reader)
    assert (manifest["world_size"], manifest["steps"]) == (2, 6)
    assert manifest["adapter"]["type"] == "LORA"


def test_a_plain_python_on_two_pods_is_refused_not_trained_twice(runs: Mapping[str, Run]) -> None:
    run = runs["by-python"]
    run.wait_failed()
    assert run.restarts().total == 0
    code, message = run.endings()[0]
    assert code == 78
    assert "the world size is 1 but 2 was asked for" in message


def test_a_users_own_script_is_left_alone(runs: Mapping[str, Run]) -> None:
    run = runs["own-script"]
    run.wait_complete()
    assert {f"own script, rank {rank} of 2" for rank in (0, 1)} <= {
        line for index in (0, 1) for line in run.log(index).splitlines()
    }
    assert "[stoker]" not in run.log(0)
