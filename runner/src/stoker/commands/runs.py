"""`stoker runs`, `status`, `explain`, `top`, `logs`, `get`, `submit`, `stop`, `resume`: runs on a cluster."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stoker.commands.group import PATH, formatted, reported
from stoker.contract.words import say

# How every command about a cluster finds it.
_CLUSTER = (
    click.option("--context", metavar="NAME", help="Context of the kubeconfig; by default its current one."),
    click.option("-n", "--namespace", metavar="NAME", help="Namespace; by default the context's."),
)


def on_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that find the cluster."""
    for option in reversed(_CLUSTER):
        command = option(command)
    return command


@click.command(
    "runs",
    epilog="\b\nExamples:\n"
    "  stoker runs\n"
    "  stoker runs --all-namespaces\n"
    "  stoker runs --output json | jq -r '.[] | select(.state == \"Failed\") | .name'",
)
@on_cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Runs of all namespaces.")
@formatted()
@reported
def runs_command(context: str | None, namespace: str | None, everywhere: bool, output: str) -> None:
    """List the runs of a namespace, newest first: state, progress, loss, restarts, and why one waits or failed."""
    from stoker.runs import show, words
    from stoker.runs.client import connect
    from stoker.runs.read import read_runs

    client = connect(context, namespace)
    runs, hidden = read_runs(client, everywhere)
    for line in hidden:
        say(line)
    if output == "json":
        show.print_json(runs)
    elif runs:
        show.print_table(words.list_of(runs, datetime.now(UTC), everywhere))
    else:
        where = "on this cluster" if everywhere else f"in namespace {client.namespace}"
        say(f"there are no runs {where}: --namespace or --all-namespaces shows others")


@click.command(
    "status",
    epilog="\b\nExamples:\n  stoker status tune\n  stoker status tune --namespace team-a --output json",
)
@click.argument("name")
@on_cluster
@formatted()
@reported
def status_command(name: str, context: str | None, namespace: str | None, output: str) -> None:
    """Show run NAME: its state, its last report, and its pods."""
    from stoker.runs import show, words
    from stoker.runs.client import connect
    from stoker.runs.read import read_run

    seen = read_run(connect(context, namespace), name)
    run = seen.run
    for line in seen.hidden:
        say(line)
    if output == "json":
        show.print_json(run)
        return
    show.print_facts(words.facts_of(run, datetime.now(UTC)))
    if run.pods:
        click.echo()
        show.print_table(words.pods_of(run))


@click.command(
    "explain",
    epilog="\b\nExamples:\n  stoker explain tune\n  stoker explain tune --output json | jq -r '.[].fix'",
)
@click.argument("name")
@on_cluster
@formatted()
@reported
def explain_command(name: str, context: str | None, namespace: str | None, output: str) -> None:
    """Explain why run NAME is pending, restarts, is slow or failed, and what to do about each cause."""
    from stoker.runs import show, words
    from stoker.runs.client import connect
    from stoker.runs.explain import explain
    from stoker.runs.read import read_all

    seen = read_all(connect(context, namespace), name)
    for line in seen.hidden:
        say(line)
    found = explain(seen, datetime.now(UTC)) or [words.unexplained(seen)]
    if output == "json":
        show.print_json(found)
    else:
        show.print_lines(words.findings_of(found))


