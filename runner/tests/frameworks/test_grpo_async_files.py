"""The files and numbers of asynchronous GRPO, and what rank 0 does while it waits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.asynchronous.collector import Collector, Prompts
from stoker.frameworks.trl.asynchronous.metrics import Lengths, SamplesFile, numbers_of
from stoker.frameworks.trl.asynchronous.probes import PROBES, asked, rows_from
from stoker.frameworks.trl.asynchronous.prompts import longest_prompt
from stoker.frameworks.trl.asynchronous.rows import Row, rows_of, slice_of, trained_and_skipped
from stoker.rollouts.episodes import Sampling
from stoker.rollouts.publish import After
from stoker.rollouts.records import Batch, Group, Sample, Turn, Written


def sample(reward: float | None = 1.0, tokens: int = 2, version: int = 3, logprob: float = -0.5) -> Sample:
    numbers = (5,) * tokens, (1,) * tokens, (logprob,) * tokens
    return Sample((1, 2), *numbers, version, version, (reward,), "text", "stop", "s-0", 0.5, {"turns": 2.0})


def group(ordinal: int, *samples: Sample) -> Written:
    return Group(ordinal, 0, ordinal, {"prompt": "1+1="}, 3, 7), samples


def batch(*groups: Written, step: int = 4) -> Batch:
    return Batch(step, groups, tuple(1 for _ in groups), 0.25, "", 1, 6)


def test_the_file_of_samples_is_bounded(tmp_path: Path) -> None:
    file = SamplesFile(tmp_path)
    file.write(batch(*(group(number, *(sample() for _ in range(8))) for number in range(8))))
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(line["row"], len(line["samples"])) for line in lines] == [(0, 4), (1, 4)]
    assert lines[0]["samples"][0] == {
        "version": 3, "replica": "s-0", "rewards": [1.0], "finish": "stop", "text": "text",
    }  # fmt: skip
    (tmp_path / "samples.jsonl").write_text("x" * (9 << 20))
    file.write(batch(group(0, sample())))
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "samples.1.jsonl").exists()


def test_half_a_line_of_an_attempt_that_was_killed_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    SamplesFile(tmp_path).write(batch(group(0, sample()), step=4))
    with path.open("a") as stream:
        stream.write('{"step": 5, "epo')
    SamplesFile(tmp_path).write(batch(group(1, sample()), step=5))
    assert [json.loads(line)["step"] for line in path.read_text().split("\n") if line] == [4, 5]
    path.write_text('{"step"')
    SamplesFile(tmp_path)
    assert path.read_text() == ""


def test_texts_that_cannot_be_written_cost_the_run_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SamplesFile(tmp_path)
    file.write(batch(group(0, sample()), step=4))

    opened = Path.open

    def full(path: Path, mode: str = "r", *more: Any) -> Any:
        if mode == "a":
            with opened(path, mode) as stream:
                stream.write('{"step": 5, "epo')
            raise OSError(28, "No space left on device")
        return opened(path, mode, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        file.write(batch(group(1, sample()), step=5))
        file.write(batch(group(2, sample()), step=6))
    file.write(batch(group(3, sample()), step=7))
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 7]
    assert capsys.readouterr().err.count("samples.jsonl could not be written (No space left on device)") == 1
    (tmp_path / "file").touch()
    SamplesFile(tmp_path / "file").write(batch(group(0, sample())))


def test_numbers_of_a_batch() -> None:
    flat = group(0, replace(sample(1.0), logged={"unit": 3.0}), sample(1.0))
    mixed = group(1, sample(0.0, version=1), sample(None))
    numbers, lists, reward = numbers_of(batch(flat, mixed), [2.0])
    assert numbers["staleness/mean"] == 1.5
    assert numbers["staleness/max"] == 3.0
    assert numbers["rollout/flat_groups"] == 1.0
    assert numbers["rollout/turns"] == 2.0
    assert numbers["unit"] == 3.0  # by the name that the reward function gave it
    assert lists["staleness/histogram"] == [0.0, 3.0, 0.0, 1.0]
    assert reward == pytest.approx(4 / 3)


def test_the_lengths_of_trained_answers_are_compared_with_those_of_all() -> None:
    lengths = Lengths()
    assert math.isnan(lengths.bias)
    short, long = group(0, sample(tokens=1)), group(1, sample(tokens=3))
    lengths.written([short, long])
    lengths.trained([short])
    assert lengths.bias == 0.5
    lengths.trained([long])
    assert lengths.bias == 1.0


def ordinals(groups: Sequence[Written]) -> list[int]:
    return [group.ordinal for group, _ in groups]


@pytest.mark.parametrize(("parts", "kept"), [(1, [1, 3]), (4, [1, 3]), (8, [0, 1, 2, 3])])
def test_groups_without_an_advantage_are_left_out_as_far_as_the_parts_of_a_step_allow(
    parts: int, kept: list[int]
) -> None:
    groups = [group(n, sample(1.0), sample(float(n % 2 == 0))) for n in range(6)]
    trained, skipped = trained_and_skipped(batch(*groups), [1.0], 1)
    assert (ordinals(trained), ordinals(skipped)) == ([1, 3, 5], [0, 2, 4])
    few = [group(n, sample(1.0), sample(float(n not in (1, 3)))) for n in range(6)]
    trained, skipped = trained_and_skipped(batch(*few), [1.0], parts)
    assert (ordinals(trained), sorted(ordinals((*trained, *skipped)))) == (kept, [*range(6)])
    none = [group(n, sample(1.0), sample(1.0)) for n in range(6)]
    trained, skipped = trained_and_skipped(batch(*none), [1.0], 4)
    assert (ordinals(trained), ordinals(skipped)) == ([0, 1], [2, 3, 4, 5])


@pytest.mark.parametrize(
    ("rewards", "share"),
    [((1.0, 1.0, None, None), 1.0), ((None, None), 1.0), ((1.0, None), 1.0), ((1.0, 0.0, None), 0.0)],
)
def test_samples_without_a_reward_do_not_make_a_group_teach(rewards: tuple[float | None, ...], share: float) -> None:
    judged = batch(group(0, *map(sample, rewards)))
    assert numbers_of(judged, [1.0])[0]["rollout/flat_groups"] == share


def test_rewards_that_are_normalized_apart_teach_though_their_sums_are_the_same() -> None:
    def of(*rewards: float | None) -> Sample:
        return replace(sample(), rewards=rewards)

    teaches = group(0, of(1.0, 0.0), of(0.0, 2.0), of(0.0, 2.0))
    flat = group(1, of(1.0, None), of(1.0, 2.0), of(1.0, 2.0))
    weights = [1.0, 0.5]
    assert ordinals(trained_and_skipped(batch(teaches, flat), weights, 1, apart=True)[0]) == [0]
    assert ordinals(trained_and_skipped(batch(teaches, flat), weights, 1)[0]) == [1]
    assert numbers_of(batch(teaches, flat), weights, apart=True)[0]["rollout/flat_groups"] == 0.5


def test_rows_keep_the_order_of_the_groups_and_each_rank_gets_a_slice() -> None:
    rows = rows_of([group(0, sample(1.0), sample(2.0)), group(1, sample(3.0), sample(4.0))])
    assert [row.rewards for rank in range(2) for row in slice_of(rows, rank, 2)] == [(1.0,), (2.0,), (3.0,), (4.0,)]
    with pytest.raises(RunError, match="the sampler s-0 gave tokens without a probability"):
        rows_of([group(0, sample(logprob=math.nan))])


class Engine:
    """An engine that says what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, version: int) -> None:
        self.told.append(("start", version))

    def usable(self, version: int) -> None:
        self.told.append(("usable", version))

    def take(self, step: int, waiting: Callable[[str], None]) -> Batch:
        waiting("the test says so")
        return batch(group(0, sample()), step=step)

    def stop(self) -> None:
        raise OSError("the test says so")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Publisher:
    """A publisher whose versions come when the test says so."""

    def __init__(self, usable: Callable[[int], None]) -> None:
        self.usable = usable
        self.failure: RunError | None = None
        self.closed = False

    def make_room(self) -> None:
        """Do nothing: no version waits."""

    def publish(self, version: int, job: Any, *, needed: bool = False, after: After | None = None) -> None:
        self.usable(version)
        if after is not None:
            after(lambda: self.closed)

    def failed(self) -> RunError | None:
        return self.failure

    def close(self) -> None:
        self.closed = True


