"""The files that are generated from the charts, as text by path; `python -m charts.generate` writes them.

For each chart its README and schema of values, what it renders for each values file under `ci/` (of many runtimes a
few), and the annotations of its Chart.yaml that list its images (all variants of those it renders) and the changes of
its version. For people without Helm rendered runtimes, which demo and examples run. For the runner the shape of a
TrainJob, from Trainer's CRD.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from release import artifacthub
from release.artifacts import read_chart

from charts import trainer
from charts.helm import (
    CHARTS,
    LIBRARY,
    ROOT,
    TRAINING_RUNTIMES,
    VLLM_SERVING,
    manifests,
    output,
    run,
    template,
    values_files,
)
from charts.images import images, names_in_lock
from charts.runtimes import KINDS
from stoker.contract.variables import KNOWN
from stoker.frameworks import known_frameworks
from stoker.plan.interfaces import TrainingFramework
from stoker.tinker.options import FLAGS

GOLDEN = Path(__file__).resolve().parent / "golden"
EXAMPLES = ROOT / "examples" / "runtimes"
RUNNER_FACTS = TRAINING_RUNTIMES / "files" / "runner.json"
ACCELERATORS = VLLM_SERVING / "files" / "accelerators.json"
CATALOGUE = ROOT / "docs" / "reference" / "runtimes.md"
_ENTRIES = ("<!-- entries -->\n", "<!-- /entries -->\n")
TRAINJOB = ROOT / "runner/src/stoker/cluster/schemas/trainjob-v1alpha1.json"
RENDERED_EXAMPLES = {
    "generic-cpu": "trl-distributed-cpu.yaml",
    "grpo-async-cpu": "trl-grpo-async-cpu.yaml",
    "grpo-async-external-cpu": "trl-grpo-async-external-cpu.yaml",
    "tinker-cpu": "trl-tinker-cpu.yaml",
}
HEADER = "# Generated from {source} by `make generate`: do not edit.\n"

KEPT = {
    "cpu": ("torchtune-distributed", "trl-distributed", "trl-qwen3-0.6b"),
    "default": ("torchtune-qwen2.5-1.5b",),
    "policies": (),
    "side-by-side": ("trl-distributed-next",),
}
"""The runtimes that a golden render shows where its values make more of a kind; test_runtimes.py holds the others."""


def schema(chart: Path) -> str:
    """Return a chart's values.schema.json, made from the annotations in its values.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "values.schema.json"
        output("helm-values-schema-json", "--output", written, folder=chart)
        return written.read_text()


USERS_MAPS = {"accelerators", "monitoring.dashboardLabels"}
"""The maps whose keys users may take away as they add their own."""


def is_group(path: str, default: Any) -> bool:
    """Return whether a key of values.yaml is a group of values; a map that users fill is one value.

    Args:
        path: of the key, with dots.
        default: what values.yaml has there.
    """
    return isinstance(default, dict) and bool(default) and path not in USERS_MAPS


def without_holes(schema: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a schema by which no value that has a default can be taken away.

    To Helm a null, as a key without a value is in YAML, means to take the default away: templates would find nothing in
    its place, and write zero or fail with words about themselves. A value that may be null says so by its type.

    Args:
        schema: of a group of values.
        defaults: what values.yaml has in that group.
        prefix: the path of the group and a dot, or nothing.
    """
    parts: dict[str, Any] = schema["properties"]
    for name, default in defaults.items():
        if is_group(prefix + name, default):
            parts[name] = without_holes(parts[name], default, f"{prefix}{name}.")
    needed = [name for name, default in defaults.items() if default and "null" not in parts[name].get("type", ())]
    return {**schema, **({"required": sorted(needed)} if needed else {})}


def with_library(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a chart's schema that lets through what Helm itself adds to the values: a map for the library chart."""
    # A pattern, because it is no value that anybody sets.
    added = {"type": "object", "properties": {"global": {}}, "additionalProperties": False}
    return {**schema, "patternProperties": {f"^{LIBRARY.name}$": added}}


def values_schema(chart: Path) -> str:
    """Return a chart's values.schema.json, which lets no default be taken away."""
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    made = without_holes(with_library(json.loads(schema(chart))), defaults)
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def readme(chart: Path) -> str:
    """Return a chart's README.md, made from its README.md.gotmpl and the comments in its values.yaml.

    Raises:
        RuntimeError: the template is broken; helm-docs itself prints what came before, and ends well.
    """
    done = run(
        "helm-docs", "--dry-run", "--log-level=warning", "--sort-values-order=file", f"--chart-search-root={chart}"
    )
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"helm-docs: {done.stderr}")
    return done.stdout


def golden(chart: Path, values: Path) -> Path:
    """Return the file that keeps what a chart renders for a values file; one is for people to copy, too."""
    example = RENDERED_EXAMPLES.get(_case(values)) if chart == TRAINING_RUNTIMES else None
    return GOLDEN / chart.name / f"{_case(values)}.yaml" if example is None else EXAMPLES / example


def _case(values: Path) -> str:
    return values.stem.removesuffix("-values")


