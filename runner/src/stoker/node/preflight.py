"""Checks that need files, packages or the network: they run once on this node, before any trainer process."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.files import LOST_AND_FOUND, exists
from stoker.contract.packages import not_installed
from stoker.contract.weights import damage_of, missing_weights
from stoker.contract.words import say
from stoker.frameworks import get_framework
from stoker.node.read_inputs import lacks_split, read_data, read_model
from stoker.plan.plan import Check, Plan
from stoker.rank.checkpoints import can_resume, nothing_to_resume

# Files of a model that every trainer reads first, and its weights.
_MODEL_FILES = ("*config.json", "*.safetensors", "*.bin", "*.pt", "*.pth")
_SECONDS_BETWEEN_LOOKUPS = 1.0
_SECONDS_BETWEEN_MESSAGES = 15.0


def check_start(plan: Plan) -> None:
    """Check what the trainer will read and write, and the packages that the run's settings need.

    Raises:
        RunError: a folder cannot be written to (78), a model or data set is missing (66) or does not fit (65), a
            setting does not fit or a package is missing (78); lists every problem.
    """
    wrong = dict(_path_problems(plan))
    problems = [
        *wrong.values(),
        *input_problems(plan, lambda path: None if path in wrong else path),
        *_incomplete(check for check in plan.checks if check.path not in wrong),
        *package_problems(plan, _is_installed),
        *account_problems(plan, os.environ, _is_installed),
        *checkpoint_problems(plan, Path(plan.output_dir)),
    ]
    if problems:
        code = min((code for code, _ in problems), key=PRECEDENCE.index)
        raise RunError(code, "\n".join(dict.fromkeys(text for _, text in problems)))


def _path_problems(plan: Plan) -> Iterator[tuple[str, tuple[ExitCode, str]]]:
    """Yield the path of each check of files and folders that fails, with its problem."""
    for check in plan.checks:
        problem = _unwritable(check) if check.kind == "writable" else _missing(check) or _unreadable(check)
        if problem is not None:
            yield check.path, (check.code, problem)


def _missing(check: Check) -> str | None:
    try:
        Path(check.path).stat()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        found = "does not exist" if absent else f"cannot be reached ({error.strerror})"
        return f"the {check.what} {check.path} {found}: {check.fix}"
    return None


def _unreadable(check: Check) -> str | None:
    # Common, because some libraries write private weights, and others report an unreadable file as missing.
    path = Path(check.path)
    try:
        found = [path, *sorted(e for e in path.iterdir() if e.name != LOST_AND_FOUND)] if path.is_dir() else [path]
    except OSError:
        found = [path]
    for entry in found:
        if not os.access(entry, os.R_OK | os.X_OK if entry.is_dir() else os.R_OK):
            return (
                f"the {check.what} {entry} cannot be read by UID {os.geteuid()}, GID {os.getegid()}: "
                "make it readable for group 0 (chmod -R g+rX)"
            )
    return None


def _unwritable(check: Check) -> str | None:
    folder = Path(check.path)
    probe = folder / f".stoker-probe-{os.uname().nodename}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink(missing_ok=True)  # pods with the host's network may share its name
    except OSError as error:
        return f"the {check.what} {check.path} cannot be written to ({error.strerror}): {check.fix}"
    return None


def check_packages(plan: Plan) -> None:
    """Check that this Python has the framework's packages, without importing them.

    Raises:
        RunError: packages are missing (78); a retry in the same image would not help.
    """
    for code, text in framework_problems(plan, _is_installed, sys.executable):
        raise RunError(code, text)


def framework_problems(plan: Plan, is_installed: Callable[[str], bool], where: str) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem if packages of the framework are missing.

    Args:
        plan: the run.
        is_installed: returns whether a package is there.
        where: what messages call the place: a Python or an image.
    """
    missing = [name for name in plan.packages if not is_installed(name)]
    if missing:
        text = f"{where} lacks {', '.join(missing)}, which {plan.framework} needs: use an image that has them, or"
        text += f" without images a Python that does (`stoker local … --python {plan.framework}=PATH`);"
        yield ExitCode.CONFIG, f"{text} `stoker doctor` says what to install"


def package_problems(plan: Plan, is_installed: Callable[[str], bool]) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem for each package that a setting needs and that is missing.

    Args:
        plan: the run.
        is_installed: returns whether a package is there.
    """
    for packages, needing in plan.packages_needed.items():
        if not any(is_installed(name) for name in packages.split(" or ")):
            fix = "drop the setting, or use an image that has the package (spec.trainer.image)"
            yield ExitCode.CONFIG, not_installed(needing, fix, packages)


def account_problems(
    plan: Plan, variables: Mapping[str, str | None], is_installed: Callable[[str], bool]
) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem for each setting that needs an account, if no variable names one.

    Args:
        plan: the run.
        variables: the environment; None for a value that only the pod knows.
        is_installed: returns whether a package is there.
    """
    for account in plan.accounts_needed:
        first, *others = account.variables
        if account.only_with and not is_installed(account.only_with):
            continue
        if not any(_is_told(one, variables) for one in account.variables):
            text = f"{account.setting} needs an account: set {first} in spec.trainer.env or the runtime, from a Secret,"
            yield ExitCode.CONFIG, f"{text} or one of {', '.join(others)}"


