"""What the documents say of the runner is what the runner does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from runner.tests.samples import resolve

import stoker
from builders import RUNTIME
from stoker.cluster.pods import job_of
from stoker.commands import describe
from stoker.contract.exits import ExitCode
from stoker.contract.variables import KNOWN
from stoker.frameworks.trl.recipes import DEFAULTS
from stoker.plan.facts import read_facts

DOCS = Path(__file__).parents[3] / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading of a page, without its head."""
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]
    return [[cell.strip() for cell in row.split("|")] for row in table]


def test_the_table_of_variables_is_the_runners_own() -> None:
    assert rows("reference/variables.md", "Stoker's") == [[f"`{name}`", meaning] for name, meaning in KNOWN.items()]


def test_the_table_of_exit_codes_is_the_runners_own() -> None:
    table = rows("reference/exit-codes.md", "The codes")
    assert [row[:2] for row in table] == [[str(int(code)), code.meaning] for code in ExitCode]
    retried = {code: cell for code, (_, _, cell) in zip(ExitCode, table, strict=True)}
    assert {code for code, cell in retried.items() if cell == "no"} == {code for code in ExitCode if code.is_final}


def test_the_table_of_recipes_is_the_runners_own() -> None:
    # The table below it, of known GPUs, has three columns.
    table = [row for row in rows("reference/trainer-flags.md", "Recipes") if len(row) == 4]
    assert table == [[f"`{d.flag}`", f"`{d.value}`", d.where, d.reason] for d in DEFAULTS]


def test_the_plan_shown_is_the_plan_made(tmp_path: Path) -> None:
    text = (DOCS / "guides" / "check-a-trainjob.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (trainjob,) = (block for block in blocks if "kind: TrainJob" in block)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    job = job_of(yaml.safe_load(trainjob), RUNTIME)
    environment = job.environment(0, attempt=0, job_id="77aa", run_id="5f1c", address="sft-node-0-0.sft", port=29500)
    plan = resolve(read_facts(environment, dev=tmp_path), job.argv[2:])
    assert shown == describe.plan_text(plan) + "\n"


def test_modules_named_exist() -> None:
    folder = Path(stoker.__file__).parent
    modules = [cells[1].strip("`") for cells in rows("concepts/runner.md", "From facts to workers")]
    assert [module for module in modules if not (folder / module).exists()] == []
