"""`stoker board`: a page of runs, curves and serving releases."""

from __future__ import annotations

import click

from stoker.commands.group import reported


@click.command(
    "board",
    epilog="\b\nExamples:\n"
    "  stoker board --namespace team-a\n"
    "  stoker board --namespace team-a --namespace team-b\n"
    "  stoker board --folder ./first-run --folder ./second-run\n"
    "\b\nExit codes:\n"
    "   0  you stopped it\n"
    "  64  an option is wrong\n"
    "  66  a folder does not exist (without --wait-for-folders)\n"
    "  78  a package is missing, there is no kubeconfig and no folder, or the port is taken\n",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig; by default its current one.")
@click.option(
    "-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Namespace; by default the context's."
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    metavar="[NAME=]PATH",
    help="Files of runs: a claim, or a folder from `stoker get`. NAME is CLAIM or NAMESPACE/CLAIM[/FOLDER].",
)
@click.option("--wait-for-folders", "waits", is_flag=True, help="Start even if folders do not exist yet.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to answer at; empty for all.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8086,
    show_default=True,
    help="Port to answer at; 0 for a free one.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another name than localhost under which browsers reach the page; * for any.",
)
@click.option("--root-path", default="", metavar="PATH", help="Path of the page behind a proxy, such as /board.")
@reported
def board_command(
    context: str | None,
    namespaces: tuple[str, ...],
    folders: tuple[str, ...],
    waits: bool,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    root_path: str,
) -> None:
    """Show runs, their curves and serving releases as a web page, until you stop it.

    The page changes nothing: it lists objects of the cluster and reads folders. It has no login, so by default only
    this machine reaches it.
    """
    from stoker.board.serve import Board, run

    run(Board(namespaces, folders, host, port, waits, hosts, root_path, context))
