"""Groups from prompt to rewards, with a sampler that answers from a script and the real process of users' code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rollouts.episode_parts import Script, characters, group, seeds, write_module

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.chat import Chat, chat_of
from stoker.rollouts.episodes import Episodes, Sampling
from stoker.rollouts.records import Group, Judged, Request, Sample
from stoker.rollouts.rewards import Judges, functions_among
from stoker.rollouts.tooling import Tooling
from stoker.rollouts.user_code import Functions, Limits, UserCode

SAMPLING = Sampling(samples=2, max_tokens=20, temperature=0.7, top_p=0.9)


class Lengths:
    """A judge that is no process: the reward is the length of the completion."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def score(
        self,
        columns: Mapping[str, Any],
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        episodes: Sequence[int] = (),
    ) -> Judged:
        """Judge a group."""
        self.asked.append((dict(columns), prompts, completions, completion_ids))
        return Judged([(float(len(ids)), None) for ids in completion_ids])


def write(episodes: Episodes, asked: Group | None = None) -> tuple[Sample, ...]:
    return asyncio.run(episodes.write(asked or group(), seeds))


def test_a_text_is_answered_once_per_sample() -> None:
    sampler, judge = Script(lambda request: f"{4 + request.index}."), Lengths()
    samples = write(Episodes(sampler, judge, characters(), SAMPLING))
    request = sampler.requests[1]
    assert (request.prompt_ids, request.max_tokens, request.seed) == (tuple(map(ord, "2+2=")), 20, 100)
    assert (request.version, request.ordinal, request.index, request.turn) == (3, 7, 1, 0)
    assert (request.temperature, request.top_p) == (0.7, 0.9)
    assert [sample.text for sample in samples] == ["4", "5"]
    assert [sample.rewards for sample in samples] == [(2.0, None)] * 2
    first = samples[0]
    assert (first.prompt_ids, first.completion_ids) == (request.prompt_ids, tuple(map(ord, "4.")))
    assert (first.mask, first.logprobs) == ((1, 1), (-0.5, -0.5))
    assert (first.oldest, first.newest, first.finish, first.replica) == (3, 3, "stop", "pod-0")
    assert judge.asked == [
        ({"prompt": "2+2=", "answer": "4"}, ["2+2="] * 2, ["4", "5"], [[*map(ord, "4.")], [*map(ord, "5.")]])
    ]


def test_a_conversation_is_answered_by_a_message() -> None:
    judge, prompt = Lengths(), [{"role": "user", "content": "2+2"}]
    sampler = Script(lambda _: "4.")
    samples = write(Episodes(sampler, judge, characters(), SAMPLING), group(prompt=prompt))
    assert sampler.requests[0].prompt_ids == tuple(map(ord, "U:2+2|A:"))
    assert judge.asked[0][1] == [prompt, prompt]
    assert [message["content"] for (message,) in judge.asked[0][2]] == ["4", "4"]
    assert samples[0].metrics == {"turns": 1}


def test_an_evaluation_is_greedy_and_may_be_drawn_otherwise() -> None:
    sampler = Script(lambda _: "4.")
    assert len(write(Episodes(sampler, Lengths(), characters(), SAMPLING), group(-1))) == 1
    assert sampler.requests[0].temperature == 0.0
    other = Episodes(sampler, Lengths(), characters(), SAMPLING, evaluation=Sampling(3, 5, 1.0))
    assert len(write(other, group(-2))) == 3


def test_an_answer_has_the_room_that_the_samplers_have() -> None:
    sampler = Script(lambda _: "1234567890.")
    (sample, _) = write(Episodes(sampler, Lengths(), characters(), SAMPLING, context=7))
    assert (sampler.requests[0].max_tokens, sample.text, sample.finish) == (3, "123", "length")
    with pytest.raises(RunError) as ended:
        write(Episodes(sampler, Lengths(), characters(), SAMPLING, context=4))
    assert ended.value.code is ExitCode.BAD_DATA
    assert "the prompt of row 5 of epoch 1 (group 7) has 4 tokens, but the samplers take 4" in str(ended.value)


@pytest.mark.parametrize("code", [ExitCode.CONFIG, ExitCode.CRASHED, ExitCode.STOPPED])
def test_the_row_that_a_sampler_refuses_is_named(code: ExitCode) -> None:
    def refuse(_: Request) -> str:
        raise RunError(code, "sampler a refuses it")

    with pytest.raises(RunError) as ended:
        write(Episodes(Script(refuse), Lengths(), characters(), SAMPLING))
    where = "" if code is ExitCode.STOPPED else "row 5 of epoch 1 (group 7): "  # nobody is there for any row
    assert (ended.value.code, ended.value.message) == (code, f"{where}sampler a refuses it")


def test_a_prompt_without_tokens_is_named_before_a_sampler_is_asked() -> None:
    sampler = Script(lambda _: ".")
    with pytest.raises(RunError, match=r"the prompt of row 5 of epoch 1 \(group 7\) has no tokens: write") as ended:
        write(Episodes(sampler, Lengths(), characters(), SAMPLING), group(prompt=""))
    assert ended.value.code is ExitCode.BAD_DATA
    assert not sampler.requests


