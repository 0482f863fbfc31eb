"""The command line: each command calls the module that does its work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from images.builder.catalogue import LOCK

from release import (
    artifacthub,
    artifacts,
    changelog,
    digests,
    distributions,
    images,
    mirror,
    packages,
    policy,
    signing,
    site,
    tools,
)
from release.errors import DATA, USAGE, ReleaseError

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _epilog(*examples: str) -> str:
    return "\b\nexamples:\n" + "\n".join(f"  {example}" for example in examples)


def _lock_option() -> Decorator:
    return click.option(
        "--lock", type=_FILE, default=LOCK, help="The lock of images; default: images/images.lock.yaml."
    )


def _registry_options() -> Decorator:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        registry = click.option(
            "--registry", help="Where it goes, such as registry.example.com/team; default: the lock's."
        )
        return registry(_plain_http(command))

    return decorate


_plain_http = click.option("--plain-http", is_flag=True, help="The registry speaks HTTP.")
_out = click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the list into a file.")
_lists = click.argument("lists", nargs=-1, required=True, type=_FILE)


@click.group(context_settings={"max_content_width": 120})
def cli() -> None:
    r"""Publish images and charts, step by step; the make targets release-* call these commands.

    \b
    exit codes: 0 done, 64 wrong usage, 65 what is to be released is not fit for it, 69 a tool or a registry failed,
    78 a program is missing on this machine
    """


@cli.command(
    "mirror-list",
    epilog=_epilog(
        "python -m release mirror-list",
        "python -m release mirror-list --accelerator cuda --prefix registry.example.com/mirror | sh -ex",
    ),
)
@click.option("--prefix", help="Print `crane copy` commands to this registry (host, and a path if wanted).")
@click.option("--accelerator", "accelerators", multiple=True, help="Only images for this one; may be repeated.")
@click.option("--chart", "names", multiple=True, help="Only this chart and the images it lists; may be repeated.")
@click.option("--resolve", is_flag=True, help="Ask the registry for digests that are not known.")
@click.option("--signatures", is_flag=True, help="List the signatures, too (all digests must be known: --resolve).")
@_registry_options()
@_lock_option()
def mirror_list(
    prefix: str | None,
    accelerators: tuple[str, ...],
    names: tuple[str, ...],
    resolve: bool,
    signatures: bool,
    registry: str | None,
    plain_http: bool,
    lock: Path,
) -> None:
    """Print what an air-gapped site must copy: every image and every chart, by digest where that is known.

    Charts of a checkout have no known digest: --resolve asks for the published one.
    """
    if prefix and "://" in prefix:
        bare = prefix.partition("://")[2]
        raise ReleaseError(USAGE, f"--prefix {prefix} (PREFIX) is a URL: write the registry's host alone, {bare}")
    chosen = [artifacts.chart(name) for name in names] or artifacts.charts()
    listed = {image for chart in chosen for image in artifacthub.listed_images(chart)} if names else None
    source = registry or artifacts.registry(lock)
    found = [
        replace(image, repository=f"{source}/{image.name}")
        for image in artifacts.locked_images(lock, accelerators)
        if listed is None or image.name in listed
    ]
    found += [chart.artifact(source) for chart in chosen]
    if resolve:
        found = [replace(item, digest=item.digest or _published_digest(item, plain_http)) for item in found]
    if signatures:
        found = mirror.with_signatures(found)
    click.echo(mirror.copy_commands(found, prefix, plain_http) if prefix else artifacts.references(found), nl=False)


def _published_digest(artifact: artifacts.Artifact, plain_http: bool) -> str:
    return tools.run("crane", "digest", *(["--insecure"] if plain_http else []), artifact.reference).strip()


@cli.command(
    "images",
    epilog=_epilog(
        "python -m release images --out images.txt",
        "python -m release images trl-cpu --builder buildah --registry localhost:5000/trial --plain-http",
    ),
)
@click.argument("targets", nargs=-1)
@click.option("--builder", type=click.Choice(images.BUILDERS), default="docker", show_default=True)
@_registry_options()
@_out
def images_command(
    targets: tuple[str, ...], builder: str, registry: str | None, plain_http: bool, out: Path | None
) -> None:
    """Build and push the images that the lock has no digest for (TARGETS as docker-bake.hcl names them)."""
    found = images.unpublished(targets)
    _report(images.push(found, registry or artifacts.registry(), builder, plain_http), out)


@cli.command(
    "digests",
    epilog=_epilog("python -m release digests images.txt", "python -m release digests images.txt --overlay trial.yaml"),
)
@_lists
@_lock_option()
@click.option(
    "--overlay",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Leave the lock as it is, and write one with these images alone here: for --lock of other commands.",
)
def digests_command(lists: tuple[Path, ...], lock: Path, overlay: Path | None) -> None:
    """Write the digests of pushed images (LISTS as `images` writes them) into the lock."""
    text = lock.read_text(encoding="utf-8")
    pushed = _read(lists)
    found = digests.pushed_digests(text, pushed)
    if overlay:
        overlay.write_text(digests.overlay(text, found), encoding="utf-8")
    else:
        if lock == LOCK:
            digests.expect_registry(text, pushed)
        lock.write_text(digests.with_digests(text, found), encoding="utf-8")


@cli.command("check", epilog=_epilog("python -m release check", "python -m release check training-runtimes-1.2.3"))
@click.argument("names", nargs=-1)
def check_command(names: tuple[str, ...]) -> None:
    """Compare charts with their last published version (Git tag NAME-VERSION) by the version policy.

    NAMES are charts, or the tag that publishes one now; default: all charts.
    """
    chosen = [(artifacts.chart(name), name) for name in names] or [(c, c.name) for c in artifacts.charts()]
    found = [finding for chart, name in chosen for finding in policy.check(chart, publishing=name == chart.tag)]
    if found:
        raise ReleaseError(DATA, "\n".join(found))


@cli.command(
    "charts",
    epilog=_epilog(
        "python -m release charts training-runtimes --out charts.txt",
        "python -m release charts training-runtimes --registry localhost:5000/trial --plain-http",
    ),
)
@click.argument("names", nargs=-1, required=True)
@click.option("--packages", "folder", type=click.Path(file_okay=False, path_type=Path), help="Keep the packages here.")
@_registry_options()
@_lock_option()
@_out
def charts_command(
    names: tuple[str, ...], folder: Path | None, registry: str | None, plain_http: bool, lock: Path, out: Path | None
) -> None:
    """Package charts and push them, once all their images are published."""
    chosen = [artifacts.chart(name) for name in names]
    for chart in chosen:
        packages.check_digests(chart, lock)
    destination = registry or artifacts.registry(lock)
    _report([packages.publish(chart, destination, lock, plain_http, folder) for chart in chosen], out)


@cli.command(
    "sign", epilog=_epilog("python -m release sign images.txt", "python -m release sign --key cosign.key images.txt")
)
@_lists
@click.option("--key", type=_FILE, help="A private key of cosign's; default: the identity of the workflow.")
@_plain_http
def sign_command(lists: tuple[Path, ...], key: Path | None, plain_http: bool) -> None:
    """Sign what was pushed (LISTS as `images` and `charts` write them), by digest."""
    signing.sign(_read(lists), key, plain_http)


@cli.command(
    "verify",
    epilog=_epilog("python -m release verify images.txt", "python -m release verify --key cosign.pub images.txt"),
)
@_lists
@click.option("--key", type=_FILE, help="The public key; default: the release workflow must have signed.")
@_plain_http
def verify_command(lists: tuple[Path, ...], key: Path | None, plain_http: bool) -> None:
    """Verify the signatures of LISTS."""
    signing.verify(_read(lists), key, plain_http)


@cli.command(
    "python",
    epilog=_epilog(
        "python -m release python --out dist",
        "python -m release python --out dist --registry localhost:5000/trial --plain-http --list python.txt",
    ),
)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder.")
@click.option("--registry", help="Also push both here, as python/stoker:VERSION.")
@_plain_http
@click.option(
    "--list", "listed", type=click.Path(dir_okay=False, path_type=Path), help="Write what was pushed into this file."
)
def python_command(out: Path, registry: str | None, plain_http: bool, listed: Path | None) -> None:
    """Build the Python package: source distribution, wheel, and SHA256SUMS of both."""
    built = distributions.build(out)
    for path in built:
        click.echo(path)
    if registry:
        _report([distributions.push(built, registry, plain_http)], listed)


@cli.command(
    "attest",
    epilog=_epilog(
        "python -m release attest images.txt --out attestations.txt",
        "python -m release attest images.txt charts.txt python.txt --plain-http",
    ),
)
@_lists
@_lock_option()
@_plain_http
@_out
def attest_command(lists: tuple[Path, ...], lock: Path, plain_http: bool, out: Path | None) -> None:
    """Attach provenance (SLSA) and SBOM (CycloneDX) to what was pushed (LISTS as other commands write them).

    Both are made from this checkout and its locks, and are the same bytes each time.
    """
    from release import attestations

    _report(attestations.attach(_read(lists), lock, plain_http), out)


@cli.command("site", epilog=_epilog("python -m release site training-runtimes --out site"))
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder of all versions."
)
def site_command(names: tuple[str, ...], out: Path) -> None:
    """Build the documentation for the version of each chart (NAMES are charts, or their tags).

    Each version has its folder. Links to files of the repository go to the chart's tag if that is what you name.
    """
    for name in names:
        chart = artifacts.chart(name)
        click.echo(site.build(chart, out, ref=chart.tag if name == chart.tag else "main"))


@cli.command("notes", epilog=_epilog("python -m release notes training-runtimes"))
@click.argument("name")
def notes_command(name: str) -> None:
    """Print what the changelog says of a chart's version."""
    newest, *_ = changelog.read(artifacts.chart(name).folder)
    click.echo(newest.text)


def _read(lists: tuple[Path, ...]) -> list[artifacts.Artifact]:
    return [item for path in lists for item in artifacts.read_references(path.read_text(encoding="utf-8"))]


def _report(published: list[artifacts.Artifact], out: Path | None) -> None:
    text = artifacts.references(published)
    click.echo(text, nl=False)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every ending has a code and, if it is not 0, one message."""
    try:
        result: Any = cli.main(arguments, prog_name="python -m release", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(USAGE)
    except click.UsageError as error:
        click.echo(f"release: error: {error.format_message()} (see --help)", err=True)
        sys.exit(USAGE)
    except ReleaseError as error:
        click.echo("\n".join(f"release: error: {line}" for line in error.message.splitlines()), err=True)
        sys.exit(error.code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(result if isinstance(result, int) else 0)
