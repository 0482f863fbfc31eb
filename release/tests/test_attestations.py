"""What is attached to a release: SBOMs that list what the locks do, and provenance, the same bytes at each build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from images.builder.catalogue import variants
from release import ROOT, bill, commit, parts, provenance, tools
from release.artifacts import Artifact, charts, read_references
from release.images import push_layout
from release.tests.conftest import Release

from cluster import oci

IMAGES = {"trl-cpu", "fetch", "proxy"}
CHART = "training-runtimes"
DIGEST = f"sha256:{'a' * 64}"


def image(name: str) -> Artifact:
    """Return an image as if it had been pushed."""
    (variant,) = (variant for variant in variants() if variant.target == name)
    return Artifact(f"registry.example.com/{variant.image}", variant.tag, DIGEST)


def released(release: Release, registry: str, folder: Path) -> list[Artifact]:
    """Release small images, a chart and the Python package with all that is attached, and return all of it."""
    folder.mkdir()
    to = ["--registry", registry, "--plain-http"]
    lines = []
    for variant in (variant for variant in variants() if variant.target in IMAGES):
        content = folder / variant.target
        content.write_text(variant.target)
        layout = folder / f"{variant.target}-layout"
        oci.write_layout(layout, {"/name": content}, ["/name"])
        reference = f"{registry}/{variant.image}:{variant.tag}"
        lines.append(f"{reference}@{push_layout(layout, reference, plain_http=True)}\n")
    lists = [folder / f"{name}.txt" for name in ("images", "charts", "python", "attestations")]
    lists[0].write_text("".join(lines))
    lock = folder / "lock.yaml"
    release("digests", lists[0], "--overlay", lock)
    release("charts", CHART, *to, "--lock", lock, "--out", lists[1])
    release("python", "--out", folder / "dist", *to, "--list", lists[2])
    release("attest", *lists[:3], "--lock", lock, "--plain-http", "--out", lists[3])
    return [item for path in lists for item in read_references(path.read_text())]


def crane(*words: str) -> Any:
    """Return JSON that crane prints."""
    return json.loads(tools.run("crane", words[0], "--insecure", *words[1:]))


def attached(artifact: Artifact) -> dict[str, Any]:
    """Return what a registry lists as referrers of an artifact, by type: the one file of each."""
    assert artifact.digest
    index = crane("manifest", f"{artifact.repository}:{artifact.digest.replace(':', '-')}")
    found = {}
    for entry in index["manifests"]:
        manifest = crane("manifest", f"{artifact.repository}@{entry['digest']}")
        assert manifest["subject"]["digest"] == artifact.digest
        (layer,) = manifest["layers"]
        found[manifest["artifactType"]] = crane("blob", f"{artifact.repository}@{layer['digest']}")
    return found


@pytest.mark.full
def test_a_release_that_is_built_twice_is_the_same_bytes(release: Release, registry: str, tmp_path: Path) -> None:
    first, second = (released(release, f"{registry}/{name}", tmp_path / name) for name in ("first", "second"))
    assert [(item.name, item.tag, item.digest) for item in first] == [
        (item.name, item.tag, item.digest) for item in second
    ]
    assert len(first) == 3 * (len(IMAGES) + 2)

    for artifact in first[: len(IMAGES) + 2]:
        found = attached(artifact)
        assert found.keys() == {bill.MEDIA_TYPE, provenance.MEDIA_TYPE}, artifact
        (subject,) = found[provenance.MEDIA_TYPE]["subject"]
        assert f"sha256:{subject['digest']['sha256']}" == artifact.digest
        assert found[bill.MEDIA_TYPE]["metadata"]["component"]["name"] == artifact.name
        # crane alone can read them, by the tag of what they are about.
        assert crane("manifest", f"{artifact.reference.partition('@')[0]}.sbom")["artifactType"] == bill.MEDIA_TYPE

    # A chart's SBOM has the digests of its images.
    (version,) = (chart.version for chart in charts() if chart.name == CHART)
    (chart,) = (item for item in first if item.name == CHART and item.tag == version)
    listed = {component["purl"] for component in attached(chart)[bill.MEDIA_TYPE]["components"]}
    assert listed == {f"pkg:oci/{item.name}@{item.digest}" for item in first[: len(IMAGES)]}


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: str(variant.target))
def test_an_sbom_is_one_and_lists_the_locks(variant: Any) -> None:
    artifact = image(variant.target)
    held, sources = parts.parts_of(artifact)
    document = bill.document(artifact, held)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None
    components = json.loads(document)["components"]
    assert len(components) == len(held) == len({component["purl"] for component in components})
    text = "".join(path.read_text() for path in sources)
    for part in held:
        assert part.version, part
        assert part.version in text, part


def test_packages_are_those_of_the_image() -> None:
    held, _ = parts.parts_of(image("trl-cpu"))
    kinds = {part.name: part.kind for part in held}
    assert (kinds["trl"], kinds["torch"], kinds["library/python"]) == ("pypi", "pypi", "docker")
    assert "bitsandbytes" not in kinds  # only for GPUs
    modules, _ = parts.parts_of(image("proxy"))
    assert "github.com/caddyserver/caddy/v2" in {part.name for part in modules}
    needed, _ = parts.parts_of(Artifact("registry.example.com/python/stoker", "0.1.0", DIGEST))
    assert [part.name for part in needed] == ["click", "pyyaml"]


def test_provenance_names_commit_locks_and_builder() -> None:
    source = ROOT / "images" / "images.lock.yaml"
    workflow = {"GITHUB_WORKFLOW_REF": "stoker-dev/stoker/.github/workflows/release.yaml@refs/heads/main"}
    found = json.loads(provenance.statement(image("fetch"), [source], workflow))
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [{"name": "fetch:0.1.0", "digest": {"sha256": "a" * 64}}]
    definition = found["predicate"]["buildDefinition"]
    checkout, lock = definition["resolvedDependencies"]
    assert checkout["digest"] == {"gitCommit": commit.revision()}
    assert lock["name"] == "images/images.lock.yaml"
    assert definition["internalParameters"] == {"modified": commit.is_modified()}
    assert found["predicate"]["runDetails"]["builder"]["id"] == f"https://github.com/{workflow['GITHUB_WORKFLOW_REF']}"
    assert provenance.builder({}).endswith("release.md#try-it-out")


def test_a_mirror_gets_what_is_attached(release: Release, registry: str, tmp_path: Path) -> None:
    items = released(release, f"{registry}/built/stoker-dev", tmp_path / "built")
    (fetch,) = (item for item in items if item.name == "fetch" and item.tag == "0.1.0")
    words = ["--plain-http", "--registry", f"{registry}/built/stoker-dev", "--lock", tmp_path / "built" / "lock.yaml"]
    shown = release(
        "mirror-list", "--signatures", "--chart", CHART, "--resolve", *words, "--prefix", f"{registry}/mirror"
    )
    for line in shown.stdout.splitlines():
        tools.run(*line.split())
    assert attached(fetch.below(f"{registry}/mirror")) == attached(fetch)


@pytest.mark.parametrize(
    ("artifact", "told"),
    [
        (Artifact("registry.example.com/trl", "0.1.0-cpu"), "has no digest: only what was pushed has one"),
        (Artifact("registry.example.com/trl", "9.9.9", DIGEST), "is not an image, chart or package of this checkout"),
    ],
)
def test_what_is_not_of_this_checkout_is_refused(
    release: Release, tmp_path: Path, artifact: Artifact, told: str
) -> None:
    (tmp_path / "list.txt").write_text(f"{artifact.reference}\n")
    assert told in release("attest", tmp_path / "list.txt", code=65).stderr


def test_nothing_is_attached_to_what_the_registry_does_not_have(
    release: Release, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text(f"{registry}/fetch:0.1.0@{DIGEST}\n")
    assert "crane manifest" in release("attest", tmp_path / "list.txt", "--plain-http", code=69).stderr
