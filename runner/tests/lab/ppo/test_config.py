"""What RLHF refuses before any package is imported: configs, prompts and rewards."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from stoker.cluster.processes import free_ports
from stoker.contract.exits import ExitCode
from stoker.lab import RLHF, LabError, LoRATrainConfig, Policy, RLHFConfig, RLHFTrainer
from stoker.lab.ppo.checkpoint import STATE, CheckpointState, newest, read_state, refuse_other
from stoker.lab.ppo.prompts import as_prompts, columns_of, digest, next_prompts
from stoker.lab.ppo.rewards import Answers, judges_of, rewards_of

WRONG: dict[str, tuple[Any, ...]] = {
    "lora_config": (None, {}),
    "temperature": (0, -1, math.nan, "1"),
    "max_new_tokens": (0, 1.5, True),
    "save_steps": (-1, None),
    "batch_size": (0,),
    "samples": (0,),
    "mini_batch_size": (0, "4"),
    "ppo_epochs": (0,),
    "learning_rate": (0, math.inf),
    "value_learning_rate": (0,),
    "max_grad_norm": (-1,),
    "gamma": (1.1, -0.1),
    "lam": (2,),
    "clip_range": (0, 1),
    "clip_range_value": (0,),
    "vf_coef": (-0.1,),
    "kl_coef": (-0.1, math.nan),
    "reference": ("adapter", None),
    "whiten_rewards": (1, None),
    "whiten_advantages": ("yes",),
    "missing_eos_penalty": (-1,),
    "sampler": ("hf", None),
    "reward_seconds": (0,),
    "seed": (-1,),
    "output_dir": ("", None),
}
TURN = [{"role": "user", "content": "2+3="}]


def answers(*texts: str) -> Answers:
    """Return answers to as many prompts."""
    return Answers.of(["p"] * len(texts), texts, [[1]] * len(texts), {"right": [*texts]})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(LabError, match=rf"^RLHFConfig: {name} is .*: it must be "):
        RLHFConfig(**{name: value})


def test_every_field_is_checked_and_all_problems_are_told_at_once() -> None:
    assert {*RLHFConfig.__dataclass_fields__} == {*WRONG}
    with pytest.raises(LabError) as caught:
        RLHFConfig(gamma=2, lam=2)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("text", "the prompts are a str: write a list"),
        ({"prompt": "a"}, "the prompts are a dict"),
        (3, "the prompts are a int"),
        ([], "there are no prompts"),
        ([""], "the prompt of row 0 is empty"),
        (["a", None], "the prompt of row 1 must be text like the others, not NoneType"),
        (["a", TURN], "the prompt of row 1 must be text like the others, not list"),
        ([TURN, []], "the prompt of row 1 is empty"),
        ([{"prompt": "a"}, {"text": "b"}], "row 1 has the columns text, but needs prompt: rename the column"),
        ([{"prompt": "a", "answer": "1"}, {"prompt": "b"}], "row 1 has no answer, which other rows have"),
        ([{"prompt": "a"}, {"prompt": "b", "answer": "1"}], "row 0 has no answer, which other rows have"),
        ([{"prompt": "a", "completions": "1"}], "column name completions is reserved"),
    ],
)
def test_wrong_prompts_are_refused(data: Any, told: str) -> None:
    with pytest.raises(LabError) as caught:
        as_prompts(data)
    assert str(caught.value).startswith(told)
    assert caught.value.code is ExitCode.BAD_DATA


def test_prompts_are_rows_and_keep_their_columns() -> None:
    assert as_prompts(["a", "b"]) == [{"prompt": "a"}, {"prompt": "b"}]
    assert as_prompts([TURN]) == [{"prompt": TURN}]
    rows = as_prompts([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}])
    assert columns_of(rows) == {"answer": ["1", "2"]}
    assert digest(rows) != digest(rows[::-1])


def test_each_prompt_comes_once_before_any_comes_again() -> None:
    order = [number for position in range(0, 20, 4) for number in next_prompts(10, 4, position, 1)]
    assert sorted(order[:10]) == sorted(order[10:]) == [*range(10)]
    assert order[:10] != order[10:], "each time around has an order of its own"
    assert next_prompts(10, 20, 0, 1) == order, "wherever a run begins again"
    assert next_prompts(10, 20, 0, 2) != order


def test_a_function_judges_as_trls_do() -> None:
    def plain(prompts: list[str], completions: list[str], right: list[str], **_: Any) -> list[float]:
        assert prompts == ["p"] * len(completions)
        return [float(a == b) for a, b in zip(completions, right, strict=True)]

    async def awaited(completions: list[str], **_: Any) -> list[float | None]:
        await asyncio.sleep(0)
        return [None] * len(completions)

    judges = judges_of([plain, awaited], LoRATrainConfig(), 1)
    assert [judge.name for judge in judges] == ["plain", "awaited"]
    for judge in judges:
        judge.check(answers("a"))
    assert rewards_of(judges, answers("a", "b")) == [[1.0, 1.0], [None, None]]

    async def within_a_loop() -> Any:
        return rewards_of(judges, answers("a"))

    assert asyncio.run(within_a_loop()) == [[1.0], [None]], "a notebook has an event loop"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda **_: [1.0], "returned 1 rewards for 2 completions: return one for each completion"),
        (lambda **_: None, "the reward <lambda> returned None: return a list with a number for each completion"),
        (lambda **_: 0.5, "the reward <lambda> returned 0.5: return a list with a number"),
        (lambda **_: "12", "the reward <lambda> returned '12': return a list with a number"),
        (lambda **_: ["good", 1.0], "the reward <lambda> returned ['good', 1.0]: return a list with a number"),
        (lambda **_: [[1.0], [2.0]], "the reward <lambda> returned [[1.0], [2.0]]: return a list"),
        (lambda **_: [1.0, math.inf], "returned inf for completion 1"),
        (lambda **_: [1.0, None], "every reward returned None for answer 1, 'b'"),
    ],
)
def test_rewards_that_are_no_numbers_are_refused(function: Any, told: str) -> None:
    with pytest.raises(LabError) as caught:
        rewards_of(judges_of(function, LoRATrainConfig(), 1), answers("a", "b"))
    assert told in str(caught.value)


def test_rewards_of_one_name_are_numbered() -> None:
    def other(**_: Any) -> list[float]:
        return [1.0]

    other.__name__ = "judge_2"
    rewards = [lambda **_: [1.0], lambda **_: [2.0], other, other, lambda **_: [3.0]]
    names = [judge.name for judge in judges_of(rewards, LoRATrainConfig(), 1)]
    assert names == ["<lambda>", "<lambda>_2", "judge_2", "judge_2_2", "<lambda>_3"]
    again = [judge.name for judge in judges_of([other, other], LoRATrainConfig(), 1)]
    assert again == ["judge_2", "judge_2_2"], "functions keep their own"


@pytest.mark.parametrize("reward", [None, 3, "", [], [None]])
def test_what_is_no_reward_is_refused(reward: Any) -> None:
    with pytest.raises(LabError, match="write a function, a reward model's folder"):
        judges_of(reward, LoRATrainConfig(), 1)


def test_a_function_that_does_not_take_what_it_gets_is_refused() -> None:
    (judge,) = judges_of(lambda completions: [1.0], LoRATrainConfig(), 1)
    with pytest.raises(LabError, match=r"called with prompts, completions, completion_ids, right .*\*\*kwargs"):
        judge.check(answers("a"))


def test_an_address_that_does_not_answer_is_told_before_anything_is_loaded() -> None:
    (port,) = free_ports(1)
    (judge,) = judges_of(f"http://127.0.0.1:{port}", LoRATrainConfig(), 0.3)
    with pytest.raises(LabError, match=r"gave no answer in 0\.3 s \(reward_seconds\)") as caught:
        judge.check(answers("a"))
    assert caught.value.code is ExitCode.UNAVAILABLE


def test_a_folder_without_a_reward_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    with pytest.raises(LabError, match="is a BertForMaskedLM, not a model ForSequenceClassification with one label"):
        judges_of(str(tmp_path), LoRATrainConfig(), 1)
    (tmp_path / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    with pytest.raises(LabError, match="has 2 labels: write one with a single label"):
        judges_of(str(tmp_path), LoRATrainConfig(), 1)
    (tmp_path / "config.json").write_text(
        '{"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}'
    )
    assert judges_of(str(tmp_path), LoRATrainConfig(), 1)[0].name == tmp_path.name


def test_only_a_policy_of_this_process_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match="not in this process: write Policy"):
        RLHF(Policy(url="http://127.0.0.1:1"), len)
    (tmp_path / "config.json").write_text("{}")
    training = RLHFTrainer(str(tmp_path), "org/reward", RLHFConfig())
    assert RLHF(training.policy, "org/reward").config == RLHFConfig()
    with pytest.raises(LabError, match=r"training needs .* torch"):
        training.train(["a"], 1)
    for steps in (0, 1.5, True):
        with pytest.raises(LabError, match="num_steps is"):
            training.train(["a"], steps)  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LabError, match="RLHF trains in one process"):
        training.train(["a"], 1)


def test_a_checkpoint_is_found_when_it_is_complete_and_of_this_run(tmp_path: Path) -> None:
    assert newest(tmp_path / "nothing") is None
    for name in ("step_2", "step_10", "step_30", "best"):
        (tmp_path / name).mkdir()
    for name in ("step_2", "step_10", "best"):
        (tmp_path / name / STATE).write_text("{}")
    assert newest(tmp_path) == tmp_path / "step_10"
    with pytest.raises(LabError, match="has no checkpoint of RLHF"):
        read_state(tmp_path / "step_10")
    state = CheckpointState(1, 16, "model", {"r": 8}, "abc", {"gamma": 1.0})
    refuse_other(tmp_path, state, state)
    other = CheckpointState(1, 16, "other", {"r": 4}, "abd", {"gamma": 0.5})
    with pytest.raises(LabError) as caught:
        refuse_other(tmp_path, state, other)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "was trained with gamma=1.0 (config), not 0.5: write the same" in lines[2]
