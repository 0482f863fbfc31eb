"""Record what a runner makes of the configurations, to compare later ones with.

`python -m runner.tests.parity.record --source TREE`, where TREE is a checkout of the commit to record; the interpreter
needs click and PyYAML.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.tests.parity.configurations import TRL_METHODS, TUNE_METHODS, Configuration, Generator
from runner.tests.parity.outcomes import play, write
from runner.tests.parity.trainjobs import of_tree

_SEED = 869
_COUNT = 1000


def configurations(tree: Path) -> list[Configuration]:
    """Return what is played: configurations made up from the tree's own flags, its TrainJobs and its catalogue."""
    source = tree / "runner/src"
    listed = [Configuration(f"flags {method}", ["flags", method]) for method in (*TRL_METHODS, *TUNE_METHODS)]
    env = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    flags = {
        listing.arguments[1]: subprocess.run(
            [sys.executable, "-P", "-m", "stoker", *listing.arguments],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for listing in listed
    }
    return [*Generator(_SEED, flags).configurations(_COUNT), *of_tree(tree), *listed]


def main() -> None:
    """Record a source tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="Checkout of the commit to record.")
    parser.add_argument("--output", type=Path, help="File of the record; by default this folder's, by the commit.")
    given = parser.parse_args()
    tree = given.source.resolve()
    git = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    played = configurations(tree)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = play(tree / "runner/src", Path(folder), played)
    output = given.output or Path(__file__).with_name(f"{commit}.jsonl.xz")
    write(output, zip(played, outcomes, strict=True), f"recorded from commit {commit}, seed {_SEED}")
    print(f"{output}: {len(played)} configurations, {sum(o['code'] == 0 for o in outcomes)} of them valid")


if __name__ == "__main__":
    main()