def shown(chart: Path, values: Path, render: str) -> str:
    """Return what a golden file shows of a render: a header that names chart and values, and no more than KEPT."""
    source = f"{chart.relative_to(ROOT)} with {values.relative_to(chart)}"
    kept = KEPT.get(_case(values)) if chart == TRAINING_RUNTIMES else None
    if kept is not None:
        source += f" (of the runtimes: {', '.join(kept) or 'none'})"
    documents = re.split(r"^(?=---$)", render, flags=re.MULTILINE)
    text = "".join(document for document in documents if _is_shown(document, kept))
    return HEADER.format(source=source) + text.rstrip("\n") + "\n"


def _is_shown(document: str, kept: tuple[str, ...] | None) -> bool:
    return kept is None or all(
        item["kind"] not in KINDS or item["metadata"]["name"] in kept for item in manifests(document)
    )


def runner_facts() -> str:
    """Return what the runner takes, as JSON: the catalogue's chart refuses values that would fail in the pod."""
    frameworks = {name: _framework_facts(framework) for name, framework in sorted(known_frameworks().items())}
    # A port that is not the chart's would be reached by nobody.
    endpoints = {"tinker": sorted({flag.name for flag in FLAGS} - {"host", "port"})}
    facts = {"variables": sorted(KNOWN), "frameworks": frameworks, "endpoints": endpoints}
    return json.dumps(facts, indent=1) + "\n"


def accelerators() -> str:
    """Return the catalogue's accelerator profiles as JSON: kinds of nodes are written once, for all charts."""
    values = yaml.safe_load((TRAINING_RUNTIMES / "values.yaml").read_text())
    return json.dumps(values["accelerators"], indent=1) + "\n"


def _framework_facts(framework: TrainingFramework) -> dict[str, object]:
    # A flag that another method has is no mistake in a runtime: the runner drops it, with a notice.
    tables = [framework.flag_table(method) for method in framework.methods]
    flags = {flag for table in tables for flag in table.flags}
    reserved = {flag for table in tables for flag in table.reserved}
    refused = reserved | ({flag for table in tables for flag in (*table.renamed, *table.removed)} - flags)
    return {
        "methods": list(framework.methods),
        "shardings": list(framework.shardings),
        # Where each config has keys of its own there is no list of all.
        "flags": [] if framework.has_configs else sorted(flags - reserved),
        "refused": {flag: tables[0].refusal(flag) for flag in sorted(refused)},
    }


def catalogue() -> str:
    """Return docs/reference/runtimes.md with the table of what lies in runtimes/."""
    rows = ["| runtime | framework | fetches | for |", "|---|---|---|---|"]
    for path in sorted((ROOT / "runtimes").glob("*.yaml")):
        entry = yaml.safe_load(path.read_text())
        model = f"`{entry['model']}`" + (" (gated)" if entry.get("gated") else "") if "model" in entry else "nothing"
        instead = entry.get("deprecated", {}).get("replacement")
        what = entry["description"] + (f" Deprecated: use `{instead}`." if instead else "")
        rows.append(f"| `{entry['name']}` | {entry['framework']} | {model} | {what} |")
    begin, end = _ENTRIES
    before, rest = CATALOGUE.read_text().split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *rows, "", end]) + after


def read_by_helm() -> dict[Path, str]:
    """Return the generated files without which Helm does not render the charts as they should be."""
    schemas = {chart / "values.schema.json": values_schema(chart) for chart in CHARTS}
    return {RUNNER_FACTS: runner_facts(), ACCELERATORS: accelerators(), **schemas}


def description(chart: Path, renders: list[str]) -> str:
    """Return a chart's Chart.yaml with its annotations, given all that it renders."""
    names = names_in_lock(images(manifests("".join(renders))))
    text = artifacthub.with_changes(artifacthub.with_images((chart / "Chart.yaml").read_text(), names), chart)
    return artifacthub.with_pictures(text, read_chart(chart))


def files() -> dict[Path, str]:
    """Return the content of every generated file by its path."""
    content = read_by_helm()
    for chart in CHARTS:
        content[chart / "README.md"] = readme(chart).rstrip("\n") + "\n"
        renders = {values: template(chart, [values]) for values in values_files(chart)}
        content |= {golden(chart, values): shown(chart, values, render) for values, render in renders.items()}
        content[chart / "Chart.yaml"] = description(chart, list(renders.values()))
    content[CATALOGUE] = catalogue()
    content[TRAINJOB] = json.dumps(trainer.trainjob_schema(), separators=(",", ":"), sort_keys=True) + "\n"
    return content


def leftovers(content: dict[Path, str]) -> list[Path]:
    """Return rendered files whose values file is gone."""
    return sorted(path for path in GOLDEN.rglob("*.yaml") if path not in content)


def main() -> None:
    """Write what differs, remove what is left over, and say so.

    Raises:
        SystemExit: a chart is broken; the message holds what the tool said that found it.
    """
    try:
        _write(read_by_helm())
        content = files()
    except RuntimeError as error:
        sys.exit(str(error))
    _write(content)
    for path in leftovers(content):
        path.unlink()
        print(f"removed: {path.relative_to(ROOT)}")


def _write(content: dict[Path, str]) -> None:
    for path, text in content.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
