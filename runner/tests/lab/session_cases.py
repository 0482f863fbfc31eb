"""A policy in a session: `python session_cases.py MODEL FOLDER` prints what fails, as JSON.

Runs in an environment with TRL, which has the session's endpoint too. MODEL is a tiny model, FOLDER is empty.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from runner.tests.lab.cases import refused, report
from runner.tests.lab.scripts import ROOT
from runner.tests.tinker.endpoint_cases import KEY, Setup, endpoint

from stoker.contract.exits import ExitCode
from stoker.lab import LoRATrainConfig, LoRATrainer, Policy, evaluate
from stoker.lab.endpoint import KEY as VARIABLE
from stoker.lab.endpoint import EndpointClient

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
EXAMPLE = ROOT / "examples" / "lab" / "basic_lora_finetune.py"
ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(4) for b in range(6)]
# Each update has all rows, so that its loss is that of all of them.
CONFIG = LoRATrainConfig(
    rank=4, target_modules="all-linear", batch_size=8, gradient_accumulation_steps=3, num_epochs=5, learning_rate=1e-2,
    max_length=64,
)  # fmt: skip


def far(setup: Setup, **changes: Any) -> Policy:
    """Return a policy of the session."""
    return Policy(setup.url, LoRATrainConfig(**{**vars(CONFIG), **changes}))


def a_session_trains_as_a_notebook_does(setup: Setup) -> None:
    """The same calls train there, what is evaluated is what PEFT says, and samplers have what was trained last."""
    with far(setup) as policy:
        before = evaluate(policy, ROWS)
        here = evaluate(LoRATrainer(MODEL, CONFIG), ROWS)
        assert math.isclose(before["loss"], here["loss"], rel_tol=1e-5), (before, here)
        assert (before["n"], round(before["perplexity"], 3)) == (here["n"], round(here["perplexity"], 3))
        done = policy.train(ROWS)
        losses = [entry["loss"] for entry in done.history]
        assert (done.method, done.steps, len(losses)) == ("sft", 5, 5)
        assert math.isclose(losses[0], before["loss"], rel_tol=1e-4), (losses, before)
        assert losses[-1] < losses[0] - 0.3, losses
        for again in (False, True):
            if again:
                policy.train(ROWS[:8])
            answers = policy.generate(["1+1=", [7, 8]], max_tokens=3, n=2, temperature=0.5, logprobs=0)
            assert [answer.prompt for answer in answers] == ["1+1=", "1+1=", [7, 8], [7, 8]]
            assert all(len(answer.token_ids) == len(answer.logprobs or ()) == 3 for answer in answers)
            assert all(answer.text and answer.finish == "length" for answer in answers)
            (asked,) = (request for request in setup.sampler.requests[-2:] if request["prompt"] == [7, 8])
            assert (asked["n"], asked["temperature"]) == (2, 0.5)
            served = LoRATrainer(MODEL, CONFIG, adapter=setup.sampler.names()[asked["model"]])
            saved = saved_by(policy)
            kept = LoRATrainer(MODEL, CONFIG, adapter=setup.folder / saved.removeprefix("output/"))
            there, *ours = evaluate(policy, ROWS), evaluate(served, ROWS), evaluate(kept, ROWS)
            for one in ours:
                assert math.isclose(there["loss"], one["loss"], rel_tol=1e-4), (there, ours)
            refused(lambda: policy.save_lora(FOLDER), f"`stoker get SESSION FOLDER --path {saved}` downloads it")
            assert there["loss"] < before["loss"] - 0.3
    for alpha in (16, 32):
        one_step_is_that_of_a_notebook(setup, alpha)


def saved_by(policy: Policy) -> str:
    """Return where a session has the adapter that it trained."""
    session = policy.session
    assert session is not None
    return session.saved


def one_step_is_that_of_a_notebook(setup: Setup, alpha: int) -> None:
    """From equal weights, one step here and there has one gradient, and leads to one model."""
    changes = {"alpha": alpha, "num_epochs": 1, "warmup_ratio": 0.0, "logging_steps": 1}
    config = LoRATrainConfig(**{**vars(CONFIG), **changes, "output_dir": str(FOLDER / f"alpha-{alpha}")})
    with far(setup, **changes) as policy:
        policy.generate(["1"], max_tokens=1)
        begin = setup.sampler.names()[setup.sampler.requests[-1]["model"]]
        here = LoRATrainer(MODEL, config, adapter=begin)
        assert here.model.peft_config["default"].lora_alpha == alpha
        before = evaluate(here, ROWS)["loss"]
        norms = [side.train(ROWS).history[0]["grad_norm"] for side in (here, policy)]
        ours, there = evaluate(here, ROWS)["loss"], evaluate(policy, ROWS)["loss"]
        assert math.isclose(*norms, rel_tol=1e-3), norms
        assert math.isclose(ours, there, rel_tol=1e-4), (before, ours, there)
        assert there < before - 0.01, (before, there)


def a_step_that_was_interrupted_does_not_reach_the_next(setup: Setup) -> None:
    """The endpoint adds up gradients, and the next training begins without those that no step has followed."""
    with far(setup) as policy, far(setup) as other:
        policy.train(ROWS)
        other.train(ROWS)

        def interrupted(*words: Any) -> float:
            raise KeyboardInterrupt

        with mock.patch.object(EndpointClient, "step", interrupted), contextlib.suppress(KeyboardInterrupt):
            policy.train(ROWS)
        again, plain = policy.train(ROWS), other.train(ROWS)
        norms = [[entry["grad_norm"] for entry in done.history] for done in (again, plain)]
        assert all(map(functools.partial(math.isclose, rel_tol=1e-4), *norms)), norms


def rows_without_a_token_to_learn_are_left_out_as_in_a_notebook(setup: Setup) -> None:
    """A prompt that fills `max_length` leaves no room for its answer: no step is of such rows alone."""
    filled = {"prompt": "7" * 20, "completion": "1"}
    with far(setup, max_length=8, batch_size=1, gradient_accumulation_steps=1, num_epochs=1) as policy:
        told = "no row has a token to learn after it was cut: raise max_length"
        refused(functools.partial(policy.train, [filled] * 2), told, ExitCode.BAD_DATA)
        assert policy.train([filled, ROWS[0], filled]).steps == 1


def an_answer_leaves_out_the_text_that_ended_it(setup: Setup) -> None:
    """As vLLM's answers in a notebook do; the endpoint's tokens have it."""
    with far(setup) as policy:
        ids = tuple(policy.tokenizer("1+2=3", add_special_tokens=False).input_ids)
        for stop, cut, text in (
            ("=3", False, "1+2"),
            (["=3", "+", "2"], False, "1"),
            (["2=", "="], False, "1+"),
            (["=", "2="], False, "1+2"),
            (["7"], False, "1+2=3"),
            ([ids[-1]], False, policy.tokenizer.decode(ids[:-1])),
            ([ids[-1]], True, "1+2=3"),
            (None, False, "1+2=3"),
            ("+", True, "1+2=3"),
        ):
            with mock.patch.object(EndpointClient, "sample", return_value=[(ids, (-1.0,) * len(ids), cut)]):
                (answer,) = policy.generate(["1"], stop=stop)
            assert (answer.text, answer.token_ids) == (text, ids), (stop, answer)


def the_example_takes_an_address_for_a_model(setup: Setup) -> None:
    """The script that trains in this process trains in a session, when it is given an address."""
    done = subprocess.run([sys.executable, EXAMPLE, setup.url], check=False, capture_output=True, text=True, cwd=FOLDER)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert said[0].startswith("18 steps; perplexity of new sums "), said
    assert len(said) == 17, said
    told = r"the session has the adapter in output/checkpoints/\S+:train:0/weights/trained"
    assert re.fullmatch(told, said[-1]), said
    assert not (FOLDER / "lora_output").exists()


def what_a_session_cannot_do_is_refused(setup: Setup) -> None:
    """One message with the fix."""
    policy = far(setup)
    pairs = [{"prompt": "1", "chosen": "2", "rejected": "3"}]
    refused(lambda: policy.train(pairs), "a session trains no preferences: write text")
    refused(lambda: policy.train([]), "there are no rows")
    for length in (64, 512):
        train = functools.partial(far(setup, max_length=length).train, [{"text": "7" * 300}])
        refused(train, "row 0 has 301 tokens, but the model takes 128")
    refused(lambda: policy.generate(["1"], min_p=0.5), "a session does not know min_p")
    refused(lambda: policy.generate(["1"], max_tokens="many"), "max_tokens is missing or not a whole number")
    refused(lambda: policy.save_lora(FOLDER), "not in this process: write Policy(model) to save an adapter")
    refused(lambda: far(setup, target_modules=["q_proj"]).train(ROWS), "a session's adapters are in all layers")
    refused(lambda: far(setup, dropout=0.1).train(ROWS), "dropout is 0.1, which a session does not have")
    refused(lambda: far(setup, rank=512).train(ROWS), "rank")
    other = Policy(url=setup.url, config=CONFIG, name=str(FOLDER))
    refused(lambda: other.train(ROWS), "write name= with the folder or Hub id of the session's model")
    os.environ[VARIABLE] = "tml-another"
    refused(lambda: far(setup).train(ROWS), f"set {VARIABLE} to the session's key")
    os.environ[VARIABLE] = KEY


if __name__ == "__main__":
    os.environ[VARIABLE] = KEY
    with endpoint(MODEL, FOLDER) as found:
        cases = (
            a_session_trains_as_a_notebook_does,
            a_step_that_was_interrupted_does_not_reach_the_next,
            rows_without_a_token_to_learn_are_left_out_as_in_a_notebook,
            an_answer_leaves_out_the_text_that_ended_it,
            the_example_takes_an_address_for_a_model,
            what_a_session_cannot_do_is_refused,
        )
        report([functools.wraps(case)(functools.partial(case, found)) for case in cases])
