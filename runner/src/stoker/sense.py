"""Data and model against the method, before a GPU is touched: in seconds what a trainer says after minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from stoker.contents import damage_of
from stoker.exits import PRECEDENCE, ExitCode, RunError
from stoker.files import is_there
from stoker.frameworks import get_framework
from stoker.inputs import Data, Model, read_data, read_model
from stoker.plan import Plan

# Of a model's folder: what every trainer reads first, and its weights.
_MODEL_FILES = ("*config.json", "*.safetensors", "*.bin", "*.pt", "*.pth")


def check(plan: Plan) -> None:
    """Look at the run's local inputs, and at the packages it needs.

    Raises:
        RunError: the inputs cannot be trained on (65), or not so, or a package is missing (78); lists every problem.
    """
    problems = [*problems_of(plan, lambda path: path), *_missing_packages(plan)]
    if problems:
        code = min((code for code, _ in problems), key=PRECEDENCE.index)
        raise RunError(code, "\n".join(text for _, text in problems))


def _missing_packages(plan: Plan) -> Iterable[tuple[ExitCode, str]]:
    settings = {setting.name: setting for setting in plan.settings}
    for package, needing in get_framework(plan.framework).needed_packages(settings).items():
        if find_spec(package) is None:
            text = (
                f"{needing} needs the Python package {package}, which this image has not: leave it out, or use an image"
            )
            yield ExitCode.CONFIG, f"{text} that has it (spec.trainer.image)"


def problems_of(plan: Plan, locate: Callable[[str], str | None]) -> Iterable[tuple[ExitCode, str]]:
    """Return why the run could not train on its data with its model, each with its exit code.

    Args:
        plan: the run.
        locate: returns where a path of the pods lies here; None for one that does not.
    """
    settings = {setting.name: setting for setting in plan.settings}

    def folder(flag: str) -> Path | None:
        setting = settings.get(flag)
        named = None if setting is None or not str(setting.value).startswith("/") else locate(str(setting.value))
        return Path(named) if named is not None and is_there(Path(named)) else None

    def told(flag: str) -> str | None:
        return str(settings[flag].value) if flag in settings else None

    data: Data | None = None
    model: Model | None = None
    framework = get_framework(plan.framework)
    dataset, model_folder = folder("dataset_name"), folder("model_name_or_path")
    # A mixture of data sets stands in the place of the one.
    if dataset is not None and not framework.has_mixture(plan.fingerprint):
        data = read_data(dataset, told("dataset_config"), told("dataset_train_split") or "train")
    if model_folder is not None and model_folder.is_dir():
        model = read_model(model_folder)
    yield from _damaged(plan, locate)
    yield from framework.data_problems(plan.method, settings, data, model)


def _damaged(plan: Plan, locate: Callable[[str], str | None]) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem for each file of a model that ends too early, or is a pointer to what was never fetched."""
    for found in plan.checks:
        local = locate(found.path) if found.kind == "exists" and found.what.endswith("model") else None
        if local is None:
            continue
        for path in sorted(path for pattern in _MODEL_FILES for path in Path(local).glob(pattern)):
            if damage := damage_of(path):
                text = f"{path.name} of the {found.what} {found.path} is damaged: {damage}. Fetch or copy it again"
                yield found.code, text
