"""Episodes with TRL's own parts: `python rollout_cases.py MODEL` prints the cases that fail, as JSON.

Runs in an environment with TRL. The tokenizer is that of a tiny model with the chat templates of real ones.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import get_json_schema
from trl import GRPOTrainer
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    llama3_chat_template,
    qwen2_5_chat_template,
    qwen3_chat_template,
)

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.chat import chat_of
from stoker.rollouts.episodes import Episodes, Sampling
from stoker.rollouts.records import Group, Request, Turn
from stoker.rollouts.rewards import Judges
from stoker.rollouts.tooling import Tooling
from stoker.rollouts.user_code import Functions, Limits, UserCode

MODULE = '''
import asyncio

async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    await asyncio.sleep(0.01)
    return a + b

def fail(why: str) -> str:
    """Fail.

    Args:
        why: The reason.
    """
    raise ValueError(why)

def hang() -> str:
    """Never return."""
    import time
    time.sleep(60)

def bare(a):
    return a

class Counter:
    """Counts up."""
    def reset(self, **row):
        self.count = row["start"]
        return f" Start at {self.count}."
    def up(self, by: int) -> str:
        """Count up.

        Args:
            by: How far.
        """
        self.count += by
        return f"Now {self.count}"
    def get_reward(self):
        return self.count

class Quiz:
    """Has no tools."""
    def reset(self, **row):
        return f" Add {row['start']}."
    def get_reward(self):
        return 1

TOOLS = [add, fail]

def spoke(completions, **kwargs):
    return [len(completion) for completion in completions]
'''
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def refusal(work: Callable[[], Any], code: ExitCode) -> str:
    """Return what a run that ends with a code says."""
    try:
        work()
    except RunError as error:
        if error.code is code:
            return error.message
        raise
    raise AssertionError(f"it went on instead of ending with {code}")


def tokenizer_with(template: str | None) -> Any:
    """Return the tiny model's tokenizer with another template, and the special tokens of that."""
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = template
    return tokenizer


class Script:
    """A sampler that gives the same answers to every sample, one per turn."""

    def __init__(self, tokenizer: Any, *answers: str) -> None:
        self.answers = [tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False) for answer in answers]
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Turn:
        """Answer a request."""
        self.requests.append(request)
        ids = tuple(self.answers[request.turn])
        return Turn(request.prompt_ids, ids, (-0.5,) * len(ids), request.version, "stop", "pod-0", 0.0)


def played(
    functions: Functions,
    template: str,
    *answers: str,
    limits: Limits | None = None,
    context: int | None = None,
    **columns: Any,
) -> tuple[Any, Script, Any]:
    """Write a group of two samples with a module's tools; return its samples, the sampler and the tokenizer."""
    tokenizer = tokenizer_with(template)
    code = UserCode(functions, None, limits)
    loaded = code.start()
    try:
        chat = chat_of(tokenizer, tools=loaded.has_tools)
        script = Script(tokenizer, *answers)
        judges = Judges(functions.rewards, code, loaded.rewards, 60)
        episodes = Episodes(
            script, judges, chat, Sampling(2, 1000), tooling=Tooling(code, loaded.tools), context=context
        )
        prompt = [{"role": "user", "content": "What is 3 + 4?"}]
        group = Group(0, 0, 0, {"prompt": prompt, **columns}, 0, 4)
        samples = asyncio.run(episodes.write(group, lambda index, turn: 10 * index + turn))
    finally:
        code.stop()
    return samples, script, tokenizer


def tools_are_described_as_trl_describes_them() -> None:
    """The schemas are those of the functions."""
    code = UserCode(Functions(("mine:spoke",), ("mine:TOOLS",), {"": "mine:Counter"}))
    try:
        loaded = code.start()
    finally:
        code.stop()
    import mine  # type: ignore[import-not-found]

    assert loaded.tools == {"": [get_json_schema(tool) for tool in (mine.add, mine.fail, mine.Counter().up)]}, loaded
    assert loaded.rewards == ("spoke", "Counter"), loaded


