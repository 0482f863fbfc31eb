"""The example with two sessions, where one of them has finished before the other is up."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/two-sessions/two_sessions.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, which does not wait between looks."""
    spec = importlib.util.spec_from_file_location("two_sessions", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.setattr(found, "LOOK_SECONDS", 0.0)
    return found


def test_a_session_that_has_finished_is_not_started_again(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    states: dict[str, str] = {}

    def stoker(_: object, *words: str) -> str:
        match words:
            case ("rl", "up", name, *rest):
                if states.get(name) == "Complete":
                    raise example.FailedError(f"session {name} has ended (Complete)")
                first = rest[rest.index("--wait") + 1] == "0"
                states[name] = "starting" if first else "Complete"
                if not first:
                    states["sums-two"] = "Complete"
            case ("rl", "list", *_):
                return json.dumps([{"name": name, "state": state} for name, state in states.items()])
            case ("get", _, folder, *_):
                Path(folder).mkdir()
                (Path(folder) / "metrics.jsonl").write_text('{"reward": 1.0}\n')
        return ""

    monkeypatch.setattr(example.Tools, "stoker", stoker)
    rewards = example.train(example.Tools("ml", None), example._arguments([]))
    assert rewards == {"sums-one": [1.0], "sums-two": [1.0]}