def test_a_row_that_the_chat_template_refuses_is_named() -> None:
    def refuse(prompt: Any, tools: Any) -> list[int]:
        raise ValueError("System role not supported")

    chat = replace(characters(), encode=refuse)
    with pytest.raises(RunError) as ended:
        write(Episodes(Script(lambda _: "."), Lengths(), chat, SAMPLING))
    assert ended.value.code is ExitCode.BAD_DATA
    assert ended.value.message.startswith(
        "the prompt of row 5 of epoch 1 (group 7) cannot be made into tokens (ValueError: System role not supported): "
    )


def test_a_text_that_cannot_show_the_tools_is_named() -> None:
    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [*map(ord, text)]}

    tooling = Tooling(UserCode(Functions(tools=("mine:add",))), {"": [{"function": {"name": "add"}}]})
    sampler = Script(lambda _: ".")
    with pytest.raises(RunError) as ended:
        write(Episodes(sampler, Lengths(), chat_of(tokenizer), SAMPLING, tooling=tooling))
    assert ended.value.code is ExitCode.BAD_DATA
    assert ended.value.message == (
        "the prompt of row 5 of epoch 1 (group 7) cannot be made into tokens (ValueError: it is a text, which cannot "
        "show tools): write messages as the model's chat template takes them, such as without a system message, or "
        "leave the row out"
    )
    assert not sampler.requests


def test_a_row_without_a_prompt_is_named() -> None:
    row = Group(0, 0, 3, {"text": "a"}, 0, 4)
    with pytest.raises(RunError, match=r"row 3 of epoch 0 \(group 0\) has no column prompt: add it"):
        write(Episodes(Script(lambda _: "."), Lengths(), characters(), SAMPLING), row)


Make = Callable[..., Episodes]


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes episodes whose rewards and environments are a module's."""
    codes: list[UserCode] = []

    def make(
        text: str,
        *rewards: str,
        environments: Mapping[str, str] | None = None,
        answer: str = "4.",
        seconds: float = 30,
        chat: Chat | None = None,
    ) -> Episodes:
        write_module(tmp_path, monkeypatch, text)
        code = UserCode(
            Functions(functions_among(rewards), (), environments or {}), None, Limits(episode_seconds=seconds)
        )
        codes.append(code)
        loaded = code.start()
        judges = Judges(rewards, code, loaded.rewards, seconds)
        return Episodes(
            Script(lambda _: answer), judges, chat or characters(), SAMPLING, tooling=Tooling(code, loaded.tools)
        )

    yield make
    for code in codes:
        code.stop()


def test_rewards_of_several_functions_come_in_their_order(with_code: Any) -> None:
    episodes = with_code(
        "def one(answer, completions, **kwargs): return [float(answer[0] == text) for text in completions]\n"
        "async def two(completions, **kwargs): return [None, 2]\n",
        "mine:two",
        "math_answer",
        "mine:one",
        answer="4.",
    )
    assert [sample.rewards for sample in write(episodes)] == [(None, -0.2, 1.0), (2.0, -0.2, 1.0)]


def test_what_functions_log_belongs_to_their_group(with_code: Any) -> None:
    episodes = with_code(
        "import asyncio\nasync def judge(completions, unit, log_metric, **kwargs):\n"
        "    for value in unit[0]:\n        log_metric('unit', value)\n        await asyncio.sleep(0.05)\n"
        "    return [0, 0]\n",
        "mine:judge",
    )

    async def both() -> list[tuple[Sample, ...]]:
        return [*await asyncio.gather(*(episodes.write(group(n, unit=[n, n + 1]), seeds) for n in (1, 7)))]

    assert [[sample.logged for sample in samples] for samples in asyncio.run(both())] == [
        [{"unit": 1.5}] * 2,
        [{"unit": 7.5}] * 2,
    ]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ValueError('no unit')", "judge raised ValueError: no unit, for ROW (its traceback is above): mend the"),
        ("return [1.0]", "judge returned 1 rewards for 2 completions, for ROW: return one for each completion"),
        ("return [1.0, float('nan')]", "judge returned nan for completion 1, for ROW: return a finite number, or None"),
        ("return [float('-inf'), 1]", "judge returned -inf for completion 0, for ROW: return a finite number, or None"),
        (
            "import time; time.sleep(60)",
            (
                "judge took longer than the 1 s that the rewards of a group have (--reward_seconds), for ROW (its "
                "traceback is above): let it end earlier, or raise the limit if many functions compute at once"
            ),
        ),
    ],
)
def test_a_reward_that_fails_names_its_row_and_ends_with_65(
    with_code: Any, capfd: pytest.CaptureFixture[str], body: str, told: str
) -> None:
    episodes = with_code(f"def judge(completions, **kwargs):\n    {body}\n", "mine:judge", seconds=1)

    async def several() -> list[Any]:
        return await asyncio.gather(*(episodes.write(group(n), seeds) for n in (7, 8)), return_exceptions=True)

    first, second = asyncio.run(several())
    assert isinstance(first, RunError)
    assert first.code is second.code is ExitCode.BAD_DATA
    assert told.replace("ROW", "row 5 of epoch 1 (group 7)") in str(first)
    log = capfd.readouterr().err
    assert log.count("Traceback") == ("raise" in body), "the traceback is told once"
    assert ("time.sleep(60)" in log) == ("sleep" in body)


