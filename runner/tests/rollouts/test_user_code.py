"""The process of users' code: what it has, how it fails, how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rollouts.episode_parts import SOURCE, write_module
from runner.tests.rollouts.replicas import until

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.failures import UserCodeError, UserCodeLostError
from stoker.rollouts.user_code import Functions, Limits, Loaded, UserCode

LIMIT = "the limit"


@pytest.fixture
def started() -> Iterator[list[UserCode]]:
    """Where a test leaves what must end with it."""
    codes: list[UserCode] = []
    yield codes
    for code in codes:
        code.stop()
    gc.collect()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[UserCode]) -> Any:
    """Makes the process of a module with reward functions."""

    def make(
        text: str, *rewards: str, limits: Limits | None = None, columns: tuple[str, ...] = ("answer",)
    ) -> UserCode:
        write_module(tmp_path, monkeypatch, text)
        made = UserCode(Functions(rewards or ("mine:judge",)), {"the data": columns}, limits)
        started.append(made)
        made.start()
        return made

    return make


async def score(code: UserCode, seconds: float = 120, count: int = 2, **columns: Any) -> Any:
    answer = await code.ask(
        "score",
        seconds,
        LIMIT,
        columns=columns,
        prompts=["p"] * count,
        completions=["c"] * count,
        completion_ids=[[1, 2]] * count,
        episodes=[],
    )
    return answer["rewards"]


def failure(code: UserCode, seconds: float = 120, **columns: Any) -> UserCodeError:
    with pytest.raises(UserCodeError) as failed:
        asyncio.run(score(code, seconds, **columns))
    return failed.value


def alive(session: int) -> list[str]:
    """Return the processes of a session that did not end."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_an_environment_may_have_no_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[UserCode]
) -> None:
    write_module(tmp_path, monkeypatch, "class Room:\n    def reset(self, **row): ...\n    def get_reward(self): ...\n")
    started.append(UserCode(Functions(environments={"": "mine:Room"})))
    loaded = started[0].start()
    assert (loaded.rewards, loaded.has_tools) == (("Room",), False)
    assert Loaded((), {"room": [], "hall": [{"function": {"name": "open"}}]}).has_tools


def test_functions_are_called_as_trl_calls_them(code: Any) -> None:
    made = code(
        """
        import asyncio, functools
        def judge(prompts, completions, completion_ids, answer, log_extra, log_metric, **kwargs):
            log_metric("seen", 3)
            log_extra("x", [1, 2])
            assert not kwargs, kwargs
            return [1, None] if (prompts, completions, completion_ids, answer) == (
                ["p", "p"], ["c", "c"], [[1, 2], [1, 2]], ["4", "4"]) else [0, 0]
        async def slow(completions, **kwargs):
            await asyncio.sleep(0)
            return (0.5 for _ in completions)
        def little(completions):
            return [len(text) for text in completions]
        class Judge:
            async def __call__(self, completions, **kwargs):
                return [True, False]
        def make(value):
            return functools.partial(same, value)
        def same(value, completions, **kwargs):
            return [value for _ in completions]
        """.replace("\n        ", "\n"),
        "mine:judge",
        "mine.slow",
        "mine:little",
        "mine:Judge()",
        "mine:make(value=7)",
    )
    assert asyncio.run(score(made, answer="4")) == [[1.0, None], [0.5, 0.5], [1.0, 1.0], [1.0, 0.0], [7.0, 7.0]]


def test_a_process_knows_its_names_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[UserCode]
) -> None:
    write_module(tmp_path, monkeypatch, "class Judge:\n    def __call__(self, **kwargs): return []\n")
    made = UserCode(Functions(("mine:Judge()", "math_answer")), {"the data": ("answer",)})
    started.append(made)
    assert made.start().rewards == ("Judge", "math_answer")