def a_tool_is_called_and_its_answer_follows_verbatim() -> None:
    """Two turns are one row, and only what the policy wrote is trained."""
    functions = Functions(("mine:spoke",), ("mine:add",))
    call = CALL.format("add", '{"a": 3, "b": 4}')
    samples, script, tokenizer = played(functions, qwen3_chat_template, call, "It is 7.")
    first, second = (request for request in script.requests if request.index == 0)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    answered = first.prompt_ids + tuple(script.answers[0])
    assert second.prompt_ids[: len(answered)] == answered
    told = tokenizer.decode(second.prompt_ids[len(answered) :])
    assert "<tool_response>\n7\n</tool_response>" in told, told
    sample = samples[0]
    wrote = [token for token, mask in zip(sample.completion_ids, sample.mask, strict=True) if mask]
    assert wrote == [*script.answers[0], *script.answers[1]]
    assert all((value == 0.0) == (mask == 0) for value, mask in zip(sample.logprobs, sample.mask, strict=True))
    assert sample.rewards == (3.0,), sample.rewards
    expected = {"turns": 2, "tools/calls": 1, "tools/failures": 0, "branches": 0, "branches/untrained": 0}
    assert sample.metrics == expected, sample.metrics
    assert '"name": "add"' in tokenizer.decode(first.prompt_ids)


def an_episode_ends_where_the_samplers_have_no_room() -> None:
    """The answer of a tool that leaves no room for another turn is left out, and the turns so far are judged."""
    functions = Functions(("mine:spoke",), ("mine:add",))
    told = CALL.format("add", '{"a": 3, "b": 4}'), "It is 7."
    _, script, _ = played(functions, qwen3_chat_template, *told)
    filled = max(len(request.prompt_ids) for request in script.requests)
    (first, _), script, _ = played(functions, qwen3_chat_template, *told, context=filled)
    assert (first.metrics["turns"], first.rewards, len(script.requests)) == (1, (1.0,), 2)
    assert first.completion_ids == tuple(script.answers[0])
    _, script, _ = played(functions, qwen3_chat_template, *told, context=filled + 1)
    assert sorted(request.max_tokens for request in script.requests)[:2] == [1, 1], "one token has room"


def tool_texts_are_those_of_trl() -> None:
    """The tokens after an answer are what GRPOTrainer puts there."""
    for template in (qwen3_chat_template, qwen2_5_chat_template):
        tokenizer = tokenizer_with(template)
        chat = chat_of(tokenizer, tools=True)
        assert chat.suffix is not None
        trainer = SimpleNamespace(
            processing_class=tokenizer,
            _tokenizer=tokenizer,
            _is_vlm=False,
            chat_template_kwargs={},
            chat_template=get_training_chat_template(tokenizer),  # as GRPOTrainer does where one is needed
        )
        messages = [{"role": "tool", "name": "add", "content": "7"}, {"role": "tool", "name": "add", "content": "8"}]
        assert list(chat.suffix(messages)) == GRPOTrainer._get_tool_suffix_ids(trainer, messages)


def a_tool_that_fails_tells_the_policy() -> None:
    """An exception of a tool, and a tool that there is not, are answers."""
    functions = Functions(("mine:spoke",), ("mine:TOOLS",))
    calls = CALL.format("fail", '{"why": "no unit"}') + CALL.format("absent", "{}") + CALL.format("add", '{"c": 1}')
    samples, script, tokenizer = played(functions, qwen3_chat_template, calls, "Sorry.")
    told = tokenizer.decode(script.requests[-1].prompt_ids)
    assert "{'error': 'no unit'}" in told, told
    assert "{'error': 'Tool absent not found.'}" in told, told
    assert samples[0].metrics["tools/failures"] == 3, samples[0].metrics


def a_tool_that_hangs_ends_the_run() -> None:
    """It names the row."""
    functions = Functions(("mine:spoke",), ("mine:hang",))
    call, limits = CALL.format("hang", "{}"), Limits(episode_seconds=1)
    ended = refusal(lambda: played(functions, qwen3_chat_template, call, limits=limits), ExitCode.BAD_DATA)
    assert "hang took longer than the 1 s that an episode has (--episode_seconds), for row 0" in ended, ended


def an_environment_is_played() -> None:
    """Each sample has its own environment, which judges itself."""
    functions = Functions((), (), {"": "mine:Counter"})
    call = CALL.format("up", '{"by": 5}')
    samples, _, tokenizer = played(functions, qwen3_chat_template, call, call, "Done.", start=2)
    assert "Start at 2." in tokenizer.decode(samples[0].prompt_ids)
    assert [sample.rewards for sample in samples] == [(12.0,), (12.0,)], samples
    assert "Now 7" in samples[0].text
    assert "Now 12" in samples[0].text


def an_environment_without_tools_needs_no_template_that_shows_them() -> None:
    """It shows its row and judges."""
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    samples, _, tokenizer = played(Functions((), (), {"": "mine:Quiz"}), template, "7", start=2)
    assert tokenizer.decode(samples[0].prompt_ids) == "What is 3 + 4? Add 2."
    assert [(sample.text, sample.rewards) for sample in samples] == [("7", (1.0,))] * 2, samples


