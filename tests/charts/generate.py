"""The files that are generated from the charts, as text by path; `python -m charts.generate` writes them.

For each chart its README and schema of values, and what it renders for each values file under `ci/`. For people
without Helm one rendered runtime, which the demo runs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from charts.helm import CHARTS, ROOT, TRAINING_RUNTIMES, output, template, values_files

GOLDEN = Path(__file__).resolve().parent / "golden"
DEMO_RUNTIME = ROOT / "examples" / "runtimes" / "trl-distributed-cpu.yaml"
HEADER = "# Generated from {source} by `make generate`: do not edit.\n"


def schema(chart: Path) -> str:
    """Return a chart's values.schema.json, made from the annotations in its values.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "values.schema.json"
        output("helm-values-schema-json", "--output", written, folder=chart)
        return written.read_text()


def readme(chart: Path) -> str:
    """Return a chart's README.md, made from its README.md.gotmpl and the comments in its values.yaml."""
    return output(
        "helm-docs", "--dry-run", "--log-level=error", "--sort-values-order=file", f"--chart-search-root={chart}"
    )


def rendered(chart: Path, values: Path) -> str:
    """Return what a chart renders for a values file, under a header that names both."""
    source = f"{chart.relative_to(ROOT)} with {values.relative_to(chart)}"
    return HEADER.format(source=source) + template(chart, [values]).rstrip("\n") + "\n"


def files() -> dict[Path, str]:
    """Return the content of every generated file by its path."""
    content: dict[Path, str] = {}
    for chart in CHARTS:
        content[chart / "values.schema.json"] = schema(chart).rstrip("\n") + "\n"
        content[chart / "README.md"] = readme(chart).rstrip("\n") + "\n"
        for values in values_files(chart):
            content[GOLDEN / chart.name / f"{values.stem.removesuffix('-values')}.yaml"] = rendered(chart, values)
    content[DEMO_RUNTIME] = rendered(TRAINING_RUNTIMES, TRAINING_RUNTIMES / "ci" / "cpu-values.yaml")
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
        content = files()
    except RuntimeError as error:
        sys.exit(str(error))
    for path, text in content.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
    for path in leftovers(content):
        path.unlink()
        print(f"removed: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
