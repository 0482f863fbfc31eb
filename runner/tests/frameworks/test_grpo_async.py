"""What `stoker plan` says of asynchronous GRPO: its defaults, and what it refuses with what to write instead."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from runner.tests.samples import pod, resolve

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest
from stoker.frameworks.trl.asynchronous.request import seconds_to_wait, versions_needed
from stoker.plan.plan import Plan

METHOD = ("trl.scripts.grpo_async", "--samplers", "role", "--reward_funcs", "math_answer")
RUN = (*METHOD, "--use_peft")


def planned(*args: str, env: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan of a run on two nodes."""
    facts = pod({"STOKER_SAMPLERS": "http://run-sampler-0-0.run:8080", **(env or {})})
    return resolve(facts, args, config=config)


def refused(*args: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines with which a run is refused."""
    with pytest.raises(RunError) as caught:
        planned(*args, env=env)
    assert caught.value.code is ExitCode.USAGE
    return caught.value.message.splitlines()


def settings(plan: Plan) -> dict[str, str]:
    return {setting.name: str(setting.value) for setting in plan.settings}


def test_a_run_needs_samplers_and_a_reward_and_no_more() -> None:
    plan = planned(*RUN)
    assert (plan.method, plan.module) == ("grpo_async", "stoker.scripts.grpo_async")
    assert settings(plan)["lora_dropout"] == "0"
    assert plan.samplers == SamplerRequest(
        "/workspace/model", "base", "/workspace/adapters", None, 16, 6, dtype="float32", revision="main"
    )


def test_a_run_waits_longer_for_its_own_samplers_than_kubernetes_to_replace_one() -> None:
    assert seconds_to_wait("role", None) >= 600 + 1800, "the longest pause, and the longest start of vLLM"
    assert seconds_to_wait("http://a:8080", None) == 600
    assert seconds_to_wait("role", 0.0) == 0


def test_the_largest_rank_that_vllm_serves_is_fine() -> None:
    request = planned(*RUN, "--lora_r", "512").samplers
    assert request is not None
    assert request.rank == 512


@pytest.mark.parametrize("more", [(), ("--use_peft", "false"), ("--publish_whole_every", "5")])
def test_a_run_without_an_adapter_trains_all_weights(more: tuple[str, ...]) -> None:
    plan = planned(*METHOD, *more)
    assert plan.samplers == SamplerRequest(
        "/workspace/model", "base", "/workspace/adapters", None, None, 1, dtype="float32", revision="main"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("trl.scripts.grpo_async", "--use_peft", "--reward_funcs", "math_answer"),
            (
                "the samplers are missing: write --samplers with their addresses, such as http://sampler-0:8000, or "
                "--samplers role for those of this TrainJob"
            ),
        ),
        (
            (METHOD[0], "--samplers", "http://a:8090/v1", *METHOD[3:], "--use_peft"),
            (
                "--samplers 'http://a:8090/v1' is not an address: write http://HOST:PORT, without a path, or a name "
                "that DNS knows"
            ),
        ),
        (
            (*RUN, "--publish_whole_every", "5"),
            "--publish_whole_every (args) is for runs that train all weights: leave it out, or leave out --use_peft",
        ),
        (
            ("trl.scripts.grpo_async", "--samplers", "role", "--use_peft"),
            (
                "the reward is missing: write --reward_funcs with the name of one of TRL's or `module:function`, or an "
                "--environment_factory with get_reward"
            ),
        ),
        ((*RUN, "--use_vllm"), "--use_vllm (args) has no place in grpo_async: leave it out and name the samplers with"),
        ((*RUN, "--vllm_mode", "server"), "--vllm_mode (args) has no place in grpo_async: leave it out"),
        ((*RUN, "--no_vllm_importance_sampling_correction"), "write --correction"),
        ((*RUN, "--reward_model_name_or_path", "a/b"), "serve the reward model with vLLM, and write its address"),
        (
            ("trl.scripts.grpo_async", "--samplers", "role", "--use_peft", "--reward_funcs", "math_answer", "exact"),
            "--reward_funcs exact names no function: write module:name, or one of accuracy_reward, ",
        ),
        ((*RUN, "--temperature", "0"), "--temperature 0 samples without probabilities: write a number above 0"),
        (
            (*RUN, "--skip_flat_groups", "--beta", "0.04"),
            "--skip_flat_groups also leaves out the KL term of these groups: leave it out, or write --beta 0",
        ),
        (
            (*RUN, "--reward_weights", "1", "2"),
            "--reward_weights (args) has 2 numbers for 1 --reward_funcs: write one for each",
        ),
        ((*RUN, "--tools", "my tools"), "--tools my tools names no function: write module:name"),
        ((*RUN, "--environment_factory", "a=my:Room", "my:Hall"), "my:Hall is one of several: give it a name"),
        ((*RUN, "--dataset_streaming"), "leave it out, each row has its number in the schedule"),
        ((*RUN, "--deepspeed", "/workspace/zero3.json"), "leave it out; to share the model between processes, write"),
        (
            (*RUN, "--fsdp", "--fsdp_config", '{"version": 1}'),
            'version 1 of FSDP has no place in grpo_async: write "ver',
        ),
        ((*RUN, "--lora_r", "513"), "--lora_r 513 (args) is too large: vLLM serves ranks up to 512"),
        ((*RUN, "--use_dora"), "--use_dora (args): vLLM serves no DoRA: leave it out"),
        ((*RUN, "--lora_modules_to_save", "lm_head"), "vLLM takes these modules from the base model"),
        ((*RUN, "--num_iterations", "2"), "--num_iterations is 2 (args): write 1, because grpo_async counts staleness"),
        (
            (*RUN, "--steps_per_generation", "2"),
            "--steps_per_generation is 2 (args) and --gradient_accumulation_steps 1: leave the former out",
        ),
        (
            (*RUN, "--generation_batch_size", "32"),
            "--generation_batch_size is 32 (args), but one optimizer step trains 16 samples: leave it out",
        ),
        (
            (*RUN, "--max_staleness", "1", "--depth", "1", "--publish_every", "2"),
            "--max_staleness 1 is too small for --depth 1 and --publish_every 2: write --max_staleness 2 or more",
        ),
        (
            (*RUN, "--publish_every", "6"),
            "--max_staleness 4 is too small for --publish_every 6: write --max_staleness 5 or more",
        ),
        ((*RUN, "--depth", "deep"), "--depth is deep (args): write auto or a whole number"),
        ((*RUN, "--max_staleness", "-1"), "--max_staleness is -1 (args): write 0 or more"),
        (
            (*RUN, "--load_best_model_at_end", "--eval_strategy", "steps", "--save_strategy", "steps"),
            "--load_best_model_at_end compares losses, which tell nothing of rewards in grpo_async: leave it out",
        ),
        (
            (*RUN, "--lr_scheduler_type", "reduce_lr_on_plateau", "--eval_strategy", "steps"),
            "--lr_scheduler_type reduce_lr_on_plateau looks at losses, which tell nothing of rewards: choose another",
        ),
        (
            (*RUN, "--loss_type", "vespo", "--vllm_importance_sampling_mode", "sequence_mask"),
            (
                "--vllm_importance_sampling_mode sequence_mask (args) gives one ratio for a whole answer, and "
                "--loss_type vespo needs one for each token: write token_truncate or token_mask"
            ),
        ),
        ((*RUN, "--correction", "none"), "--correction none trains samples of older policies as if they were new"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_write(args: tuple[str, ...], message: str) -> None:
    lines = refused(*args)
    assert any(message in line for line in lines), lines


def test_a_mixture_is_not_streamed() -> None:
    with pytest.raises(
        RunError, match=r"--streaming \(config file\) has no place .* each row has its number in the schedule"
    ):
        planned(*RUN, "--config", "/c.yaml", config={"datasets": [{"path": "a/b"}], "streaming": True})
    planned(*RUN, "--streaming")


@pytest.mark.parametrize(
    ("args", "instead"),
    [
        (("--top_p", "0.95"), "write --top_p 1"),
        (("--top_k", "50"), "write --top_k 0"),
        (("--min_p", "0.1"), "leave it out"),
        (("--repetition_penalty", "1.1"), "write --repetition_penalty 1"),
        (("--lora_dropout", "0.1"), "write --lora_dropout 0"),
    ],
)
def test_what_makes_probabilities_incomparable_needs_a_switch(args: tuple[str, str], instead: str) -> None:
    (line,) = refused(*RUN, *args)
    assert line.startswith(f"{args[0]} {args[1]} (args) makes the probabilities of trainer and samplers incomparable: ")
    assert line.endswith(f"{instead}, or add --allow_incomparable_logprobs, which turns the correction off")
    plan = planned(*RUN, *args, "--allow_incomparable_logprobs")
    assert settings(plan)[args[0][2:]] == args[1]


@pytest.mark.parametrize(
    "args",
    [
        ("--loss_type", "vespo"),
        ("--loss_type", "grpo", "--vllm_importance_sampling_mode", "sequence_mask"),
        ("--loss_type", "vespo", "--vllm_importance_sampling_mode", "sequence_mask", "--correction", "behaviour"),
    ],
)
def test_a_ratio_for_a_whole_answer_is_refused_where_it_is_used_for_tokens_alone(args: tuple[str, ...]) -> None:
    assert settings(planned(*RUN, *args))["loss_type"] == args[1]


def test_the_samplers_of_the_job_serve_what_the_flags_say() -> None:
    args = ("--lora_r", "8", "--max_staleness", "6", "--publish_every", "5", "--adapters", "/workspace/a")
    asked = planned(*RUN, *args, "--dtype", "bfloat16").samplers
    assert asked is not None
    assert (asked.rank, asked.versions, asked.adapters, asked.dtype) == (8, 3, "/workspace/a", "bfloat16")
    elsewhere = ("trl.scripts.grpo_async", "--samplers", "http://a:8000", "--reward_funcs", "math_answer", "--use_peft")
    assert planned(*elsewhere).samplers is None
    (line,) = refused(*RUN, "--model_name_or_path", "Qwen/Qwen3-0.6B")
    assert "is not a folder, and the samplers of a TrainJob load what lies in the workspace" in line


def versions_in_use(staleness: int, publish_every: int, evaluate_every: int) -> int:
    """Return the most versions that are young enough at a step, by going through the steps."""
    versions = [0]
    for step in range(1, 4 * (staleness + evaluate_every)):
        if step - versions[-1] >= publish_every or step % evaluate_every == 0:
            versions.append(step)
    return max(sum(first <= version <= first + staleness for version in versions) for first in versions)


def test_samplers_have_room_for_the_versions_of_evaluations_too() -> None:
    for staleness, publish_every, evaluate_every in itertools.product(range(12), range(1, 8), range(1, 20)):
        needed = versions_needed(staleness, publish_every, evaluate_every)
        assert needed == versions_in_use(staleness, publish_every, evaluate_every) + 1
        if evaluate_every > staleness:
            assert needed <= versions_needed(staleness, publish_every, 0)
    args = ("--max_staleness", "6", "--publish_every", "5", "--eval_strategy", "steps")

    def versions(*more: str) -> int:
        asked = planned(*RUN, *args, *more).samplers
        assert asked is not None
        return asked.versions

    assert versions("--eval_steps", "10") == 3
    assert versions("--eval_steps", "2") == 5
    assert versions("--logging_steps", "2") == 5
    assert versions("--eval_steps", "0.1", "--max_steps", "20") == 5
    assert versions("--eval_steps", "0.1") == 8
    assert versions("--eval_strategy", "epoch") == 4


def test_samplers_of_the_job_need_a_runtime_that_has_them() -> None:
    with pytest.raises(RunError, match="--samplers role is for a runtime with samplers, and this one sets no") as ended:
        planned(*RUN, env={"STOKER_SAMPLERS": ""})
    assert ended.value.code is ExitCode.CONFIG


def test_the_switch_and_a_correction_exclude_each_other() -> None:
    (line,) = refused(*RUN, "--allow_incomparable_logprobs", "--correction", "behaviour")
    assert "--correction behaviour (args) compares what --allow_incomparable_logprobs makes incomparable" in line


@pytest.mark.parametrize(
    "args",
    [
        ("--top_p", "1.0", "--min_p", "0", "--top_k", "0", "--lora_dropout", "0.0"),
        ("--max_staleness", "0", "--correction", "none"),
        ("--max_staleness", "6", "--depth", "2", "--publish_every", "5"),
        ("--generation_batch_size", "16"),
        ("--skip_flat_groups",),
        ("--beta", "0.04"),
        ("--vllm_importance_sampling_mode", "token_mask", "--vllm_importance_sampling_clip_min", "0.5"),
        ("--correction", "behaviour", "--loss_type", "cispo", "--epsilon_high", "5"),
        ("--environment_factory", "tasks:Task"),
        ("--fsdp", "--fsdp_config", '{"version": 2}'),
        ("--fsdp_config", '{"version": 1}'),  # which nobody reads
        ("--environment_factory", "room=my:Room", "hall=my:at(url='http://hall')", "--tools", "my:add", "my.sub"),
    ],
)
def test_what_works_is_accepted(args: tuple[str, ...]) -> None:
    assert planned(*RUN, *args).method == "grpo_async"


def test_a_resume_with_another_batch_or_seed_is_another_run() -> None:
    before = planned(*RUN).fixed
    for args in (("--per_device_train_batch_size", "16"), ("--gradient_accumulation_steps", "2"), ("--seed", "7")):
        assert planned(*RUN, *args).fixed != before
    assert planned(*RUN, "--max_steps", "9", "--depth", "2", "--guard_every", "4").fixed == before
