"""torchrun, with its verdict written down.

torchrun exits with 1 whatever its workers exited with, and prints which of them died how only for humans. This
module launches through torch's own parser and launcher and leaves the same facts as JSON.
Started as `python -m stoker.node.torchrun FAILURES.json <process id of the runner> <torchrun arguments>`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.contract.exits import ExitCode
from stoker.contract.files import write_json
from stoker.rank.lifeline import end_with_parent


def main(argv: list[str]) -> int:
    """Launch, and write `[{rank, exitcode, pid}]` of the processes that failed, the first to fail first.

    Returns:
        0, 69 if the nodes did not find each other, 128 and the signal's number if one came, or 1 if a process failed.
    """
    failures_path, runner, *arguments = argv
    end_with_parent(int(runner))

    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    # torchrun reads an option's default from PET_<OPTION>; the plan says all there is to say.
    for name in [name for name in os.environ if name.startswith("PET_")]:
        del os.environ[name]
    config, entrypoint, entrypoint_args = config_from_args(parse_args(arguments))
    try:
        elastic_launch(config, entrypoint)(*entrypoint_args)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        write_json(
            Path(failures_path),
            [{"rank": rank, "exitcode": failure.exitcode, "pid": failure.pid} for rank, failure in failures],
        )
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except (RendezvousError, DistError) as error:
        print(f"rendezvous failed: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
