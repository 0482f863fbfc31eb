"""Make the notebooks of `examples/lab` from its scripts, and run them.

`make generate-notebooks` does so, in the environment of the image `lab`, with a tiny model.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from runner.tests.lab.servers import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT: Any = nbformat  # its functions have no types
LAB = Path(__file__).parents[3] / "examples" / "lab"
SCRIPTS = sorted(LAB.glob("*.py"))
ARGUMENT = re.compile(r'sys\.argv\[1\] if len\(sys\.argv\) > 1 else (".*")')
GUIDE = "docs/guides/notebook.md"
OUTPUTS = """Made from [{name}]({name}). The outputs below are those of the tests' tiny model with random weights, which
shows that each cell runs. Set the variable `MODEL` to use a model other than the example's."""


def notebook(script: Path) -> nbformat.NotebookNode:
    """Return the notebook of a script, not executed: what `main` does becomes cells.

    Args:
        script: an example with a docstring, definitions, and a `main` that ends with one `with`, such as
            `with Policy(…) as policy:`.
    """
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, _, _ = (ast.get_docstring(tree) or "").partition(": `python")
    needs = (ast.get_docstring(tree) or "").partition("\n\n")[2].replace(GUIDE, f"[the guide](../../{GUIDE})")
    cells = [FORMAT.v4.new_markdown_cell(f"# {title}\n\n{needs}\n\n{OUTPUTS.format(name=script.name)}")]
    cells += [FORMAT.v4.new_code_cell(source) for source in _sources(text, tree)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    made: nbformat.NotebookNode = FORMAT.v4.new_notebook(cells=cells, metadata=about)
    return made


def run(script: Path, model: Path | str, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook of a script with what its cells print.

    Args:
        script: the example.
        model: what the variable MODEL names.
        folder: what the cells write lands here.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    done = notebook(script)
    told = {**os.environ, **VLLM, "MODEL": str(model), "VLLM_LOGGING_LEVEL": "ERROR"}
    # Where it is set, ipykernel's stdout has no file descriptor, which vLLM asks for.
    told.pop("PYTEST_CURRENT_TEST", None)
    NotebookClient(done, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute(env=told)
    for cell in done.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # Progress bars and warnings differ in each run.
            cell.outputs = [seen for seen in cell.outputs if seen.get("name") == "stdout"]
    done.metadata["language_info"] = {"name": "python"}
    return done


def _sources(text: str, tree: ast.Module) -> Iterator[str]:
    """Yield the code of each cell."""
    lines = text.splitlines()
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    yield _lines(lines, imports[0].end_lineno, imports[-1].end_lineno).replace("import sys", "import os")
    defined = _lines(lines, imports[-1].end_lineno, main.lineno - 1)
    if defined:
        yield defined
    block = main.body[-1]
    if not isinstance(block, ast.With):
        message = f"line {block.lineno}: the last statement of main must be `with … as …:`"
        raise TypeError(message)
    settings = _lines(lines, main.body[0].end_lineno, block.lineno - 1)
    (item,) = block.items
    name, opened = ast.unparse(item.optional_vars or item), ast.get_source_segment(text, item.context_expr)
    yield ARGUMENT.sub(r'os.environ.get("MODEL", \1)', f"{settings}\n{name} = {opened}")
    begin = block.lineno
    for node in block.body[:-1]:
        if isinstance(node, ast.For) or ast.unparse(node).startswith("print("):
            yield _lines(lines, begin, node.end_lineno)
            begin = node.end_lineno or begin
    yield _lines(lines, begin, block.body[-1].end_lineno)
    yield f"{name}.close()"


def _lines(lines: Sequence[str], after: int | None, last: int | None) -> str:
    """Return the lines after one up to another, without their indentation."""
    return textwrap.dedent("\n".join(lines[after or 0 : last])).strip()


def main() -> None:
    """Write notebooks, executed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--into", type=Path, default=LAB, help="folder of the notebooks (default: that of the scripts)")
    parser.add_argument("--only", help="the one script, without .py (default: all)")
    args = parser.parse_args()
    for script in SCRIPTS:
        if args.only in {None, script.stem}:
            with tempfile.TemporaryDirectory() as folder:
                done = run(script, args.model, Path(folder))
            FORMAT.write(done, args.into / script.with_suffix(".ipynb").name)


if __name__ == "__main__":
    main()
