"""Let ruff mend and format every Python file of the repository: `make format`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lint.files import ROOT, python_files


def main() -> int:
    """Format all Python files, scripts without a suffix included; return ruff's exit code for what it cannot mend."""
    ruff = Path(sys.executable).parent / "ruff"
    files = [str(path) for path in python_files()]
    checked = subprocess.run([ruff, "check", "--fix", *files], cwd=ROOT, check=False)
    formatted = subprocess.run([ruff, "format", *files], cwd=ROOT, check=False)
    return checked.returncode or formatted.returncode


if __name__ == "__main__":
    sys.exit(main())
