"""What the tests of the benchmarks share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns why a benchmark's `main` refuses words, before it prints anything else."""

    def of(main: Callable[[], object], *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["benchmark.py", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.splitlines()[-1].partition("benchmark.py: error: ")[2]

    return of
