"""However a run is started, it is the same run: the launchers people type, and a user's own script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from e2e.trainjobs import LORA_SFT, Reader, Run, trainjob

Submit = Callable[[Mapping[str, Any]], Run]

MODULE = "trl.scripts.sft"


@pytest.mark.parametrize(
    ("name", "command", "args"),
    [
        ("by-torchrun", ["torchrun", "-m"], [MODULE, *LORA_SFT]),
        ("by-trl", ["trl", "sft"], LORA_SFT),
        (
            "by-module",
            ["python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"],
            ["-m", MODULE, *LORA_SFT],
        ),
    ],
)
def test_launchers_lead_to_the_same_guarded_run(
    submit: Submit, reader: Reader, name: str, command: Sequence[str], args: Sequence[str]
) -> None:
    run = submit(trainjob(name, args, command=command))
    run.wait_complete()
    manifest = run.manifest(reader)
    assert (manifest["world_size"], manifest["steps"]) == (2, 6)
    assert manifest["adapter"]["type"] == "LORA"


def test_a_plain_python_on_two_pods_is_refused_not_trained_twice(submit: Submit) -> None:
    run = submit(trainjob("by-python", [*LORA_SFT, "--use_cpu"], command=["python", "-m", MODULE]))
    run.wait_failed()
    assert run.restarts().total == 0
    code, message = run.endings()[0]
    assert code == 78
    assert "the world size is 1 but 2 was asked for" in message


def test_a_users_own_script_is_left_alone(submit: Submit) -> None:
    script = "import os, torch; print('own script, rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    start = 'printf "%s" "$OWN_SCRIPT" > /tmp/own.py && exec torchrun /tmp/own.py'
    run = submit(trainjob("own-script", ["-c", start], command=["sh"], env={"OWN_SCRIPT": script}))
    run.wait_complete()
    assert {f"own script, rank {rank} of 2" for rank in (0, 1)} <= {
        line for index in (0, 1) for line in run.log(index).splitlines()
    }
    assert "[stoker]" not in run.log(0)