SEES = """
import json, os, resource, stat, sys
def judge(completions, **kwargs):
    print("printed by a reward")
    open_files = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{name}")}
    json.dump({
        "environ": dict(os.environ), "files": open_files, "session": os.getsid(0), "pid": os.getpid(),
        "core": resource.getrlimit(resource.RLIMIT_CORE), "data": resource.getrlimit(resource.RLIMIT_DATA),
        "score": open("/proc/self/oom_score_adj").read().strip(), "stdin": sys.stdin.read(),
    }, open(os.environ["HOME"] + "/seen.json", "w"))
    return [0 for _ in completions]
"""


def test_it_has_little_of_the_run(
    code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "HOME": str(tmp_path),
        "HF_TOKEN": "hf_secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MASTER_ADDR": "node-0",
        "RANK": "0",
        "STOKER_WORKSPACE": "/workspace",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "https_proxy": "http://user:password@proxy",
        "http_proxy": "http://proxy",
        "LC_ALL": "C.UTF-8",
    }.items():
        monkeypatch.setenv(name, value)
    kept = (tmp_path / "kept").open("w")
    os.set_inheritable(kept.fileno(), True)
    made = code(SEES, limits=Limits(memory_bytes=2**33))
    asyncio.run(score(made))
    seen = json.loads((tmp_path / "seen.json").read_text())
    hidden = {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MASTER_ADDR", "RANK", "STOKER_WORKSPACE", "https_proxy"}
    assert not (hidden | {"KUBERNETES_SERVICE_HOST"}) & set(seen["environ"])
    assert {"http_proxy", "PATH", "LC_ALL"} <= set(seen["environ"])
    assert seen["environ"]["CUDA_VISIBLE_DEVICES"] == ""
    assert str(tmp_path / "kept") not in seen["files"].values()
    assert (seen["session"], seen["core"], seen["data"]) == (seen["pid"], [0, 0], [2**33, 2**33])
    assert (seen["score"], seen["stdin"]) == ("1000", "")
    assert "printed by a reward" in capfd.readouterr().err


def test_a_function_that_raises_is_named_with_its_traceback(code: Any) -> None:
    made = code("def judge(completions, **kwargs):\n    inner()\ndef inner():\n    raise ValueError('no such unit')\n")
    failed = failure(made)
    assert (failed.function, failed.problem) == ("judge", "raised ValueError: no such unit")
    assert "in inner" in failed.trace
    assert "stoker" not in failed.trace


def test_a_long_message_is_cut_to_a_line(code: Any) -> None:
    failed = failure(code("def judge(completions, **kwargs): raise ValueError('a\\nb ' * 1000)"))
    assert failed.problem.startswith("raised ValueError: a b a b a")
    assert len(failed.problem) < 600
    assert "\n" not in failed.problem


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "raise KeyboardInterrupt", "next(iter(()))"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_function_cannot_end_the_process_by_an_exception(code: Any, kind: str, ending: str) -> None:
    made = code(
        f"{kind} judge(completions, **kwargs):\n    {ending}\n{kind} other(completions, **kwargs): return [1, 2]\n"
    )
    assert "raised" in failure(made).problem
    assert made.life == 1


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("1.0", "returned a float"),
        ("'11'", "returned a str"),
        ("None", "returned a NoneType"),
        ("['1', '2']", "returned a str among its rewards"),
        ("[[1], [2]]", "returned a list among its rewards"),
    ],
)
def test_what_is_no_list_of_numbers_is_refused(code: Any, returned: str, problem: str) -> None:
    assert failure(code(f"def judge(completions, **kwargs): return {returned}")).problem == problem


@pytest.mark.parametrize(
    ("kind", "wait"),
    [("def", "time.sleep(600)"), ("async def", "await asyncio.sleep(600)")],
    ids=["thread", "coroutine"],
)
def test_a_function_that_hangs_is_told_with_where_it_is(code: Any, kind: str, wait: str) -> None:
    made = code(f"import asyncio, time\n{kind} judge(completions, **kwargs):\n    {wait}  # here\n")
    began = time.monotonic()
    failed = failure(made, 0.5)
    assert failed.problem == "took longer than the limit"
    assert "# here" in failed.trace
    assert time.monotonic() - began < 300


