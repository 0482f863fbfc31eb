"""Backends are registered once, come from installed packages too, and a broken one hinders nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from stoker.backends import (
    LLMBackend,
    TorchTuneConfig,
    TRLConfig,
    broken_plugins,
    get_backend,
    get_registered_backends,
    register_backend,
    register_framework,
)
from stoker.commands.main import main
from stoker.contract.exits import RunError
from stoker.frameworks import TRL, Framework, get_framework, known_frameworks, registry


class Nothing(LLMBackend):
    """A backend that says nothing."""

    framework: ClassVar[str] = "nothing"
    command: ClassVar[tuple[str, ...]] = ("true",)

    def to_args(self, initializer: object = None) -> list[str]:
        """Return nothing."""
        return []


class Runs(TRL):
    """A framework of a package's own."""

    name: ClassVar[str] = "mine"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    broken_plugins.cache_clear()
    yield
    broken_plugins.cache_clear()


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package whose entry points are the backends good, bad, gone, leaving and trl."""
    targets = {
        "good": "stoker_plugins:Good",
        "bad": "stoker_plugins:Abstract",
        "gone": "stoker_plugins:Gone",
        "leaving": "stoker_leaving:Any",
        "trl": "stoker_plugins:Usurper",
        "torchtune": "stoker_plugins:Same",
        "sly": "stoker_sly:Sly",
    }
    (tmp_path / "stoker_leaving.py").write_text("raise SystemExit('no GPU')\n")
    (tmp_path / "stoker_plugins.py").write_text(
        "from stoker.backends import LLMBackend, TRLConfig\n"
        "from stoker.frameworks import TRL, Framework\n"
        "class Runs(TRL):\n    name = 'good'\n"
        "class Half(Framework):\n    name = 'half'\n"
        "class Good(TRLConfig):\n    framework, command, runner = 'good', ('stoker', 'run'), Runs\n"
        "class Abstract(TRLConfig):\n    framework, command, runner = 'half', ('stoker', 'run'), Half\n"
        "class Usurper(TRLConfig):\n    framework, command, runner = 'other', ('stoker', 'run'), None\n"
        "class Same(TRLConfig):\n    framework, command, runner = 'torchtune', ('stoker', 'run'), None\n"
    )
    (tmp_path / "stoker_sly.py").write_text(
        "from stoker.backends import TRLConfig, register_backend\n"
        "@register_backend('trl')\nclass Sly(TRLConfig):\n    framework, command = 'trl', ('stoker', 'run')\n"
    )
    info = tmp_path / "stoker_plugins-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker-plugins\nVersion: 1.2\n")
    entries = "".join(f"{name} = {target}\n" for name, target in targets.items())
    (info / "entry_points.txt").write_text(f"[stoker.backends]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_ours_are_registered() -> None:
    assert get_registered_backends() == {"trl": TRLConfig, "torchtune": TorchTuneConfig}
    assert (get_backend("trl"), get_backend("nope")) == (TRLConfig, None)


def test_a_second_registration_names_the_class_that_holds_the_name() -> None:
    with pytest.raises(ValueError, match=r"'trl' is already registered by stoker\.submit\.trl\.TRLConfig"):
        register_backend("trl")(Nothing)
    register_framework(Nothing)
    with pytest.raises(ValueError, match=r"already registered by .*Nothing: register Other under another name"):
        register_framework(type("Other", (Nothing,), {}))
    assert get_backend("nothing") is Nothing


def test_a_programs_own_class_replaces_ours_for_the_same_framework() -> None:
    own = type("Own", (Nothing,), {"framework": "trl"})
    assert register_backend("trl")(own) is own
    assert get_backend("trl") is own
    assert isinstance(get_framework("trl"), TRL)  # a pod, and `stoker validate`, run TRL as before
    with pytest.raises(ValueError, match=r"already registered by .*\.Own: register Next under another name"):
        register_backend("trl")(type("Next", (Nothing,), {"framework": "trl"}))


def test_a_class_that_would_run_another_framework_does_not_replace_ours() -> None:
    for name in ("trl", "torchtune"):
        runner = type("R", (TRL,), {"name": name})
        with pytest.raises(ValueError, match=f"'{name}' is already registered by stoker"):
            register_backend(name)(type("Own", (Nothing,), {"framework": name, "runner": runner}))
    assert get_backend("torchtune") is TorchTuneConfig


def test_what_lacks_a_framework_or_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="must declare a framework and a command"):
        register_framework(type("Empty", (Nothing,), {"command": ()}))
    with pytest.raises(ValueError, match=r"is not a subclass of stoker\.backends\.LLMBackend"):
        register_backend("x")(str)  # type: ignore[type-var]


def test_the_runner_launches_what_a_registered_backend_brings() -> None:
    register_backend("mine")(type("Mine", (Nothing,), {"framework": "mine", "runner": Runs}))
    assert set(known_frameworks()) >= {"trl", "mine"}
    assert isinstance(get_framework("mine"), Runs)
    with pytest.raises(ValueError, match=r"framework 'mine', but Runs of backend 'mine' already runs it: give"):
        register_backend("again")(type("Again", (Nothing,), {"framework": "mine", "runner": type("R2", (Runs,), {})}))
    with pytest.raises(ValueError, match=r"does not define base_model, budget, fingerprint"):
        register_backend("half")(type("Half", (Nothing,), {"runner": type("Half", (Framework,), {"name": "half"})}))


def test_a_runner_that_no_pods_label_would_find_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is named 'mine', but the label of its runtimes is 'nothing': give both"):
        register_backend("mine")(type("Mine", (Nothing,), {"runner": Runs}))
    with pytest.raises(ValueError, match=r"of backend 'mine' is not a subclass of stoker\.plugin\.TrainingFramework"):
        register_backend("mine")(type("Mine", (Nothing,), {"runner": str}))
    assert get_backend("mine") is None


@pytest.mark.usefixtures("plugins")
def test_a_packages_backend_is_found_and_broken_ones_are_told_apart() -> None:
    assert set(get_registered_backends()) == {"trl", "torchtune", "good"}
    assert (get_backend("trl"), get_backend("torchtune")) == (TRLConfig, TorchTuneConfig)
    told = {plugin.name: str(plugin) for plugin in broken_plugins()}
    assert set(told) == {"bad", "gone", "leaving", "trl", "torchtune", "sly"}
    assert told["gone"].startswith("backend gone (stoker_plugins:Gone) of stoker-plugins 1.2: AttributeError")
    assert "SystemExit: no GPU" in told["leaving"]
    assert "does not define" in told["bad"]
    assert "already registered by stoker.submit.trl.TRLConfig" in told["trl"]
    assert "already registered by stoker.submit.torchtune.TorchTuneConfig: register Same" in told["torchtune"]
    assert "'trl' is already registered by stoker.submit.trl.TRLConfig: register Sly" in told["sly"]
    assert set(known_frameworks()) >= {"trl", "good"}


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_is_named_to_who_asks_for_it() -> None:
    with pytest.raises(RunError, match=r"(?s)'gone' is unknown.*could not be loaded: backend gone .* AttributeError"):
        get_framework("gone")


@pytest.mark.usefixtures("plugins")
def test_doctor_lists_backends_and_broken_plugins() -> None:
    output = CliRunner().invoke(main, ["doctor"]).output
    assert "ok    backend good      stoker_plugins.Good, runs sft, dpo" in output
    assert "ok    backend torchtune  stoker.submit.torchtune.TorchTuneConfig, runs full, lora" in output
    assert "warn  backend gone      stoker_plugins:Gone of stoker-plugins 1.2: AttributeError" in output
    assert "fix: repair or uninstall stoker-plugins 1.2" in output
    output = CliRunner().invoke(main, ["doctor"], env={"STOKER_FRAMEWORK": "gone"}).output
    assert "FAIL  backend gone" in output