ROOM = """
class Room:
    made = 0
    def __init__(self):
        Room.made += 1
        self.resets = 0
    def reset(self, prompt, answer, **row):
        self.resets += 1
        self.row = answer
        return f" Room {answer}."
    def get_reward(self):
        return self.resets * 10 + Room.made
async def seen(completions, environments, **kwargs):
    return [len(environment.row) for environment in environments]
"""


def test_an_environment_shows_its_row_and_judges_itself(with_code: Any) -> None:
    episodes = with_code(ROOM, "mine:seen", environments={"": "mine:Room"})
    prompt = [{"role": "user", "content": "Look!"}]

    async def twice() -> list[tuple[Sample, ...]]:
        return [await episodes.write(group(n, prompt=prompt), seeds) for n in (1, 2)]

    first, second = asyncio.run(twice())
    assert "".join(map(chr, first[0].prompt_ids)) == "U:Look! Room 4.|A:"
    # Two environments are made, and used again by the next group.
    assert [sample.rewards for sample in (*first, *second)] == [(1.0, 12.0)] * 2 + [(1.0, 22.0)] * 2
    assert episodes._judge.names == ["seen", "Room"]


def test_an_environment_may_say_it_all(with_code: Any) -> None:
    episodes = with_code(ROOM.replace("prompt, answer", "answer"), environments={"": "mine:Room"})
    (sample, _) = write(episodes, Group(0, 0, 0, {"answer": "4"}, 0, 4))
    assert "".join(map(chr, sample.prompt_ids)) == "U: Room 4.|A:"


def test_rows_choose_among_environments(with_code: Any) -> None:
    text = ROOM + "class Hall(Room):\n    def reset(self, **row):\n        assert 'environment' not in row\n"
    text += "        return f' Hall {row[\"answer\"]}'\n"
    episodes = with_code(text, environments={"room": "mine:Room", "hall": "mine:Hall"})
    prompt = [{"role": "user", "content": "Look!"}]

    async def both() -> list[Any]:
        wanted = [group(n, prompt=prompt, environment=name) for n, name in enumerate(("room", "hall", "yard"))]
        return await asyncio.gather(*(episodes.write(asked, seeds) for asked in wanted), return_exceptions=True)

    room, hall, yard = asyncio.run(both())
    assert ["".join(map(chr, samples[0].prompt_ids)) for samples in (room, hall)] == [
        "U:Look! Room 4.|A:",
        "U:Look! Hall 4|A:",
    ]
    assert [reward is None for reward in (*room[0].rewards, *hall[0].rewards)] == [False, True, True, False]
    assert "names the environment 'yard', which does not exist, for row 5" in str(yard)
    assert "write one of room, hall into the column `environment`" in str(yard)


def test_an_environment_that_cannot_reset_names_its_row(with_code: Any, capfd: pytest.CaptureFixture[str]) -> None:
    episodes = with_code(
        "class Room:\n    def reset(self, **row): return row['unit']\n", environments={"": "mine:Room"}
    )
    with pytest.raises(RunError) as ended:
        write(episodes)
    assert ended.value.code is ExitCode.BAD_DATA
    assert "Room.reset raised KeyError: 'unit', for row 5 of epoch 1 (group 7)" in str(ended.value)
    assert "row['unit']" in capfd.readouterr().err


DIES_ONCE = """
import os
from pathlib import Path
def once():
    if not Path(os.environ["HOME"], "died").exists():
        Path(os.environ["HOME"], "died").touch()
        os.kill(os.getpid(), 9)
"""


def test_samples_survive_the_death_of_their_judge(
    with_code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    episodes = with_code(DIES_ONCE + "def judge(completions, **kwargs):\n    once()\n    return [1, 2]\n", "mine:judge")
    assert [sample.rewards for sample in write(episodes)] == [(1.0,), (2.0,)]
    assert len(episodes._completer.requests) == 2


def test_episodes_run_again_when_their_environment_died(
    with_code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (
        DIES_ONCE
        + "class Room:\n    def reset(self, **row): ...\n    def get_reward(self):\n        once()\n        return 1\n"
    )
    episodes = with_code(text, environments={"": "mine:Room"})

    async def several() -> list[Any]:
        return await asyncio.gather(*(episodes.write(group(n), seeds) for n in range(4)))

    assert [[sample.rewards for sample in samples] for samples in asyncio.run(several())] == [[(1.0,), (1.0,)]] * 4
    assert {request.seed for request in episodes._completer.requests} == {0, 100}
    assert len(episodes._completer.requests) > 8


def test_a_stop_is_quick_while_a_function_waits(with_code: Any) -> None:
    episodes = with_code("import time\ndef judge(completions, **kwargs): time.sleep(60)\n", "mine:judge", seconds=60)

    async def stop() -> None:
        task = asyncio.create_task(episodes.write(group(), seeds))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(1):
                await task

    asyncio.run(stop())
