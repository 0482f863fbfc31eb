"""A TMPDIR below which no socket can be bound is refused where processes load data, and nowhere else."""

from __future__ import annotations

import multiprocessing.connection
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError

WORKERS = ("--dataloader_num_workers", "2")


def test_a_path_that_is_too_long_for_sockets_is_78_with_workers() -> None:
    folder = f"/tmp/{'x' * 71}"
    with pytest.raises(RunError, match=f"TMPDIR is {folder}, a path of 76 bytes, .*: set TMPDIR to a shorter") as error:
        plan_of(*WORKERS, env={"TMPDIR": folder})
    assert error.value.code is ExitCode.CONFIG
    plan_of(*WORKERS, env={"TMPDIR": folder[:-1]})
    plan_of(env={"TMPDIR": folder})


@pytest.mark.parametrize(("length", "fits"), [(75, True), (76, False)])
def test_sockets_have_room_in_the_longest_path_that_is_allowed(length: int, fits: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as above:
        folder = Path(above, "y" * (length - len(above) - 1))
        folder.mkdir()
        # As multiprocessing.util.get_temp_dir and multiprocessing.connection.arbitrary_address have it.
        address = tempfile.mktemp(prefix="listener-", dir=tempfile.mkdtemp(prefix="pymp-", dir=folder))
        with nullcontext() if fits else pytest.raises(OSError, match="AF_UNIX path too long"):
            multiprocessing.connection.Listener(address, "AF_UNIX").close()
