"""What docs/runner.md says of the runner is what the runner does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import stoker
from builders import RUNTIME
from stoker import describe
from stoker.exits import ExitCode
from stoker.facts import read_facts
from stoker.plan import Request, resolve_plan
from stoker.recipes import DEFAULTS
from stoker.trainjob import job_of
from stoker.variables import KNOWN

TEXT = (Path(__file__).parents[2] / "docs" / "runner.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]
    return [[cell.strip() for cell in row.split("|")] for row in table]


def test_the_table_of_variables_is_the_runners_own() -> None:
    assert rows("Variables") == [[f"`{name}`", meaning] for name, meaning in KNOWN.items()]


def test_the_table_of_exit_codes_is_the_runners_own() -> None:
    table = rows("Exit codes")
    assert [row[:2] for row in table] == [[str(int(code)), code.meaning] for code in ExitCode]
    retried = {code: cell for code, (_, _, cell) in zip(ExitCode, table, strict=True)}
    assert {code for code, cell in retried.items() if cell == "no"} == {code for code in ExitCode if code.is_final}


def test_the_table_of_recipes_is_the_runners_own() -> None:
    assert rows("Recipes") == [[f"`{d.flag}`", f"`{d.value}`", d.where, d.reason] for d in DEFAULTS]


def test_the_plan_shown_is_the_plan_made(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (trainjob,) = (block for block in blocks if "kind: TrainJob" in block)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    job = job_of(yaml.safe_load(trainjob), RUNTIME)
    environment = job.environment(0, attempt=0, job_id="77aa", run_id="5f1c", address="sft-node-0-0.sft", port=29500)
    plan = resolve_plan(read_facts(environment, dev=tmp_path), Request(job.argv[2:]))
    assert shown == describe.plan(plan) + "\n"


def test_modules_named_exist() -> None:
    folder = Path(stoker.__file__).parent
    assert [cells[1] for cells in rows("From facts to workers") if not (folder / cells[1].strip("`")).exists()] == []
