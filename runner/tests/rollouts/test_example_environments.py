"""The examples that adapt OpenEnv and verifiers, with stand-ins for the two packages, which no image here has."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "environments"


def example(path: str, monkeypatch: pytest.MonkeyPatch, **stand_ins: ModuleType) -> Any:
    """Import an example with stand-ins for the modules that it imports, named with _ for dots."""
    for name, module in stand_ins.items():
        parts = name.split("_")
        for parent in (".".join(parts[:end]) for end in range(1, len(parts))):
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, ".".join(parts), module)
    spec = importlib.util.spec_from_file_location("example_environment", EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Client:
    """OpenEnv's client of a server that echoes; the third step ends the episode."""

    def __init__(self, base_url: str) -> None:
        self.url = base_url
        self.calls: list[Any] = []

    async def disconnect(self) -> None:
        """End the session."""
        self.calls.append("disconnect")

    async def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        self.calls.append(kwargs)
        return SimpleNamespace(observation={"echoed": ""}, reward=None, done=False)

    async def step(self, action: dict[str, Any]) -> Any:
        """Echo."""
        self.calls.append(action)
        done = sum(isinstance(call, dict) and "message" in call for call in self.calls) == 2
        return SimpleNamespace(observation={"echoed": action["message"]}, reward=0.5, done=done)


def test_an_openenv_environment_is_reset_stepped_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ModuleType("openenv.core")
    core.GenericEnvClient = Client  # type: ignore[attr-defined]
    module = example("openenv/openenv_environment.py", monkeypatch, openenv_core=core)
    environment = module.at(url="http://echo:8000")()

    async def play() -> None:
        assert await environment.reset(seed=3, prompt="p", answer="4") == '\n{"echoed": ""}'
        assert await environment.step({"message": "hello"}) == '{"echoed": "hello"}'
        await environment.step({"message": "bye"})
        with pytest.raises(ValueError, match="over"):
            await environment.step({"message": "again"})

    asyncio.run(play())
    assert environment.get_reward() == 1.0
    assert environment._client.url == "http://echo:8000"
    assert environment._client.calls[:2] == ["disconnect", {"seed": 3}]
    asyncio.run(environment.reset())
    assert environment.get_reward() == 0.0


class Task:
    """A task of verifiers that wants its answer as the last reply."""

    key = hash = "k"

    def __init__(self, prompt: str, answer: str | None) -> None:
        self.data = SimpleNamespace(prompt_text=prompt, system_prompt="Be short.", answer=answer)

    async def score(self, trace: Any) -> None:
        """Judge."""
        if self.data.answer is not None:
            said = [node.message["content"] for node in trace.nodes if node.sampled]
            trace.rewards["exact"] = float(said[-1] == self.data.answer)


class Trace(SimpleNamespace):
    """What verifiers records."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nodes=[], rewards={}, **kwargs)

    @property
    def reward(self) -> float:
        """The sum."""
        return float(sum(self.rewards.values()))


def test_a_taskset_of_verifiers_gives_rows_and_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: Any) -> Sequence[Task]:
        assert config.id == "sums"
        return [Task("2+2?", "4"), Task("3+3?", None)]

    v1 = ModuleType("verifiers.v1")
    v1.__dict__.update(
        load_taskset=load,
        taskset_config_type=lambda _: SimpleNamespace,
        Trace=Trace,
        TraceTask=SimpleNamespace,
        MessageNode=SimpleNamespace,
        AgentInfo=SimpleNamespace,
        AgentConfig=SimpleNamespace,
    )
    state = ModuleType("verifiers.v1.state")
    state.__dict__["state_cls"] = lambda _: SimpleNamespace
    module = example("verifiers/verifiers_environment.py", monkeypatch, verifiers_v1=v1, verifiers_v1_state=state)
    rows = module.rows("sums")
    assert rows[0] == {
        "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}],
        "task": 0,
    }
    factory = module.of(taskset="sums")
    environments = [factory(), factory(), factory()]
    for environment, number in zip(environments, (0, 0, 1), strict=True):
        assert environment.reset(**rows[number]) is None
    completions = [[{"role": "assistant", "content": text}] for text in ("4", "5", "6")]
    prompts = [rows[number]["prompt"] for number in (0, 0, 1)]
    assert asyncio.run(module.judge(prompts, completions, environments=environments)) == [1.0, 0.0, None]