def a_template_that_changes_what_was_said_branches() -> None:
    """The row begins anew, and the tokens that it loses are counted."""
    changing = qwen3_chat_template.replace(
        "{%- if messages", "{%- set n = messages | length %}{{- n }}{%- if messages", 1
    )
    functions = Functions(("mine:spoke",), ("mine:add",))
    call = CALL.format("add", '{"a": 3, "b": 4}')
    tokenizer = tokenizer_with(changing)
    known = add_response_schema(tokenizer_with(qwen3_chat_template)).response_template
    tokenizer.response_template = known
    chat = chat_of(tokenizer, tools=True)
    assert chat.suffix is None
    code = UserCode(functions)
    loaded = code.start()
    try:
        script = Script(tokenizer, call, "It is 7.")
        judges = Judges(functions.rewards, code, loaded.rewards, 60)
        episodes = Episodes(script, judges, chat, Sampling(1, 1000), tooling=Tooling(code, loaded.tools))
        group = Group(0, 0, 0, {"prompt": [{"role": "user", "content": "3 + 4?"}]}, 0, 4)
        (sample,) = asyncio.run(episodes.write(group, lambda index, turn: 0))
    finally:
        code.stop()
    assert sample.completion_ids == tuple(script.answers[1])
    assert sample.metrics["branches"] == 1
    assert sample.metrics["branches/untrained"] == len(script.answers[0])
    assert sample.rewards == (3.0,)


def templates_that_cannot_be_read_are_refused() -> None:
    """Before the first step, with what to write."""
    for template, word in (
        (llama3_chat_template, "cannot show tool calls"),
        (qwen3_chat_template + " ", "write a `response_template`"),
        (None, "cannot show tool calls"),
    ):
        tokenizer = tokenizer_with(template)
        told = refusal(functools.partial(chat_of, tokenizer, tools=True), ExitCode.CONFIG)
        assert word in told, told
        chat_of(tokenizer, tools=False)


def a_tool_without_types_is_refused() -> None:
    """It is named."""
    told = refusal(UserCode(Functions((), ("mine:bare",))).start, ExitCode.CONFIG)
    assert "--tools: the tool bare cannot be described to the model" in told, told


def rewards_of_trl_judge_as_in_trl() -> None:
    """Its names, its factories, through the process."""
    names = (
        "think_format_reward",
        "get_soft_overlong_punishment",
        "get_repetition_penalty_reward(ngram_size=2,max_penalty=-1.0)",
    )
    code = UserCode(Functions(names), {"the data": ("prompt",)})
    loaded = code.start()
    completions = [[{"role": "assistant", "content": f"<think>\na b a b\n</think>\n{n}"}] for n in range(2)]
    ids = [[1] * 1200, [1] * 10]

    async def score() -> Any:
        judges = Judges(names, code, loaded.rewards, 60)
        return (await judges.score({"prompt": "p"}, ["p", "p"], completions, ids)).rewards

    try:
        given = asyncio.run(score())
    finally:
        code.stop()
    from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment, think_format_reward

    functions = (
        think_format_reward,
        get_soft_overlong_punishment(max_completion_len=1280, soft_punish_cache=256),
        get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0),
    )
    direct = [function(completions=completions, completion_ids=ids, prompts=["p", "p"]) for function in functions]
    assert given == list(zip(*direct, strict=True)), (given, direct)


def the_columns_are_those_of_trl() -> None:
    """A function gets what GRPOTrainer gives it, but for the trainer's state."""
    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    assert 'if key not in ["prompt", "completion", "completion_ids"]' in source
    given = set(re.findall(r'(?<!row_)reward_kwargs\["(\w+)"\]', source))
    assert given == {"trainer_state", "log_extra", "log_metric", "environments"}, given


def main() -> None:
    """Run the cases."""
    cases: tuple[Callable[[], None], ...] = (
        tools_are_described_as_trl_describes_them,
        a_tool_is_called_and_its_answer_follows_verbatim,
        an_episode_ends_where_the_samplers_have_no_room,
        tool_texts_are_those_of_trl,
        a_tool_that_fails_tells_the_policy,
        a_tool_that_hangs_ends_the_run,
        an_environment_is_played,
        an_environment_without_tools_needs_no_template_that_shows_them,
        a_template_that_changes_what_was_said_branches,
        templates_that_cannot_be_read_are_refused,
        a_tool_without_types_is_refused,
        rewards_of_trl_judge_as_in_trl,
        the_columns_are_those_of_trl,
    )
    failed = {}
    folder = Path(tempfile.mkdtemp())
    (folder / "mine.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    for case in cases:
        try:
            case()
        except Exception:  # noqa: BLE001 - whatever it is, the case fails
            failed[case.__name__] = traceback.format_exc()
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
