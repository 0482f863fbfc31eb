"""`make help` lists every benchmark with the time it takes, and `make benchmarks` runs all that the machine can run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
HELP: dict[str, str] = dict(re.findall(r"^(benchmark[\w-]*):[^#\n]*## (.*)$", MAKEFILE, re.MULTILINE))
PROGRAMS = [path.name for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.read_text().startswith("#!")]


def test_every_benchmark_says_how_long_it_takes() -> None:
    assert "benchmarks" in HELP
    assert [name for name, text in HELP.items() if not re.search(r"\(about \d+ min", text)] == []


def test_every_program_is_a_target_and_part_of_all_benchmarks() -> None:
    assert {"launch_overhead.py", "gpu.py", "serving.py"} <= {*PROGRAMS}
    assert [name for name in PROGRAMS if f"benchmarks/{name}" not in MAKEFILE] == []
    everything = re.search(r"^benchmarks:.*\n(?:\t.*\n)+", MAKEFILE, re.MULTILINE)
    assert everything
    mentioned = everything[0].replace("gpu_benchmark", "benchmark-gpu")
    assert [name for name in HELP if name != "benchmarks" and name not in mentioned] == []