def collector() -> tuple[Collector, Engine, Publisher]:
    engine = Engine()
    made: list[Publisher] = []

    def publisher(usable: Callable[[int], None]) -> Publisher:
        made.append(Publisher(usable))
        return made[0]

    return Collector(engine, publisher), engine, made[0]


def test_what_one_version_wrote_alone_is_handed_over_once() -> None:
    made: list[Publisher] = []

    def publisher(usable: Callable[[int], None]) -> Publisher:
        made.append(Publisher(usable))
        return made[0]

    def probe(version: int, prompts: Prompts, stop: Callable[[], bool]) -> list[Row]:
        return rows_from(Turn(prompt, (9,), (-0.5,), version, "stop", "s-0", 0.1, version) for prompt in prompts)

    rollouts = Collector(Engine(), publisher, probe=probe)
    assert rollouts.probed() == ()
    rollouts.publish(3, "weights", prompts=[(1, 2), (3,)])
    probed = rollouts.probed()
    assert [(row.prompt_ids, row.mask, row.oldest, row.newest) for row in probed] == [
        ((1, 2), (1,), 3, 3),
        ((3,), (1,), 3, 3),
    ]
    assert rollouts.probed() == ()
    rollouts.publish(4, "weights")
    assert rollouts.probed() == ()


