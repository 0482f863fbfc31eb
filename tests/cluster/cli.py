"""The command line: up, down, status, exec, push, add, remove, env."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from . import optional
from .connection import connect
from .errors import NOT_HEALTHY, OK, UNAVAILABLE, USAGE, ClusterError
from .provider import NAMES, choose

_EXAMPLES = """\
examples:
  python3 -m cluster up                              # start it, repair it, or return at once if it is up
  python3 -m cluster exec -- kubectl get pods -A     # kubectl, helm and crane, connected to the cluster
  python3 -m cluster push ./oci-layout trainer:1.0   # prints the reference with its digest
  python3 -m cluster add kueue                       # what few tests need; `remove kueue` takes it out again
  python3 -m cluster down

exit codes:
  0   success (`status`: all healthy)       1   `status`: a component is unhealthy
  64  wrong usage                           69  something failed or is missing (the message says what)
  77  this machine cannot run the provider
  `exec` returns the exit code of its command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ClusterError as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        print(
            "cluster: error: interrupted: run the same command again to continue, or `down` to clean up",
            file=sys.stderr,
        )
        return 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors end with the documented exit code."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse never returns either
        self.exit(USAGE, f"cluster: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python3 -m cluster",
        description="A Kubernetes cluster for tests, with JobSet, Kubeflow Trainer and an OCI registry.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--provider",
        choices=NAMES,
        default=None,
        help="default: $CLUSTER_PROVIDER, else kind if Docker answers, else embedded",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("up", help="start the cluster, or repair or replace one that is broken or outdated")
    commands.add_parser("down", help="stop the cluster and remove everything it left on this machine")
    commands.add_parser("status", help="print one line per component; exit code 0 only if all are healthy")
    execute = commands.add_parser("exec", help="run a command that can reach the cluster")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    push = commands.add_parser("push", help="push an OCI layout to the cluster's registry")
    push.add_argument("layout", type=Path, metavar="OCI_LAYOUT_DIR")
    push.add_argument("name", metavar="NAME:TAG")
    for command, does in (("add", "build and install"), ("remove", "remove")):
        changed = commands.add_parser(command, help=f"{does} an add-on that few tests need")
        changed.add_argument("add_on", choices=[*optional.ADD_ONS], metavar="ADD_ON", help=", ".join(optional.ADD_ONS))
    commands.add_parser("env", help="print the variables that `exec` sets, as shell exports")
    return parser


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            choose(options.provider).up()
        case "down":
            choose(options.provider).down()
        case "status":
            return _status(options.provider)
        case "exec":
            return _exec(options.provider, options.argv)
        case "push":
            print(connect(options.provider).push(options.layout, options.name))
        case "add":
            optional.add(connect(options.provider), options.add_on)
        case "remove":
            optional.remove(connect(options.provider), options.add_on)
        case "env":
            for name, value in connect(options.provider).env.items():
                print(f"export {name}={shlex.quote(value)}")
    return OK


def _status(provider: str | None) -> int:
    components = choose(provider).status()
    width = max(len(health.component) for health in components)
    for health in components:
        print(f"{'ok  ' if health.healthy else 'FAIL'}  {health.component:{width}}  {health.detail}")
    return OK if all(health.healthy for health in components) else NOT_HEALTHY


def _exec(provider: str | None, argv: list[str]) -> int:
    command = argv[1:] if argv[:1] == ["--"] else argv
    if not command:
        print("cluster: error: exec: no command: write one, such as exec -- kubectl get nodes", file=sys.stderr)
        return USAGE
    cluster = connect(provider)
    wrapped = cluster.provider.wrap(command)
    try:
        os.execvpe(wrapped[0], wrapped, {**os.environ, **cluster.env})
    except OSError as error:
        print(f"cluster: error: exec: {wrapped[0]}: {error.strerror}", file=sys.stderr)
        return UNAVAILABLE
