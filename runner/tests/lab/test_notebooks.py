"""The notebooks are the example scripts in cells, and they and the guide's code run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from runner.tests.lab.notebooks import FORMAT, SCRIPTS, notebook
from runner.tests.lab.scripts import printed
from runner.tests.lab.servers import VLLM

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "notebook.md"
BLOCKS = [part.partition("```")[0] for part in GUIDE.read_text(encoding="utf-8").split("```python\n")[1:]]
SAID = "after `make generate-notebooks` commit the notebooks"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_executed(script: Path) -> None:
    found = FORMAT.read(script.with_suffix(".ipynb"), as_version=4)
    FORMAT.validate(found)
    wanted = notebook(script)
    assert [(cell.cell_type, cell.source) for cell in found.cells] == [
        (cell.cell_type, cell.source) for cell in wanted.cells
    ], SAID
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), SAID
    assert " steps; " in "".join(output.text for cell in code for output in cell.outputs)


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs(script: Path, lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    words = ("--into", tmp_path, "--only", script.stem)
    printed(lab_python, "-m", "runner.tests.lab.notebooks", lab_inputs / "model", *words, told=VLLM)
    outputs = [cell.get("outputs", []) for cell in FORMAT.read(tmp_path / f"{script.stem}.ipynb", as_version=4).cells]
    assert " steps; " in "".join(output.text for cell in outputs for output in cell)


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_of_the_guide_runs(number: int, lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    code = BLOCKS[number].replace("Qwen/Qwen2.5-0.5B-Instruct", str(lab_inputs / "model"))
    done = subprocess.run(
        [lab_python, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, **VLLM},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout or list(tmp_path.iterdir())
