"""However a run is started, it is the same run: the launchers people type, and a user's own script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from e2e.trainjobs import LORA_SFT, Reader, Run, trainjob

MODULE = "trl.scripts.sft"

BY_TORCHRUN = trainjob("by-torchrun", [MODULE, *LORA_SFT], command=["torchrun", "-m"])
BY_TRL = trainjob("by-trl", LORA_SFT, command=["trl", "sft"])
BY_MODULE = trainjob(
    "by-module",
    ["-m", MODULE, *LORA_SFT],
    command=["python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"],
)
OWN_SCRIPT = "import os, torch; print('own script, rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
START_OWN_SCRIPT = 'printf "%s" "$OWN_SCRIPT" > /tmp/own.py && exec torchrun /tmp/own.py'


@pytest.mark.full
@pytest.mark.parametrize("job", [BY_TORCHRUN, BY_TRL, BY_MODULE], ids=["torchrun", "trl", "torchrun by its module"])
def test_a_launcher_leads_to_a_guarded_run(
    submit: Callable[[Mapping[str, Any]], Run], reader: Reader, job: Mapping[str, Any]
) -> None:
    run = submit(job)
    run.wait_complete()
    manifest = run.manifest(reader)
    assert (manifest["world_size"], manifest["steps"]) == (2, 6)
    assert manifest["adapter"]["type"] == "LORA"


@pytest.mark.full
def test_a_plain_python_on_two_pods_is_refused_not_trained_twice(submit: Callable[[Mapping[str, Any]], Run]) -> None:
    run = submit(trainjob("by-python", [*LORA_SFT, "--use_cpu"], command=["python", "-m", MODULE]))
    run.wait_failed()
    assert run.restarts().total == 0
    code, message = run.endings()[0]
    assert code == 78
    assert "the world size is 1, but 2 was requested" in message


@pytest.mark.full
def test_a_users_own_script_is_left_alone(submit: Callable[[Mapping[str, Any]], Run]) -> None:
    run = submit(trainjob("own-script", ["-c", START_OWN_SCRIPT], command=["sh"], env={"OWN_SCRIPT": OWN_SCRIPT}))
    run.wait_complete()
    assert {f"own script, rank {rank} of 2" for rank in (0, 1)} <= {
        line for index in (0, 1) for line in run.log(index).splitlines()
    }
    assert "[stoker]" not in run.log(0)
