"""Two sessions at once: starts them, trains both, prints what each has learnt, and ends them without remains.

`python examples/two-sessions/two_sessions.py --help`. It needs kubectl, and the runner with its extra `cluster`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

NAMES = ("sums-one", "sums-two")
TRAINJOB = Path(__file__).resolve().parents[1] / "async-grpo" / "trainjob.yaml"
LABEL = "stoker.dev/session"
# All that a session consists of.
KINDS = "trainjobs,jobsets,jobs,pods,secrets,services,networkpolicies,persistentvolumeclaims,leases"
# What sessions share has this label, and the TrainJobs of all of them for owners.
SHARED = "stoker.dev/shared-by-sessions"
# Steps whose mean is shown, at the start and at the end.
WINDOW = 10
LOOK_SECONDS = 5.0


class FailedError(Exception):
    """Something went wrong, in words for the user."""


class Tools:
    """`stoker` and `kubectl`, in one namespace."""

    def __init__(self, namespace: str, context: str | None) -> None:
        self._stoker = ["--namespace", namespace, *(["--context", context] if context else [])]
        self._kubectl = ["--namespace", namespace, *([f"--context={context}"] if context else [])]

    def stoker(self, *words: str) -> str:
        """Run a command of Stoker's, whose progress the user sees, and return what it printed."""
        return _output([sys.executable, "-m", "stoker", *words, *self._stoker])

    def states(self) -> dict[str, str]:
        """Return the state of each session that is there."""
        return {row["name"]: row["state"] for row in json.loads(self.stoker("rl", "list", "--output", "json"))}

    def there(self) -> list[str]:
        """Return what has the name of one of the sessions, or is the claim of an earlier one."""
        named = [f"trainjob/{name}" for name in NAMES] + [f"persistentvolumeclaim/initializer-{name}" for name in NAMES]
        return _output(["kubectl", "get", *named, "--ignore-not-found", "--output", "name", *self._kubectl]).split()

    def left(self, *, devices: bool) -> list[str]:
        """Return what carries the label of one of the sessions, or has one for an owner.

        Args:
            devices: look for claims of devices too, which not every cluster knows.
        """
        kinds = ",resourceclaims" if devices else ""
        selector = f"{LABEL} in ({','.join(NAMES)})"
        named = self._get(KINDS + kinds, selector, "name").split()
        shared = json.loads(self._get("leases" + kinds, SHARED, "json"))["items"]
        return named + [
            f"{one['kind'].lower()}/{one['metadata']['name']}"
            for one in shared
            if any(owner["name"] in NAMES for owner in one["metadata"].get("ownerReferences", ()))
        ]

    def _get(self, kinds: str, selector: str, output: str) -> str:
        return _output(["kubectl", "get", kinds, "--selector", selector, "--output", output, *self._kubectl])


def rewards_of(metrics: str) -> list[float]:
    """Return the mean reward of each step, by a run's metrics.jsonl."""
    lines = (json.loads(line) for line in metrics.splitlines() if line.startswith("{"))
    return [line["reward"] for line in lines if "reward" in line]


def summary(name: str, rewards: Sequence[float]) -> str:
    """Return what a session has learnt, as a line."""
    first, last = fmean(rewards[:WINDOW]), fmean(rewards[-WINDOW:])
    return f"{name}: {len(rewards)} steps, mean reward {first:.3f} in the first {WINDOW} and {last:.3f} in the last"


def train(tools: Tools, args: argparse.Namespace) -> dict[str, list[float]]:
    """Start both sessions, wait until both have finished, and return their rewards."""
    shared = ["--device-claim", args.device_claim] if args.device_claim else []
    shared += ["--turns"] if args.turns else []
    for wait in ("0", str(args.wait)):  # both start before the first is waited for
        for name in NAMES:
            if wait != "0" and tools.states().get(name) == "Complete":  # `rl up` refuses a session that has ended
                continue
            told = tools.stoker(
                "rl", "up", name, str(args.trainjob), "--time-limit", args.time_limit, "--wait", wait, *shared
            )
            if wait != "0":
                print(told)
    running = set(NAMES)
    while running:
        time.sleep(LOOK_SECONDS)
        states = tools.states()
        for name in sorted(running):
            state = states.get(name, "gone")
            if state == "Complete":
                print(f"{name}: finished", flush=True)
                running.remove(name)
            elif state in ("Failed", "gone"):
                raise FailedError(f"{name} is {state}: see `stoker rl logs {name}` with --keep")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            tools.stoker("get", name, f"{folder}/{name}", "--only", "metrics.jsonl")
            found[name] = rewards_of((Path(folder) / name / "metrics.jsonl").read_text())
            if not found[name]:
                raise FailedError(f"{name} reported no reward: name a TrainJob that has rewards with --trainjob")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Do all of it, and return 0 if both sessions have learnt and nothing is left."""
    args = _arguments(argv)
    tools = Tools(args.namespace, args.context)
    code = 1
    try:
        if there := tools.there():
            raise FailedError(
                f"{', '.join(there)} is there already: fetch what you need with `stoker get`, end each session with "
                "`stoker rl down NAME --purge`, or choose another --namespace"
            )
    except FailedError as error:
        print(f"two_sessions.py: error: {error}", file=sys.stderr)
        return code
    try:
        found = train(tools, args)
        for name, rewards in found.items():
            print(summary(name, rewards))
        if not all(fmean(one[-WINDOW:]) > fmean(one[:WINDOW]) for one in found.values()):
            raise FailedError("a session earned no more at its end than at its start: raise --max_steps")
        code = 0
    except FailedError as error:
        print(f"two_sessions.py: error: {error}", file=sys.stderr)
    finally:
        # What a run that failed has written is wanted still.
        code = code if args.keep else max(code, _end(tools, devices=bool(args.device_claim), purge=not code))
    return code


def _end(tools: Tools, *, devices: bool, purge: bool) -> int:
    """End both sessions, with `purge` their results too, and return 0 if nothing of them is left."""
    try:
        for name in NAMES:
            tools.stoker("rl", "down", name, *(["--purge"] if purge else []))
        left = tools.left(devices=devices)
    except FailedError as error:
        print(f"two_sessions.py: error: {error}", file=sys.stderr)
        return 1
    print(f"left: {', '.join(left) or 'nothing'}")
    return int(bool(left))


def _output(command: Sequence[str]) -> str:
    done: Any = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise FailedError(f"`{' '.join(command)}` ended with {done.returncode}")
    return str(done.stdout)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--namespace", default="default", help="Namespace of both sessions.")
    add("--context", help="Context of your kubeconfig; by default its current one.")
    add("--trainjob", type=Path, default=TRAINJOB, help="File with the TrainJob that both run.")
    add(
        "--device-claim",
        metavar="NAME=CLASS",
        help="Device that the samplers of both share, where the runtime says so.",
    )
    add("--turns", action="store_true", help="Let them take turns at it.")
    add("--time-limit", default="2h", help="End each session after so long.")
    add("--wait", type=float, default=1800.0, help="Seconds to wait until a session is up.")
    add("--keep", action="store_true", help="Leave both sessions as they are.")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
