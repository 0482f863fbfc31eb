"""The tables of docs/reference/resume.md are what the frameworks compare."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from runner.tests.samples import plan_of, pod, resolve

from stoker.contract.exits import RunError
from stoker.frameworks.torchtune import decide as torchtune_decide
from stoker.frameworks.torchtune import resume as torchtune_resume
from stoker.frameworks.torchtune.keys import RECIPES, configs_of
from stoker.frameworks.trl import decide as trl_decide
from stoker.frameworks.trl import resume as trl_resume
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.plan.plan import Plan
from stoker.rank import same_run

PAGE = Path(__file__).parents[3] / "docs/reference/resume.md"
TRL_FLAGS = {name for method in METHODS for name in flag_table(method).flags}


def table(title: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of the table below a title: what the row is about → the names in it."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (m[^|]+?) \| (.+) \|$", section, re.MULTILINE)
    return {about: tuple(re.findall(r"`([^`]+)`", names)) for about, names in rows}


def test_the_page_lists_what_trl_compares() -> None:
    identity = {"adapter" if part == "peft" else part: names for part, names in trl_decide.IDENTITY.items()}
    assert table("TRL") == {
        **{f"must stay: {part}": names for part, names in {**identity, **trl_resume.FIXED}.items()},
        "must stay: rows per step": tuple(trl_resume.ROWS.split(" × ")),
        "may change freely": trl_resume.FREE,
        "may change with a notice": (),
    }


def test_the_page_lists_what_torchtune_compares() -> None:
    assert table("TorchTune") == {
        **{f"must stay: {part}": names for part, names in torchtune_decide.IDENTITY.items()},
        "must stay: optimizer and seed": torchtune_resume.FIXED,
        "may change freely": torchtune_resume.FREE,
        "may change with a notice": (),
    }


def test_every_name_is_a_flag_of_trl_and_in_one_list_alone() -> None:
    listed = [name for names in trl_resume.FIXED.values() for name in names]
    listed += [name for names in trl_decide.IDENTITY.values() for name in names]
    assert {*listed} - {"datasets"} <= TRL_FLAGS | {"dataset_format"}
    assert len(listed) == len({*listed})
    for pattern in trl_resume.FREE:
        assert any(fnmatchcase(name, pattern) for name in TRL_FLAGS), pattern
        assert not any(fnmatchcase(name, pattern) for name in listed), pattern


@pytest.mark.parametrize("method", METHODS)
def test_every_run_of_a_method_records_the_same_settings(method: str) -> None:
    given = {
        "grpo": ("--reward_funcs", "think_format_reward"),
        "grpo_async": ("--reward_funcs", "think_format_reward", "--samplers", "http://s-0:8000", "--use_peft"),
        "rloo": ("--reward_funcs", "think_format_reward"),
        "distillation": ("--teacher_model_name_or_path", "/t"),
    }.get(method, ())
    bare = plan_of(f"trl.scripts.{method}", *given)
    more = plan_of(f"trl.scripts.{method}", *given, "--seed", "1", "--max_grad_norm", "0.5", "--optim", "adafactor")
    assert {*bare.fixed} == {*more.fixed} >= {"learning_rate", "seed", trl_resume.ROWS}


def tuned(*args: str, method: str = "lora", config: str = "llama3_2/1B") -> Plan:
    """Return the plan of a run of TorchTune."""
    trl_only = ("STOKER_ARG_MODEL_NAME_OR_PATH", "STOKER_ARG_DATASET_NAME")
    env = {"STOKER_FRAMEWORK": "torchtune", "STOKER_METHOD": method, **dict.fromkeys(trl_only, "")}
    return resolve(pod(env), ("--config", config, *args))


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ("", "optimizer.lr=1e-4", "optimizer.lr was 0.0003, now 0.0001 (args)"),
        ("seed=1", "seed=2", "seed was 1.0, now 2.0 (args)"),
        ("", "optimizer.eps=1e-6", "optimizer.eps was None, now 1e-06 (args)"),
        ("", "optimizer=torch.optim.SGD", "optimizer._component_ was torch.optim.AdamW, now torch.optim.SGD"),
        ("", "clip_grad_norm=1.0", "clip_grad_norm was None, now 1.0 (args)"),
        ("", "tokenizer.max_seq_len=128", "model.tokenizer.max_seq_len was None, now 128 (args)"),
        ("", "dataset.packed=True tokenizer.max_seq_len=8", "data.dataset.packed was False, now true (args)"),
    ],
)
def test_torchtune_compares_optimizer_seed_length_and_packing(before: str, now: str, difference: str) -> None:
    first, second = tuned(*before.split()), tuned(*now.split())
    with pytest.raises(RunError, match="belongs to another run") as refused:
        same_run.refuse_other_run("checkpoint c", first.record, second.record, second.sources)
    assert difference in refused.value.message


@pytest.mark.parametrize("now", ["optimizer.lr=3e-4 seed=null", "epochs=3 log_every_n_steps=5", "compile=True"])
def test_torchtune_resumes_where_the_run_is_the_same(now: str) -> None:
    first, second = tuned(), tuned(*now.split())
    same_run.refuse_other_run("checkpoint c", first.record, second.record)
    said = list(same_run.notices("checkpoint-5", first.record, second.record, second.free))
    assert [notice for notice in said if "compile" not in notice] == []


@pytest.mark.parametrize("method", [*RECIPES])
def test_every_method_of_torchtune_records_its_learning_rate(method: str) -> None:
    assert tuned(method=method, config=min(configs_of(method))).fixed["optimizer.lr"]
