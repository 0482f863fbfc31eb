"""What the asynchronous benchmark makes of its runs, what its rewards wait for, and that it refuses wrong arguments."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import async_grpo, async_grpo_samplers
from benchmarks.async_grpo import NOTHING_WAITS, ROWS, SIDES, WAITS, Bench, attempt, main, report, spread
from benchmarks.async_grpo_parts import barrier_of, costs_of, publishing
from benchmarks.async_grpo_rewards import after, right_sum, wait_of
from benchmarks.async_grpo_runs import Size, Trained, left_by, times
from benchmarks.async_grpo_samplers import Idle
from benchmarks.jobs import JobFailed, Run
from runner.tests.rollouts.replicas import replicas_of, urls
from runner.tests.serve.adapters.samples import BASE, make_adapter

PROGRAM = Path(__file__).parents[1] / "async_grpo.py"
ENDED = Run(
    10.0, 40.0, 45.0, 50.0, steps=((10.0, ""), (20.0, ""), (40.0, "")), summary="{'train_runtime': '30.5', 'loss': '1'}"
)
HUNG = Run(None, None, None, None, waited=120.0)
SLOW = Trained(ENDED, 60.0, 50.0, 1.0, 0.71, 0.8, 0.6, 0, 0, 0, tokens=100.0, held=0.4)
QUICK = replace(SLOW, seconds=20.0, between=10.0, reward=0.7, waited=0.1, idle=0.05, held=0.0, depth=4, staleness=5)
# Ten steps with the reward 0, then ten with 1; one side needs two seconds for each, the other one.
CURVE = [0.0] * 10 + [1.0] * 10


def test_pairs_are_reported_with_what_both_sides_did() -> None:
    ratio, rewards, *both = report("a tool waits", SIDES, [(SLOW, QUICK)] * 3, 3.0)
    assert rewards == "  reward of asynchronous less that of synchronous: -0.010 (-0.010 to -0.010)"
    assert ratio == (
        "a tool waits             synchronous 60.00 s, asynchronous 20.00 s, "
        "ratio 3.000 (3.000 to 3.000) of 3 pairs, goal 3"
    )
    alike = ["dropped 0 samples", "100 tokens/s"]
    assert [line.split(", ") for line in both] == [
        [
            "  synchronous  reward 0.710",
            "trainer waited 80 % of the time",
            "samplers had nothing to do 60 %",
            "the trainer held samplers up 40 %",
            "depth 0",
            "staleness at most 0",
            *alike,
        ],
        [
            "  asynchronous reward 0.700",
            "trainer waited 10 % of the time",
            "samplers had nothing to do 5 %",
            "the trainer held samplers up 0 %",
            "depth 4",
            "staleness at most 5",
            *alike,
        ],
    ]
    (line, *_) = report("TRL's trainer", SIDES, [(SLOW, QUICK)], 1.0, between=True)
    assert "ratio 5.000" in line


def test_sides_are_compared_by_the_time_to_an_equal_reward() -> None:
    slow = replace(SLOW, reward=1.0, curve=tuple((2.0 * step, one) for step, one in enumerate(CURVE, 1)))
    # It ends with half of the reward, which the slow side had five steps before its end.
    half = tuple(enumerate(CURVE[:15], 1))
    quick = replace(QUICK, reward=0.5, curve=half, ready=2)
    _, rewards, equal, _, facts = report("a tool waits", SIDES, [(slow, quick)], 3.0)
    assert rewards == "  reward of asynchronous less that of synchronous: -0.500 (-0.500 to -0.500)"
    assert equal.strip().startswith("to an equal reward")
    assert "synchronous 30.00 s, asynchronous 15.00 s, ratio 2.000" in equal
    assert "2 samplers ready at least" in facts
    assert quick.reached(0.6) is None


def test_a_run_that_fails_costs_its_pair_alone() -> None:
    def failing() -> Trained:
        raise JobFailed("Traceback\nthe sampler is gone")

    failed = attempt(failing)
    lines = list(report("nothing waits", SIDES, [(failed, QUICK), (SLOW, QUICK)], None))
    assert lines[0].endswith("of 1 pairs")
    assert lines[-1] == "lost: nothing waits, synchronous: pair 1 (the sampler is gone)"


def test_a_pair_with_a_run_that_hung_is_lost_and_said() -> None:
    lines = list(report("nothing waits", SIDES, [(SLOW, QUICK), (Trained(HUNG), QUICK)], None))
    assert lines[0].endswith("of 1 pairs")
    assert lines[-1] == (
        "lost: nothing waits, synchronous: pair 2 (hung before its first step, killed after 120 s of silence)"
    )
    lines = list(report("nothing waits", SIDES, [(Trained(HUNG), QUICK)], None))
    assert "not measured: no pair has both sides" in lines[0]
    assert list(report("nothing waits", SIDES, [], None)) == [lines[0]]


def test_a_run_is_read_from_what_it_left(tmp_path: Path) -> None:
    size = Size(steps=3, groups=2, samples=4, staleness=2)
    lines = [
        {
            "rollout/depth": depth,
            "rollout/wait_seconds": 3.05,
            "rollout/idle_seconds": 6.1,
            "reward": 0.5,
            "staleness/max": depth,
            "num_tokens": 61,
            "samplers/ready": depth,
        }
        for depth in (1, 2, 2)
    ]
    lines[1]["publish/spread_seconds"] = 0.05
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "checkpoint-3").mkdir()
    kept = tmp_path / "checkpoint-3" / "rollouts.json"
    kept.write_text(json.dumps({"in_flight": []}))
    idle = Idle([(105.0, False), (115.0, True), (130.0, False), (141.0, False)], answers=24)
    found = left_by(ENDED, tmp_path, size, idle, began=100.0)
    assert replace(found, waited=round(found.waited or 0, 6), held=round(found.held or 0, 6)) == Trained(
        ENDED, 30.5, 30.0, 15.0, 0.5, 0.3, 0.5, 2, 2, 0, (0.05,), 2.0, ((0.5, 0.5), (10.5, 0.5), (30.5, 0.5)), 1, 0.6
    )
    # The samplers wrote 32, of which 24 are trained.
    idle.answers = 32
    assert left_by(ENDED, tmp_path, size, idle, began=100.0).dropped == 8
    kept.write_text(json.dumps({"in_flight": [[6, 2]]}))
    assert left_by(ENDED, tmp_path, size, idle, began=100.0).dropped == 4
    assert left_by(HUNG, tmp_path, size, idle, began=100.0) == Trained(HUNG)
    assert times(replace(ENDED, steps=())) is None


def test_answers_are_counted_as_samplers_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = """# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="base"} 40.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="base"} 2.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="base"} 7.0
vllm:num_requests_running{engine="0",model_name="base"} 1.0
"""
    monkeypatch.setattr(async_grpo_samplers, "_ask", lambda _url: shown)
    assert async_grpo_samplers._answers_of(8000) == 42


def test_waits_have_the_mean_that_is_asked_for() -> None:
    assert wait_of(2.0, 0.0, "any") == 2.0
    waits = [wait_of(2.0, 1.0, str(number)) for number in range(20_000)]
    assert statistics.fmean(waits) == pytest.approx(2.0, rel=0.05)
    assert max(waits) > 10 * statistics.median(waits), "a long tail"
    assert wait_of(2.0, 1.0, "7") == waits[7], "the same on both sides"


def test_rewards_wait_and_judge() -> None:
    asked = {"prompts": ["1+2="] * 2, "completions": ["3", " 4"], "answer": ["3", "3"]}
    assert right_sum(asked["completions"], asked["answer"]) == [1.0, 0.0]
    assert right_sum([[{"role": "assistant", "content": "3"}]], ["3"]) == [1.0]

    async def took(places: int) -> float:
        judge = after(0.2, places=places)
        began = time.monotonic()
        for rewards in await asyncio.gather(*(judge(**asked) for _ in range(4))):
            assert rewards == [1.0, 0.0]
        return time.monotonic() - began

    at_once, in_turn = asyncio.run(took(0)), asyncio.run(took(1))
    assert at_once >= 0.2
    assert in_turn >= 0.8


def test_each_row_waits_as_it_says() -> None:
    assert WAITS["compute"].reward(0.5, 8) == NOTHING_WAITS
    assert WAITS["tool"].reward(0.5, 8) == "async_grpo_rewards:after(seconds=2.0000,spread=0.0,places=0)"
    assert WAITS["tail"].reward(0.5, 8) == "async_grpo_rewards:after(seconds=0.4000,spread=1.0,places=8)"
    assert WAITS["tail"].share <= 1, "the mean wait is at most what a step computes"


def test_the_barrier_and_the_costs_are_measured(tmp_path: Path) -> None:
    took = barrier_of(tmp_path, 3, 4)
    assert len(took) == 4
    assert min(took) > 0
    assert all(cost > 0 for cost in costs_of(groups=4, steps=5, staleness=2))
    assert spread([]) == "not measured"
    assert spread([0.1, 0.3, 0.2]) == "median 0.200 s, maximum 0.300 s of 3"


def test_two_runs_publish_to_the_same_samplers(tmp_path: Path) -> None:
    """As where clients ask one adapter while versions of another one come."""
    (tmp_path / "adapters").mkdir()
    adapter = make_adapter(tmp_path / "peft")
    with replicas_of(tmp_path / "adapters") as replicas:
        to = (urls(replicas.start(1)), tmp_path / "adapters", Path(BASE), 1)
        with publishing("asked", *to) as (asked, stay), publishing("trained", *to) as (trained, publish):
            stay(1, adapter)
            assert [publish(version, adapter).version for version in (1, 2, 3)] == [1, 2, 3]
            assert (tmp_path / "adapters" / asked / "1").is_dir()
            assert (tmp_path / "adapters" / trained / "3").is_dir()
        assert not (tmp_path / "adapters" / asked / "1").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pairs", "0"], "argument --pairs: must be a whole number, 1 or more: '0'"),
        (["--steps", "few"], "argument --steps: must be a whole number, 10 or more: 'few'"),
        (["--samples", "1"], "argument --samples: must be a whole number, 2 or more: '1'"),
        (["--staleness", "0"], "argument --staleness: must be a whole number, 1 or more: '0'"),
        (["--replicas", "0"], "argument --replicas: must be a whole number, 1 or more: '0'"),
        (["--patience", "0"], "argument --patience: must be a positive number of seconds: '0'"),
        (["tool", "tools"], f"argument ROW: there is no row 'tools': choose from {', '.join(ROWS)}"),
        (["--rows", "tool"], "unrecognized arguments: --rows"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert problem in refusal(main, *words)


def test_a_row_that_this_machine_cannot_run_says_why(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, PROGRAM, "gpu"], cwd=tmp_path, check=False, capture_output=True, text=True,
        env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("gpu: not measured: this machine has no NVIDIA GPU")


def test_what_is_lost_is_said_at_the_end_and_costs_no_other_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_bench: Bench, _name: str) -> None:
        raise ValueError("the file has no JSON")

    def hung(bench: Bench, _name: str) -> None:
        bench.tell(report("nothing waits", SIDES, [(Trained(HUNG), QUICK)], None))

    monkeypatch.setattr(sys, "argv", ["async_grpo.py", "broken", "hung"])
    monkeypatch.setattr(async_grpo, "ROWS", {"broken": broken, "hung": hung})
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "lost: row broken: ValueError: the file has no JSON",
        "lost: nothing waits, synchronous: pair 1 (hung before its first step, killed after 120 s of silence)",
    ]


def test_its_help_names_each_row_and_shows_examples() -> None:
    ended = subprocess.run([sys.executable, PROGRAM, "--help"], check=True, capture_output=True, text=True)
    assert all(f"\n  {row} " in ended.stdout for row in ROWS)
    assert "benchmarks/async_grpo.py tool tail --pairs 7" in ended.stdout
