"""Reads the facts and the `--config` file, and makes the plan from them: planning itself reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.strict_yaml import not_yaml, read_yaml
from stoker.contract.words import write_termination_message
from stoker.fetch.target import recorded_content
from stoker.frameworks import get_framework
from stoker.node.read_inputs import read_model
from stoker.plan.facts import Facts, read_facts
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan
from stoker.rank import checkpoints
from stoker.rank.endings import ending_of
from stoker.rank.same_run import CONTENT


def plan_here(args: Sequence[str], world: Mapping[str, str] | None = None) -> Plan:
    """Read the facts and the `--config` file, and make the plan.

    Args:
        args: the trainer's arguments.
        world: a launcher's options about the world, by torchrun's names.

    Raises:
        RunError: the run is refused.
    """
    return plan_from(read_facts(), args, world)


def plan_pod(args: Sequence[str], world: Mapping[str, str] | None = None) -> Plan:
    """Make the plan of a pod. If the run is refused, the reason becomes the pod's termination message.

    Raises:
        RunError: the run is refused.
    """
    facts = read_facts()
    try:
        return plan_from(facts, args, world)
    except RunError as error:
        write_termination_message(facts.termination_log, f"{error.code.meaning}: {error.message}")
        raise


def plan_from(facts: Facts, args: Sequence[str], world: Mapping[str, str] | None = None) -> Plan:
    """Read the `--config` file, the inputs' folders and what an earlier attempt left, and make the plan.

    Args:
        facts: the facts of the container.
        args: the trainer's arguments.
        world: a launcher's options about the world, by torchrun's names.

    Raises:
        RunError: the run is refused, or what an earlier attempt left cannot be read (69).
    """
    request = read_request(facts, get_framework(facts.get("STOKER_FRAMEWORK")), args, world)
    config = None if request.config_file is None else read_config(Path(request.config_file))
    plan = resolve_plan(request, config)
    # Only the plan says where the model lies, and what the run may go on from.
    model = None if plan.model is None else Path(plan.model)
    if model is not None and model.is_dir():
        plan = resolve_plan(request, config, read_model(model), _former(plan))
    return replace(plan, fixed={**plan.fixed, **_contents(plan)})


def _contents(plan: Plan) -> dict[str, str]:
    """Return what was fetched as each input: it may be replaced, and the path stays."""
    contents: dict[str, list[str]] = {}
    for check in plan.checks:
        is_model = check.what.endswith("model")
        content = recorded_content(Path(check.path), is_model) if check.kind == "exists" else ""
        if content:
            contents.setdefault(f"{CONTENT}{check.what}", []).append(content)
    return {name: ", ".join(dict.fromkeys(found)) for name, found in contents.items()}


def _former(plan: Plan) -> Mapping[str, Any] | None:
    """Return the fixed settings of what a run would go on from; None if it begins.

    Raises:
        RunError: they may be there, but cannot be read, so this node might plan otherwise than the others (69; 78 if
            mode or owner is the cause).
    """
    output = Path(plan.output_dir)
    try:
        if checkpoints.starts_anew(Path(plan.workspace), output, plan.resume, plan.job_id, plan.attempt):
            return None
        return checkpoints.former_settings(output)
    except PermissionError as error:
        ending = ending_of(error, plan.flag_names)
        raise RunError(ending.code, ending.message) from error
    except OSError as error:
        raise RunError(
            ExitCode.UNAVAILABLE,
            f"{error.filename or output} cannot be read ({error.strerror}), and the plan depends on what the run goes "
            "on from: if the next attempt fails as well, check the volume of the workspace",
        ) from error


def read_config(path: Path, named: str | None = None) -> Mapping[str, Any]:
    """Return the content of a `--config` file.

    Args:
        path: its path on this machine.
        named: its path for messages, if that is another one.

    Raises:
        RunError: it cannot be read (66), or is not a mapping of flags to values (64).
    """
    said = named or path
    try:
        documents = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(
            ExitCode.NO_INPUT, f"--config {said} cannot be read ({error.strerror}): mount it, or correct the path"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: text that is not UTF-8, or an impossible date such as 2026-13-45.
        raise RunError(ExitCode.USAGE, f"--config {not_yaml(Path(said), error)}") from error
    content = documents[0] if len(documents) == 1 else None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise RunError(ExitCode.USAGE, f"--config {said} must be a mapping of flags to values, for example seed: 1")
    return content