@click.command(
    "top",
    epilog="\b\nExamples:\n  stoker top\n  stoker top --all-namespaces --interval 10\n  stoker top --times 1",
)
@on_cluster
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Runs of all namespaces.")
@click.option(
    "--interval",
    type=click.FloatRange(1),
    default=5.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--times", type=click.IntRange(1), help="Number of updates; by default until Ctrl-C.")
@formatted()
@reported
def top_command(
    context: str | None, namespace: str | None, everywhere: bool, interval: float, times: int | None, output: str
) -> None:
    """Watch all runs: step, loss and its curve, tokens per second, time left, restarts, reason, age of RL samples.

    On a terminal the view updates in place; elsewhere each update prints a table. The curve begins when you start the
    command. With --output json each update is one line.
    """
    from stoker.runs.client import connect
    from stoker.runs.top import top

    try:
        top(connect(context, namespace), everywhere, interval, times, as_json=output == "json")
    except KeyboardInterrupt:  # the way to end it
        return


@click.command(
    "logs",
    epilog="\b\nExamples:\n"
    "  stoker logs tune --follow\n"
    "  stoker logs tune --role node-0 --tail 50\n"
    "  stoker logs tune --role model-initializer --role sampler\n"
    "  stoker logs tune --output json | jq -r .text",
)
@click.argument("name")
@on_cluster
@click.option("-f", "--follow", is_flag=True, help="Keep printing, across restarts, until the run ends or is stopped.")
@click.option("--role", "roles", multiple=True, help="Show only these roles, such as node, node-0 or sampler-1/vllm.")
@click.option("--tail", type=click.IntRange(0), help="Lines to show from the end of each log.")
@click.option("--timestamps", is_flag=True, help="Show the time in front of each line.")
@formatted()
@reported
def logs_command(
    name: str,
    context: str | None,
    namespace: str | None,
    follow: bool,
    roles: tuple[str, ...],
    tail: int | None,
    timestamps: bool,
    output: str,
) -> int:
    """Show the logs of all pods of run NAME as one log; each line begins with role and rank.

    With --follow, the exit code is 70 if the run failed.
    """
    from stoker.contract.exits import ExitCode
    from stoker.runs import logs, show, words
    from stoker.runs.client import connect
    from stoker.runs.run import State

    width = 0

    def write(line: logs.LogLine) -> None:
        nonlocal width
        width = max(width, len(line.source.label))
        if output == "json":
            show.print_json_line(logs.facts_of(line))
        else:
            show.print_line(logs.shown(line, width, timestamps))

    client = connect(context, namespace)
    if follow:
        state = logs.follow(client, name, roles, tail, write, lambda run: say(words.state_of(run)))
        return ExitCode.CRASHED if state is State.FAILED else ExitCode.FINISHED
    count = 0
    for line in logs.past(client, name, roles, tail):
        count += 1
        write(line)
    if not count:
        say(f"the pods of {name} have no such log (any more): `stoker status {name}{client.options}` lists its pods")
    return ExitCode.FINISHED


@click.command(
    "get",
    epilog="\b\nExamples:\n"
    "  stoker get tune ./tune\n"
    "  stoker get tune ./tune-checkpoints --all\n"
    "  stoker get tune ./why --only last-error.json\n"
    "  stoker get tune ./model --path model",
)
@click.argument("name")
@click.argument("folder", type=PATH)
@on_cluster
@click.option("--path", default="output", show_default=True, help="Folder in the run's workspace.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Download only these files, such as '*.json'.")
@click.option("--all", "everything", is_flag=True, help="Download checkpoints too.")
@click.option("--image", metavar="IMAGE", help="Image of the pod that reads the claim; by default the run's.")
@click.option("--claim", metavar="NAME", help="Claim to read; by default the run's.")
@formatted()
@reported
def get_command(
    name: str,
    folder: Path,
    context: str | None,
    namespace: str | None,
    path: str,
    only: tuple[str, ...],
    everything: bool,
    image: str | None,
    claim: str | None,
    output: str,
) -> None:
    """Download the result of run NAME from its claim into FOLDER, and verify checksums.

    A pod with the run's image reads the claim and is removed at the end. After an interruption, repeat the command.
    """
    from stoker.runs import show
    from stoker.runs.client import connect
    from stoker.runs.get import ResultSelection, get
    from stoker.runs.words import size_of

    with interrupted_by_any_signal(), show.progress() as begin:
        brought = get(
            connect(context, namespace),
            name,
            folder,
            ResultSelection(path, only, everything, image or "", claim or ""),
            lambda file, number, count: begin(f"{number} of {count}: {file.path}", file.size),
        )
    if output == "json":
        show.print_json(brought)
    else:
        there = len(brought.files) - brought.fetched
        known = f", {there} of them were there already" if there else ""
        files = "1 file" if len(brought.files) == 1 else f"{len(brought.files)} files"
        click.echo(f"{brought.folder} has {files} of {name} ({size_of(brought.bytes)}){known}")


@contextmanager
def interrupted_by_any_signal() -> Iterator[None]:
    """Let whatever ends the command end it as Ctrl-C does, so that its pod goes."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(
    "submit",
    epilog="\b\nExamples:\n"
    "  stoker submit trainjob.yaml\n"
    "  stoker trainjob sft --name tune --model hf://Qwen/Qwen3-0.6B --dataset hf://trl-lib/Capybara | stoker submit -",
)
@click.argument("trainjob", type=PATH)
@on_cluster
@click.option("--check/--no-check", default=True, show_default=True, help="Run the checks of `stoker validate` first.")
@formatted()
@reported
def submit_command(trainjob: Path, context: str | None, namespace: str | None, check: bool, output: str) -> None:
    """Submit the TrainJobs in file TRAINJOB (`-` is standard input), all of them or none."""
    from stoker.runs import show
    from stoker.runs.act import submit
    from stoker.runs.client import connect, context_option, namespace_options

    made = submit(connect(context, namespace), trainjob, check, namespace)
    if output == "json":
        show.print_json([{"namespace": where, "name": name} for where, name in made])
        return
    for where, name in made:
        logs = f"stoker logs {name} --follow{namespace_options(context_option(context), where)}"
        click.echo(f"{name} is submitted to namespace {where}: {logs}")


@click.command("stop", epilog="\b\nExamples:\n  stoker stop tune")
@click.argument("name")
@on_cluster
@formatted()
@reported
def stop_command(name: str, context: str | None, namespace: str | None, output: str) -> None:
    """Stop run NAME: its pods save a checkpoint, end, and free their nodes. `stoker resume` continues it."""
    from stoker.runs.act import stop
    from stoker.runs.client import connect

    _tell(name, stop(connect(context, namespace), name), output)


@click.command("resume", epilog="\b\nExamples:\n  stoker resume tune")
@click.argument("name")
@on_cluster
@formatted()
@reported
def resume_command(name: str, context: str | None, namespace: str | None, output: str) -> None:
    """Continue run NAME from its newest checkpoint, after `stoker stop`."""
    from stoker.runs.act import resume
    from stoker.runs.client import connect

    _tell(name, resume(connect(context, namespace), name), output)


def _tell(name: str, told: str, output: str) -> None:
    from stoker.runs import show

    if output == "json":
        show.print_json({"name": name, "told": told})
    else:
        click.echo(told)


COMMANDS = (
    runs_command,
    status_command,
    explain_command,
    top_command,
    logs_command,
    get_command,
    submit_command,
    stop_command,
    resume_command,
)