def test_an_async_function_that_never_awaits_is_found_too(
    code: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stoker.rollouts.user_code._PING_SECONDS", 1.0)
    made = code("import time\nasync def judge(completions, **kwargs):\n    time.sleep(600)\n")
    failed = failure(made, 0.2)
    assert (failed.function, failed.problem) == ("mine:judge", "took longer than the limit and let nothing else run")
    told, end = "", time.monotonic() + 120
    while "line 3 in judge" not in told:
        assert time.monotonic() < end, told
        time.sleep(0.05)
        told += capfd.readouterr().err


def test_a_thousand_functions_wait_at_the_same_time(code: Any) -> None:
    made = code(
        "import asyncio\nasync def judge(completions, **kwargs):\n    await asyncio.sleep(2)\n    return [1, 1]\n"
    )

    async def many() -> float:
        await score(made)
        began = time.monotonic()
        await asyncio.gather(*(score(made) for _ in range(1000)))
        return time.monotonic() - began

    assert asyncio.run(many()) < 600, "one by one they take 2,000 s"


def test_what_has_no_json_form_is_refused(code: Any) -> None:
    made = code("def judge(completions, **kwargs): return [1, 1]")

    async def twice() -> Any:
        with pytest.raises(UserCodeError) as failed:
            await score(made, picture=object())
        assert (failed.value.function, failed.value.problem) == (
            "the data",
            "cannot be handed over (object has no JSON form)",
        )
        return await score(made)

    assert asyncio.run(twice()) == [[1.0, 1.0]]


def test_a_second_event_loop_is_refused(code: Any) -> None:
    made = code("def judge(completions, **kwargs): return [1, 1]")
    asyncio.run(score(made))
    with pytest.raises(RuntimeError, match="second event loop"):
        asyncio.run(score(made))


def test_an_allocation_beyond_the_limit_is_an_error_of_the_function(code: Any) -> None:
    made = code("def judge(completions, **kwargs):\n    bytearray(2**30)\n", limits=Limits(memory_bytes=2**29))
    assert failure(made).problem.startswith("raised MemoryError")


DIES = "import os\ndef judge(completions, **kwargs): os.kill(os.getpid(), 9)\n"


def test_a_death_is_told_and_the_process_starts_again_once(code: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = code(DIES)

    async def twice() -> None:
        for expected in (1, 2):
            results = await asyncio.gather(*(score(made) for _ in range(3)), return_exceptions=True)
            assert all(isinstance(result, UserCodeLostError) and result.life == expected for result in results)
            await asyncio.gather(*(made.revive(expected) for _ in range(3)))

    with pytest.raises(RunError) as ended:
        asyncio.run(twice())
    assert ended.value.code is ExitCode.BAD_DATA
    assert "was killed (most likely, memory ran out) twice within 100 groups" in str(ended.value)
    assert capfd.readouterr().err.count("it starts again") == 1


def test_a_death_long_after_another_is_forgiven(code: Any) -> None:
    made = code(DIES)

    async def deaths() -> None:
        for life in (1, 2, 3):
            with pytest.raises(UserCodeLostError):
                await score(made)
            await made.revive(life)
            for _ in range(100):
                made.group_written()

    asyncio.run(deaths())
    assert made.life == 4


def test_a_death_is_seen_although_what_it_forked_lives(code: Any) -> None:
    made = code(
        "import os, time\ndef judge(completions, **kwargs):\n"
        "    if os.fork() == 0:\n        time.sleep(600)\n    os.kill(os.getpid(), 9)\n"
    )

    async def die() -> int:
        with pytest.raises(UserCodeLostError):
            await score(made)
        pid = int(made._process.pid)
        await made.revive(1)
        return pid

    session = asyncio.run(die())
    until(lambda: not alive(session))


def test_a_stop_ends_it_at_once_with_what_it_started(code: Any, tmp_path: Path) -> None:
    made = code(
        "import subprocess, time\ndef judge(completions, **kwargs):\n"
        f"    subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'began')!r}, 'w').close(); time.sleep(600)\n"
    )
    process = made._process
    assert process is not None

    async def stop() -> float:
        task = asyncio.create_task(score(made, 600))
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.05)
        began = time.monotonic()
        made.stop()
        with pytest.raises(UserCodeLostError):
            await task
        with pytest.raises(RunError):
            await made.revive(1)
        return time.monotonic() - began

    assert asyncio.run(stop()) < 300, "it would sleep for ten minutes"
    until(lambda: not alive(process.pid))


PARENT = """
import sys
from stoker.rollouts.user_code import Functions, UserCode
code = UserCode(Functions(("mine:judge",)))
code.start()
print(code._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_dies_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, monkeypatch, "def judge(**kwargs): return []")
    run = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    run.send_signal(signal.SIGKILL)
    run.communicate()
    end = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("text", "reward", "code", "message"),
    [
        ("", "absent.module:f", ExitCode.NO_INPUT, "there is no module absent; add its folder to PYTHONPATH"),
        ("import absent", "mine:judge", ExitCode.CONFIG, "mine raised ModuleNotFoundError: No module named 'absent'"),
        ("1 / 0", "mine:judge", ExitCode.CONFIG, "mine raised ZeroDivisionError: division by zero"),
        ("exit(3)", "mine:judge", ExitCode.CONFIG, "mine raised SystemExit: 3"),
        ("def judge(): ...", "mine:juge", ExitCode.USAGE, "mine has no juge; did you mean judge?"),
        ("judge = 3", "mine:judge", ExitCode.USAGE, "is a int: name a function"),
        ("class Judge: ...", "mine:Judge", ExitCode.USAGE, "is a class: write mine:Judge() for an instance"),
        ("def make(a): ...", "mine:make(b=1)", ExitCode.USAGE, "change its arguments"),
        (
            "def judge(solution): ...",
            "mine:judge",
            ExitCode.BAD_DATA,
            "needs the column solution, but the data only has values in",
        ),
        (
            "def judge(prompt, answer): ...",
            "mine:judge",
            ExitCode.CONFIG,
            "needs prompt, which no reward function gets: name the argument prompts, a list with one for each sample",
        ),
        ("def judge(completion): ...", "mine:judge", ExitCode.CONFIG, "name the argument completions"),
        ("def judge(trainer_state): ...", "mine:judge", ExitCode.CONFIG, "needs trainer_state"),
        ("import os; os.kill(os.getpid(), 9)", "mine:judge", ExitCode.CONFIG, "was killed (most likely, memory"),
    ],
)
def test_what_cannot_be_called_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reward: str, code: ExitCode, message: str
) -> None:
    write_module(tmp_path, monkeypatch, text)
    with pytest.raises(RunError) as refused:
        UserCode(Functions((reward,)), {"the data": ("answer", "prompt")}).start()
    assert refused.value.code is code
    assert message in str(refused.value)


def test_a_reward_finds_its_columns_in_the_evaluation_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, monkeypatch, "def judge(answer): ...")
    columns = {"the data set": ("answer", "prompt"), "the evaluation data": ("prompt",)}
    with pytest.raises(
        RunError, match=r"the column answer, but the evaluation data only has values in prompt: .* a default if it"
    ) as refused:
        UserCode(Functions(("mine:judge",)), columns).start()
    assert refused.value.code is ExitCode.BAD_DATA


def test_an_import_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(RunError, match="not imported after 1 s"):
        UserCode(Functions(("mine:judge",)), None, Limits(start_seconds=1)).start()


def test_the_process_imports_neither_torch_nor_transformers() -> None:
    program = "import sys, stoker.rollouts.child; sys.exit(bool({'torch', 'transformers', 'trl'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(SOURCE)})
