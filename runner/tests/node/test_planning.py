"""A plan knows what an earlier attempt left: defaults that have changed since do not stop it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.plan.models import QWEN_8B
from runner.tests.samples import pod, saved

from stoker.contract.files import write_json
from stoker.contract.manifest import MANIFEST
from stoker.node.planning import plan_from
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan
from stoker.rank.checkpoints import choose


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """A pod with a known GPU, on which the recipe packs, and a model in its workspace."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_8B))
    told = {
        "STOKER_ACCELERATOR": "nvidia",
        "STOKER_WORKSPACE": str(tmp_path),
        "STOKER_JOB_ID": "job",
        "STOKER_ARG_MODEL_NAME_OR_PATH": str(tmp_path / "model"),
        "STOKER_ARG_USE_PEFT": "true",
        "STOKER_ARG_PER_DEVICE_TRAIN_BATCH_SIZE": "2",
    }
    return replace(pod(told, devices=("nvidia0",)), cuda_generation=9, device_bytes=141 * 2**30)


def is_packed(plan: Plan) -> bool:
    return plan.fixed["packing"] is True


def left_by(plan: Plan, *without: str) -> dict[str, Any]:
    """Return the record that a run of a plan leaves, as if its runner had not recorded some settings."""
    fixed = {name: value for name, value in plan.fixed.items() if name not in without}
    return {**plan.record, "fixed": fixed}


def test_a_run_that_begins_is_packed(facts: Facts) -> None:
    assert is_packed(plan_from(facts, []))


@pytest.mark.parametrize("without", [(), ("packing",)], ids=["recorded", "not recorded"])
def test_a_run_that_began_before_it_was_packed_resumes(facts: Facts, tmp_path: Path, without: tuple[str, ...]) -> None:
    before = plan_from(replace(facts, cuda_generation=None), [])
    assert not is_packed(before)
    checkpoint = saved(tmp_path / "output", 2, record=left_by(before, *without))
    plan = plan_from(facts, [])
    assert not is_packed(plan)
    found, _ = choose(Path(plan.output_dir), plan.record, plan.resume, anew=False)
    assert found is not None
    assert found.path == checkpoint


def test_a_run_that_began_packed_stays_packed(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(facts, [])))
    assert is_packed(plan_from(facts, []))


def test_a_finished_run_counts_as_well(facts: Facts, tmp_path: Path) -> None:
    before = plan_from(replace(facts, cuda_generation=None), [])
    (tmp_path / "output").mkdir()
    write_json(tmp_path / "output" / MANIFEST, left_by(before))
    assert not is_packed(plan_from(facts, []))


def test_what_the_user_writes_wins_over_what_was(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(replace(facts, cuda_generation=None), [])))
    assert is_packed(plan_from(facts, ["--packing"]))


def test_a_run_that_starts_anew_follows_nothing(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, record=left_by(plan_from(replace(facts, cuda_generation=None), [])))
    anew = replace(facts, env={**facts.env, "STOKER_RESUME": "never"})
    assert is_packed(plan_from(anew, []))


def test_an_incomplete_checkpoint_is_not_followed(facts: Facts, tmp_path: Path) -> None:
    saved(tmp_path / "output", 2, sealed=False)
    assert is_packed(plan_from(facts, []))
