"""How containers of a run ended, and what to do about it. Pure."""

from __future__ import annotations

from stoker.contract.exits import ExitCode
from stoker.plan.interfaces import FlagNames
from stoker.runs.run import Ending, Pod

_CODES: dict[int, str] = {
    ExitCode.USAGE: "correct the argument that it names, and submit the run under another name; `stoker validate` "
    "finds it before you submit",
    ExitCode.BAD_DATA: "make the data fit the method, or choose the method that they are for",
    ExitCode.NO_INPUT: "correct the path or name of the model or data; initializers put them to /workspace/model and "
    "/workspace/dataset",
    ExitCode.UNAVAILABLE: "a pod of the run was lost, or the network between its pods does not work; Kubernetes starts "
    "all pods again, up to the runtime's retries.maxRestarts",
    ExitCode.CRASHED: "Kubernetes starts all pods again from the newest checkpoint, up to the runtime's "
    "retries.maxRestarts; `stoker logs {run}` shows the traceback",
    ExitCode.STOPPED: "it was told to stop and has saved a checkpoint; Kubernetes starts it again without counting",
    ExitCode.CONFIG: "correct what it names: no retry can help",
}
# Kubernetes starts no failed run again: what these codes mean then.
_NEXT = "continue it under another name (docs/guides/resume-a-run.md)"
_NO_RESTART = f"it has no restart left: `stoker logs {{run}}` shows why; correct the cause and {_NEXT}"
_FAILED: dict[int, str] = {
    ExitCode.UNAVAILABLE: _NO_RESTART,
    ExitCode.CRASHED: _NO_RESTART,
    ExitCode.STOPPED: f"it was told to stop and has saved a checkpoint: {_NEXT}",
}


def told_of(ending: Ending) -> str:
    """Return how a container ended, in a sentence."""
    message = ending.message.splitlines()[-1] if ending.message else ""
    return f"{ending.container} ended with exit code {ending.told}" + (f": {message}" if message else "")


def advice_on(run: str, pod: Pod, ending: Ending, names: FlagNames, *, failed: bool) -> str:
    """Return what to do about an ending.

    Args:
        run: the run, as a command names it.
        pod: whose container ended.
        ending: how it ended.
        names: how the run's framework spells the settings that the advice names.
        failed: True if the run has failed for good.
    """
    if ending.reason == "OOMKilled":
        return (
            f"raise memory in spec.trainer.resourcesPerNode, or lower {names.of_memory}"
            if pod.trains
            else "raise the memory of this job in the catalogue's values"
        )
    if pod.fetches:
        return f"correct what it names; `stoker logs {run} --role {pod.role}` shows all of it"
    return advice_on_code(run, ending.code, failed=failed)


def advice_on_code(run: str, code: int, *, failed: bool) -> str:
    """Return what to do about an exit code, if that is all that is known.

    Args:
        run: the run, as a command names it.
        code: the exit code.
        failed: True if the run has failed for good.
    """
    known = _CODES | _FAILED if failed else _CODES
    if code in known:
        return known[code].format(run=run)
    if code == 137:
        return "something killed it (SIGKILL): the node's memory, a stop that took too long, or a person"
    if code == 143:
        return "something stopped it (SIGTERM), and the program did not handle it"
    return f"`stoker logs {run}` shows what it said last"
