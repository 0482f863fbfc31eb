"""Columns of files that only the trainer's environment can write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

PROGRAM = """
import json, sys
from pathlib import Path
import pyarrow, pyarrow.parquet
from stoker.node.read_inputs import read_data
folder = Path(sys.argv[1])
rows = [{"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "score": 1.5}]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
print(json.dumps(read_data(folder, None, "train").columns))
"""


def test_columns_of_parquet_are_read_from_its_footer(trainer_python: Path, tmp_path: Path) -> None:
    done = subprocess.run([trainer_python, "-c", PROGRAM, tmp_path], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"prompt": "messages", "chosen": "text", "score": "other"}