def test_probes_are_short_and_drawn_as_what_is_trained() -> None:
    sampling = Sampling(8, 512, 0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1)
    requests = asked(3, [(1, 2), (3,)], sampling, context=10)
    assert [one.prompt_ids for one in requests] == [(1, 2), (3,)] * (PROBES // 2)
    assert [one.max_tokens for one in requests[:2]] == [8, 9]
    assert len({one.seed for one in requests}) == PROBES
    drawn = [(one.temperature, one.top_p, one.top_k, one.min_p, one.repetition_penalty) for one in requests]
    assert {*drawn} == {(0.7, 0.9, 5, 0.1, 1.1)}
    assert {one.max_tokens for one in asked(3, [(1,)], sampling, None)} == {16}
    assert {one.max_tokens for one in asked(3, [(1,)], Sampling(8, 4), None)} == {4}


def test_a_resumed_run_begins_with_its_own_version_and_a_new_one_with_the_base_model() -> None:
    fresh, engine, _ = collector()
    fresh.begin(0, lambda reason: None)
    assert engine.told == [("start", 0)]
    resumed, engine, _ = collector()
    reasons: list[str] = []

    def waiting(reason: str) -> None:
        reasons.append(reason)
        resumed.publish(7, lambda folder: None)

    resumed.begin(7, waiting)
    assert engine.told == [("start", 7)]
    assert reasons == ["waiting for samplers: they load version 7"]
    resumed.publish(8, lambda folder: None)
    assert engine.told[-1] == ("usable", 8)


def test_versions_that_cannot_arrive_end_the_wait_with_their_error() -> None:
    rollouts, _, publisher = collector()
    publisher.failure = RunError(ExitCode.CONFIG, "the disk is full")
    with pytest.raises(RunError, match="the disk is full"):
        rollouts.take(1, lambda reason: None)


def test_everything_ends_though_one_part_does_not_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    rollouts, _, publisher = collector()
    rollouts.stop()
    assert publisher.closed
    assert "the rollouts did not end well: OSError: the test says so" in capsys.readouterr().err


def test_the_longest_prompt_is_measured_with_what_its_row_has() -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a" * length, "tools": 0} for length in range(100)]
    rows[98]["tools"] = 5
    rows[40] = {"prompt": [{"role": "user", "content": "b" * 97}], "tools": 1}
    measured = []

    def encode(row: Any) -> list[int]:
        measured.append(row)
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
        return [0] * (len(text) + row["tools"])

    assert longest_prompt(rows, encode, may_be_empty=True) == (103, "row 98 of the data set")
    assert rows[40] in measured
    assert len(measured) < len(rows), "most rows are never encoded"


@pytest.mark.parametrize("prompt", [None, 5, "", []])
def test_a_row_without_a_prompt_is_named(prompt: Any) -> None:
    said = rf"row 1 of the evaluation data has the prompt {re.escape(repr(prompt))}: write a text or messages"
    with pytest.raises(RunError, match=said) as told:
        longest_prompt([{"prompt": "a"}, {"prompt": prompt}], lambda row: [*row["prompt"]], "the evaluation data")
    assert told.value.code is ExitCode.BAD_DATA


def test_a_row_that_the_chat_template_refuses_is_named() -> None:
    def encode(row: Any) -> list[int]:
        if row["prompt"][0]["role"] == "system":
            raise ValueError("System role not supported")
        return [1]

    rows = [{"prompt": [{"role": role, "content": "a"}]} for role in ("user", "system")]
    said = r"the prompt of row 1 of the data set cannot be made into tokens \(ValueError: System role not supported\): "
    with pytest.raises(RunError, match=said) as told:
        longest_prompt(rows, encode)
    assert told.value.code is ExitCode.BAD_DATA


def test_a_prompt_may_be_empty_where_a_template_or_an_environment_adds_to_it() -> None:
    spoken = [{"prompt": [{"role": "user", "content": ""}]}]
    assert longest_prompt(spoken, lambda _: [1, 2]) == (2, "row 0 of the data set")
    assert longest_prompt([{"prompt": ""}], lambda _: [], may_be_empty=True) == (0, "row 0 of the data set")


def test_the_longest_prompt_is_not_the_one_with_the_most_characters() -> None:
    rows = [{"prompt": "a" * 100} for _ in range(100)]
    rows[40] = {"prompt": "数" * 50}
    assert longest_prompt(rows, lambda row: row["prompt"].encode()) == (150, "row 40 of the data set")
