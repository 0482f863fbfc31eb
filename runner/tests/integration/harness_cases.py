"""A task of one's own by lm-evaluation-harness, and held-out rows, on a result and on a server of it.

`python harness_cases.py MODEL FOLDER URL CONTEXT`, with the server's longest context in tokens
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from click.testing import CliRunner

from stoker.commands.main import main
from stoker.contract.manifest import write_manifest

ROWS = [{"question": f"{a}+1=", "choices": [f"{a + 1}", "9"], "right": 0} for a in range(6)]
HELD_OUT = [{"prompt": f"{a}+2=", "completion": f" {a + 2}"} for a in range(6)]
TASK = {
    "task": "stoker_sums",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_target": "right",
    "doc_to_choice": "choices",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def run(model: Path, folder: Path, url: str, context: int) -> None:
    """Measure a whole model, whose manifest lies beside it, and the server that has it as `tiny`."""
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    # JSON is YAML too.
    (folder / "sums.yaml").write_text(json.dumps({**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}))
    output = folder / "output"
    output.mkdir()
    for path in model.iterdir():
        (output / path.name).write_bytes(path.read_bytes())
    told = {"method": "sft", "base_model": {"name_or_path": str(model), "revision": None}}
    write_manifest(output, told)
    words = ("evaluate", str(output), "--tasks", "stoker_sums", "--include-path", str(folder), "--limit", "5")
    measure(0, *words)
    measure(0, *words, "--server", f"{url}/v1", "--model", "tiny")
    loaded, served = json.loads((output / "evaluation.json").read_text())["evaluations"]
    assert (loaded["of"], served["of"]) == ("result", "tiny")
    assert 0 <= loaded["tasks"]["stoker_sums"]["acc"] <= 1
    assert served["tasks"]["stoker_sums"]["acc"] == loaded["tasks"]["stoker_sums"]["acc"]
    assert loaded["limit"] == served["limit"] == 5
    lost = {**TASK, "task": "stoker_lost", "dataset_kwargs": {"data_files": {"test": str(folder / "lost.jsonl")}}}
    (folder / "lost.yaml").write_text(json.dumps(lost))
    for more in ((), ("--server", url, "--model", "tiny")):
        refused = measure(66, words[0], words[1], "--tasks", "stoker_lost", *words[4:], *more)
        assert "--tasks: stoker_lost cannot be loaded (" in refused, refused
    assert "does not answer as other" in measure(69, *words, "--server", url, "--model", "other")

    held = folder / "held-out.jsonl"
    held.write_text("".join(json.dumps(row) + "\n" for row in HELD_OUT))
    of_rows = ("evaluate", str(output), "--data", str(held))
    measure(0, *of_rows)
    measure(0, *of_rows, "--server", url, "--model", "tiny")
    loaded, served = (
        one["held_out"] for one in json.loads((output / "evaluation.json").read_text())["evaluations"][2:]
    )
    assert served["tokens"] == loaded["tokens"] > 0
    assert math.isclose(served["loss"], loaded["loss"], rel_tol=1e-3), (served, loaded)
    assert math.isclose(served["token_accuracy"], loaded["token_accuracy"], abs_tol=0.05), (served, loaded)
    assert "as other, as vLLM does" in measure(69, *of_rows, "--server", url, "--model", "other")

    # A row that fills the server's context leaves no room for the token that vLLM writes.
    held.write_text(json.dumps({"prompt": "1+2=", "completion": " 3" * context}) + "\n")
    write_manifest(output, {**told, "settings": {"max_length": str(context)}})
    assert f"a context length of {context + 1}" in measure(78, *of_rows, "--server", url, "--model", "tiny")


def measure(code: int, *words: str) -> str:
    """Run a command of stoker that ends with a code, and return what it printed."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == code, done.output
    return done.output


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
