"""docs/reference/kill-matrix.md keeps what earlier runs saw, and nothing of a case that did not come to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests import kill_matrix
from runner.tests.kill_matrix import (
    CASES,
    CLUSTER,
    FRAMEWORKS,
    LOCAL,
    NOT_SEEN,
    PHASES,
    SIGNALS,
    TARGETS,
    read_table,
    recorded,
    twelfth,
)
from runner.tests.rollout_kill_matrix import DISK, LOCAL_CASES, PROXY, ROLLOUT_CASES

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "kill-matrix.md"


def test_the_matrix_is_whole() -> None:
    assert len(set(CASES)) == len(CASES) == len(FRAMEWORKS) * len(SIGNALS) * len(PHASES) * len(TARGETS)


def test_a_twelfth_has_each_phase_and_both_places_have_each_framework_there() -> None:
    here, there = twelfth(0), twelfth(1)
    for cases in (here, there):
        assert len(cases) == len(CASES) / 12
        assert {case.phase for case in cases} == {*PHASES}
        assert {case.number for case in cases} == {*SIGNALS}
        assert {case.target for case in cases} == {*TARGETS}
    both = {(case.framework, case.phase) for case in here | there}
    assert len(both) == len(FRAMEWORKS) * len(PHASES)


def test_each_case_has_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kill-matrix.md"
    monkeypatch.setattr(kill_matrix, "REPORT", str(path))
    first, second, unseen, *_ = CASES
    for case in (first, second):
        with recorded(case, "here") as record:
            record.append("70, then 0 from step 0")
    with recorded(first, "there") as record:
        record.append("no restart")
    with pytest.raises(AssertionError), recorded(second, "here"):
        raise AssertionError
    seen = read_table(path.read_text())
    assert list(seen) == ["trl, here", "trl, there"]
    for case, said in ((first, "70, then 0 from step 0"), (second, NOT_SEEN), (unseen, NOT_SEEN)):
        assert seen["trl, here"][case.key] == said


def test_cases_with_samplers_have_rows_where_they_can_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kill-matrix.md"
    monkeypatch.setattr(kill_matrix, "REPORT", str(path))
    first, *_, disk = ROLLOUT_CASES
    assert disk.hit == DISK
    of_clusters = "After a lost node a cluster makes the samplers anew"
    for case, where in ((first, LOCAL), (disk, LOCAL), (CASES[0], LOCAL), (CASES[0], CLUSTER), (first, CLUSTER)):
        assert not path.exists() or of_clusters not in path.read_text(), "no table has such a cell yet"
        with recorded(case, where) as record:
            record.append("0, no restart")
    assert of_clusters in path.read_text()
    seen = read_table(path.read_text())
    headings = [f"{framework}, {where}" for framework in ("grpo_async", "trl") for where in (LOCAL, CLUSTER)]
    assert [*seen] == headings
    local, cluster, *_ = seen.values()
    assert ([*local], [*cluster]) == ([case.key for case in LOCAL_CASES], [case.key for case in ROLLOUT_CASES])
    assert not any(PROXY in key for key in local)
    assert (local[first.key], local[disk.key]) == ("0, no restart", "0, no restart")
    assert cluster[ROLLOUT_CASES[1].key] == NOT_SEEN
    assert kill_matrix.table(seen) == path.read_text()


def test_the_document_is_what_its_cells_come_to() -> None:
    text = DOCUMENT.read_text()
    assert kill_matrix.table(read_table(text)) == text
