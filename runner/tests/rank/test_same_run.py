"""A resumed run is the run that it was: what must stay is refused with both values, what may change is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner.tests.samples import MINE, plan_of, saved

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import MANIFEST
from stoker.plan.plan import Plan
from stoker.rank import checkpoints, same_run

MIN_LR = "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs"
GRPO = ("trl.scripts.grpo", "--reward_funcs", "think_format_reward")


def left_by(plan: Plan) -> dict[str, object]:
    """Return what a run leaves on disk about itself."""
    record: dict[str, object] = json.loads(json.dumps(plan.record))
    return record


def refusal(before: Plan, now: Plan) -> str:
    """Return why a run may not resume."""
    with pytest.raises(RunError) as refused:
        same_run.refuse_other_run("checkpoint c", left_by(before), now.record, now.sources)
    assert refused.value.code is ExitCode.CONFIG
    return refused.value.message


def resumes(before: Plan, now: Plan) -> None:
    """Fail if a run may not resume."""
    same_run.refuse_other_run("checkpoint c", left_by(before), now.record, now.sources)


def said(before: Plan, now: Plan) -> list[str]:
    """Return what is said of a resume."""
    return list(same_run.notices("checkpoint-5", left_by(before), now.record, now.free))


@pytest.mark.parametrize(
    ("method", "before", "now", "difference"),
    [
        ("sft", "--learning_rate 2e-4", "--learning_rate 1e-3", "learning_rate was 0.0002, now 0.001 (args)"),
        ("sft", "", "--learning_rate 1e-3", "learning_rate was 2e-05, now 0.001 (args)"),
        ("sft", "--seed 7", "", "seed was 7, now 42"),
        ("sft", "--packing", "", "packing was True, now False"),
        ("sft", "", "--max_length none", "max_length was 1024, now None (args)"),
        ("dpo", "", "--beta 0.5", "beta was 0.1, now 0.5 (args)"),
        ("dpo", "", "--loss_type ipo", "loss_type was ['sigmoid'], now ['ipo'] (args)"),
        ("grpo", "", "--num_generations 4", "num_generations was 8, now 4 (args)"),
        (
            "sft",
            "--per_device_train_batch_size 4",
            "--gradient_accumulation_steps 2",
            "per_device_train_batch_size × gradient_accumulation_steps was 4, now 16",
        ),
    ],
)
def test_what_decides_what_is_learnt_must_stay(method: str, before: str, now: str, difference: str) -> None:
    start = GRPO if method == "grpo" else (f"trl.scripts.{method}",)
    message = refusal(plan_of(*start, *before.split()), plan_of(*start, *now.split()))
    assert message.startswith(
        f"checkpoint c belongs to another run: {difference}. To resume it, write the former value;"
    )
    assert "its own workspace or output_dir, or set STOKER_RESUME=never" in message


def test_other_rewards_are_another_run() -> None:
    other = plan_of("trl.scripts.grpo", "--reward_funcs", "think_format_reward", "my_rewards.exact")
    assert (
        "reward_funcs was ['think_format_reward'], now ['think_format_reward', 'my_rewards.exact'] (args)"
        in refusal(plan_of(*GRPO), other)
    )


def test_every_difference_is_named_with_the_layer_that_set_it() -> None:
    now = plan_of("--lora_r", "4", "--use_peft", env={"STOKER_ARG_SEED": "1"})
    message = refusal(plan_of("--lora_r", "8", "--use_peft"), now)
    assert (
        "peft.lora_r was 8, now 4 (args); seed was 42, now 1 (TrainJob env). To resume it, write the former values"
        in (message)
    )


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--learning_rate 2e-4", "--learning_rate 0.0002"),
        ("", "--learning_rate 2e-5 --seed 42 --packing false --max_length 1024"),
        ("--max_steps 10", "--max_steps 20 --save_steps 5 --logging_steps 1 --report_to tensorboard --run_name x"),
        ("--num_train_epochs 1", "--num_train_epochs 2 --eval_strategy steps --per_device_eval_batch_size 2"),
        (f'{MIN_LR} {{"min_lr":0,"num_cycles":2}}', f'{MIN_LR}={{"num_cycles":2,"min_lr":0}}'),
    ],
    ids=["another spelling", "the trainer's defaults", "more steps", "more epochs", "JSON"],
)
def test_what_changes_nothing_of_what_is_learnt_is_not_even_said(before: str, now: str) -> None:
    first, second = (plan_of(*text.split()) for text in (before, now))
    resumes(first, second)
    assert said(first, second) == []


def test_a_null_in_a_file_is_what_the_trainer_reads() -> None:
    unlimited = plan_of("--config", "/c", config={"max_length": None})
    assert "max_length was None, now 1024" in refusal(unlimited, plan_of("--config", "/c", config={}))
    resumes(unlimited, plan_of("--config", "/c", "--max_length", "none", config={}))


def test_a_smaller_batch_that_is_accumulated_more_often_resumes_with_a_notice() -> None:
    out_of_memory = plan_of("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "2")
    smaller = plan_of("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "4")
    resumes(out_of_memory, smaller)
    (notice,) = said(out_of_memory, smaller)
    assert notice == (
        "other settings than those of checkpoint-5: gradient_accumulation_steps was 2, now 4; "
        "per_device_train_batch_size was 8, now 4"
    )


def test_a_generation_batch_must_stay_however_it_is_written() -> None:
    start = (*GRPO, "--per_device_train_batch_size", "8")
    explicit = plan_of(*start, "--generation_batch_size", "16")
    resumes(plan_of(*start), explicit)
    assert "generation_batch_size was 16, now 32" in refusal(explicit, plan_of(*start, "--steps_per_generation", "2"))


def test_what_an_older_checkpoint_lacks_is_said_and_never_refused() -> None:
    before, now = left_by(plan_of("--seed", "1")), plan_of("--learning_rate", "1e-3")
    older = {"fingerprint": before["fingerprint"]}
    same_run.refuse_other_run("checkpoint c", older, now.record)
    (notice,) = same_run.notices("checkpoint-5", older, now.record, now.free)
    assert notice.startswith("checkpoint-5 is from an older Stoker, which did not record learning_rate, ")
    assert notice.endswith(" more: they are not compared, and must be what they were")
    # One that knew some settings is compared by those.
    fixed = before["fixed"]
    assert isinstance(fixed, dict)
    del fixed["learning_rate"]
    with pytest.raises(RunError, match=r"another run: seed was 1, now 42\. "):
        same_run.refuse_other_run("checkpoint c", before, now.record)
    notice, *_ = same_run.notices("checkpoint-5", before, now.record, now.free)
    assert "did not record learning_rate: they" in notice


def test_a_setting_that_this_runner_no_longer_compares_is_let_be() -> None:
    before, now = left_by(plan_of()), plan_of()
    same_run.refuse_other_run("x", {**before, "fixed": {**now.fixed, "gone": 1}}, now.record)


def test_a_tuple_equals_the_list_it_is_read_back_as() -> None:
    same_run.refuse_other_run("x", {"fingerprint": {"targets": ["q"]}}, {"fingerprint": {"targets": ("q",)}})


@pytest.mark.parametrize("fixed", [None, [], "text"])
def test_a_record_of_another_make_counts_as_an_older_one(fixed: object) -> None:
    theirs = {"fingerprint": MINE, "fixed": fixed, "settings": fixed}
    ours = {"fingerprint": MINE, "fixed": {"seed": 1}, "settings": {"seed": "1"}}
    same_run.refuse_other_run("x", theirs, ours)
    assert len(list(same_run.notices("x", theirs, ours, ()))) == 1


def test_a_seal_holds_what_is_compared(tmp_path: Path) -> None:
    plan = plan_of("--seed", "7")
    saved(tmp_path, 5, record=plan.record)
    chosen, _ = checkpoints.choose(tmp_path, plan.record, "auto", anew=False)
    assert chosen is not None
    assert list(same_run.notices("checkpoint-5", chosen.record or {}, plan.record, plan.free)) == []
    other = plan_of("--seed", "8")
    with pytest.raises(RunError, match=r"checkpoint-5 belongs to another run: seed was 7, now 8 \(args\)"):
        checkpoints.choose(tmp_path, other.record, "auto", anew=False, sources=other.sources)


def test_a_finished_output_is_not_the_result_of_another_learning_rate(tmp_path: Path) -> None:
    done, now = plan_of("--learning_rate", "1e-3"), plan_of("--learning_rate", "1e-4")
    (tmp_path / MANIFEST).write_text(json.dumps({**done.record, "budget": done.budget, "steps": 10}))
    assert checkpoints.finished_manifest(tmp_path, done.record, done.budget) is not None
    with pytest.raises(RunError, match=r"learning_rate was 0\.001, now 0\.0001 \(args\)"):
        checkpoints.finished_manifest(tmp_path, now.record, now.budget, now.sources)
