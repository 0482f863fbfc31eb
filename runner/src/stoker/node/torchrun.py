"""Runs torchrun, and records as JSON how its workers failed.

torchrun always exits with 1 when a worker fails, and prints the cause only for people. This module uses torch's own
parser and launcher, and writes the same facts as JSON.
Usage: `python -m stoker.node.torchrun FAILURES.json <process id of the runner> <torchrun arguments>`.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from stoker.contract.exits import ExitCode
from stoker.contract.files import write_json
from stoker.contract.words import report_error
from stoker.rank.lifeline import end_with_parent

# How long the store of node 0 outlives its workers: the other nodes read there that all have ended.
_STORE_SECONDS = 1.0


def main(argv: list[str]) -> int:
    """Launch, and write `[{rank, exitcode, pid}]` of the failed processes in the order of failure.

    Returns:
        0; 1 if a process failed; 69 if the nodes did not find each other; 128 plus the number of a signal.
    """
    failures_path, runner, *arguments = argv
    end_with_parent(int(runner))

    from torch.distributed import DistError, TCPStore
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    # torchrun reads defaults from PET_<OPTION>, but the plan already sets every option.
    for name in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[name]
    told = parse_args(arguments)
    config, entrypoint, entrypoint_args = config_from_args(told)
    try:
        store = None
        # torchrun's reference ends with its agent. All who ask for a port in one process share its server.
        if told.node_rank == 0 and config.max_nodes > 1:
            store = TCPStore("localhost", told.master_port, is_master=True, multi_tenant=True, wait_for_workers=False)
        try:
            elastic_launch(config, entrypoint)(*entrypoint_args)
        except ChildFailedError as error:
            failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
            write_json(
                Path(failures_path),
                [{"rank": rank, "exitcode": failure.exitcode, "pid": failure.pid} for rank, failure in failures],
            )
            return 1
    # Also one that comes while the failures are written down.
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except (RendezvousError, DistError) as error:
        report_error(f"rendezvous failed: {error}")
        return ExitCode.UNAVAILABLE
    if store is not None:
        with suppress(SignalException):  # nothing is left to stop
            time.sleep(_STORE_SECONDS)
        del store
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