def _is_told(one: str, variables: Mapping[str, str | None]) -> bool:
    """Return whether an environment has one of an account's variables; empty counts as unset."""
    name, exact, text = one.partition("=")
    value = variables.get(name, "")
    return value is None or (value == text if exact else bool(value))


def checkpoint_problems(plan: Plan, output: Path) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem if the run must resume and there is nothing to resume.

    Args:
        plan: the run.
        output: its output folder, where this process sees it.

    Raises:
        OSError: the folder cannot be read.
    """
    if plan.resume == "require" and not can_resume(output):
        error = nothing_to_resume(plan.output_dir)
        yield error.code, error.message


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def input_problems(plan: Plan, locate: Callable[[str], str | None]) -> Iterator[tuple[ExitCode, str]]:
    """Yield why the run cannot train this model on this data, each problem with its exit code.

    Args:
        plan: the run.
        locate: returns the local path of a path in the pods; None if there is none.
    """

    def local(path: str | None) -> Path | None:
        found = None if path is None else locate(path)
        return Path(found) if found is not None and exists(Path(found)) else None

    dataset, model = local(plan.dataset.path if plan.dataset else None), local(plan.model)
    columns = None
    if plan.dataset is not None and dataset is not None:
        columns = read_data(dataset, plan.dataset.config, plan.dataset.split, plan.flag_names.split)
        evaluated = plan.dataset.evaluated
        if evaluated is not None and lacks_split(dataset, plan.dataset.config, evaluated):
            where, setting = plan.flag_names.evaluated_split, plan.flag_names.evaluation
            advice = f"name an existing split{f' in {where}' if where else ''}, or "
            advice += f"leave out {setting}" if setting else "do not evaluate"
            yield ExitCode.BAD_DATA, f"the data set {dataset} has no split {evaluated} to evaluate on: {advice}"
    folder = read_model(model) if model is not None and model.is_dir() else None
    yield from _damaged(plan, locate)
    settings = {setting.name: setting for setting in plan.settings}
    yield from get_framework(plan.framework).check_inputs(plan.method, settings, columns, folder)


def _incomplete(checks: Iterable[Check]) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem for each model that lacks weights; what `stoker validate` is given may be a configuration."""
    for check in checks:
        if _is_of_model(check) and (lacks := missing_weights(Path(check.path))):
            yield check.code, f"the {check.what} {check.path} is incomplete: {lacks}. Fetch or copy it again"


def _is_of_model(check: Check) -> bool:
    return check.kind == "exists" and check.what.endswith("model")


def _damaged(plan: Plan, locate: Callable[[str], str | None]) -> Iterator[tuple[ExitCode, str]]:
    """Yield a problem for each model file that is incomplete, or is a pointer to a file that was never fetched."""
    for found in plan.checks:
        local = locate(found.path) if _is_of_model(found) else None
        if local is None:
            continue
        for path in sorted(path for pattern in _MODEL_FILES for path in Path(local).glob(pattern)):
            if damage := damage_of(path):
                text = f"{path.name} of the {found.what} {found.path} is damaged: {damage}. Fetch or copy it again"
                yield found.code, text


def wait_for_peers(plan: Plan, give_up: Callable[[], None]) -> None:
    """Wait until every node of the run has a name in DNS: a node may still be scaling up.

    Args:
        plan: the run.
        give_up: called between look-ups; raises to end the wait (a stop request, a failed peer).

    Raises:
        RunError: the deadline passed; lists the missing nodes (69).
    """
    missing = dict(enumerate(plan.world.peers()))
    deadline = time.monotonic() + plan.rendezvous_seconds
    next_message = time.monotonic() + _SECONDS_BETWEEN_MESSAGES
    while True:
        missing = {rank: name for rank, name in missing.items() if not _resolves(name)}
        if not missing:
            return
        listed = ", ".join(f"{rank} ({name})" for rank, name in missing.items())
        now = time.monotonic()
        if now > deadline:
            raise RunError(
                ExitCode.UNAVAILABLE,
                f"after {plan.rendezvous_seconds} s, these nodes of {plan.world.nnodes} are missing: {listed}. "
                "See why their pods do not start (`kubectl describe pod`): no free node, a quota, or an image that "
                "cannot be pulled",
            )
        if now > next_message:
            say(f"waiting for node {listed}, {round(deadline - now)} s left")
            next_message = now + _SECONDS_BETWEEN_MESSAGES
        give_up()
        time.sleep(_SECONDS_BETWEEN_LOOKUPS)


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
