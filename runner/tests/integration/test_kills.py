"""The kill matrix: whatever is killed, whenever, the job is Complete with all its steps, or fails with its code.

`make kill-matrix` runs every case and writes docs/reference/kill-matrix.md from what it saw.
"""

from __future__ import annotations

import signal

import pytest
from runner.tests.integration.jobs import LocalJob
from runner.tests.integration.kills import FRAMEWORKS, strike
from runner.tests.kill_matrix import CASES, LOCAL, Case, cell, recorded, twelfth

from stoker.rank.pulse import SAVING

PLAYED = twelfth(0)


# `make test` hits pods of a cluster.
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=pytest.mark.full if c in PLAYED else pytest.mark.matrix) for c in CASES]
)
def test_a_killed_job_does_all_its_steps(case: Case, request: pytest.FixtureRequest) -> None:
    training = FRAMEWORKS[case.framework]
    job: LocalJob = request.getfixturevalue(training.fixture)
    with recorded(case, LOCAL) as record:
        outcome = strike(case, job)
        ended = outcome.ended
        expected = (0,) if case.first_code == 0 else (case.first_code, 0)
        assert outcome.codes == expected, ended.output
        assert ended.code == 0, ended.output
        manifest, steps = job.manifest(), training.steps
        assert (manifest["steps"], manifest["max_steps"], manifest["world_size"]) == (steps, steps, case.nodes), (
            ended.output
        )
        assert manifest["attempt"] == len(expected) - 1
        assert manifest["metrics"]["loss"] > 0, ended.output
        assert (manifest["resumed_from"] is not None) == (case.begins_to_train and len(expected) == 2), ended.output
        if training.draft.startswith("checkpoint-") and case.phase == SAVING and case.number is signal.SIGKILL:
            assert "set aside as set-aside-checkpoint-" in ended.output, "what was half written is not taken for whole"
            assert list(job.output.glob("set-aside-checkpoint-*"))
        record.append(cell(outcome.codes[0], manifest["resumed_from"]))
