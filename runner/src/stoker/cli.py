"""The command line: each command calls the module that does its work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click

from stoker import __version__
from stoker.exits import PRECEDENCE, ExitCode, RunError

P = ParamSpec("P")


class _Commands(click.Group):
    """The commands; what click itself refuses ends with our exit code for wrong arguments."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the group's own options."""
        with _usage_code():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse and run a command."""
        with _usage_code():
            return super().invoke(ctx)


@contextmanager
def _usage_code() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(ExitCode.USAGE) from error


# Whether it can be read is for who reads it, who has a code of ours for it.
_PATH = click.Path(path_type=Path, readable=False)
_PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_EXIT_CODES = "\n".join(f"  {int(code):>2}  {code.meaning}" for code in ExitCode)


def _reported(command: Callable[P, int | None]) -> Callable[P, NoReturn]:
    """Turn a command's return value, RunError or OSError into the process's exit code and one message."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
        try:
            sys.exit(command(*args, **kwargs) or 0)
        except RunError as error:
            for line in error.message.splitlines():
                click.echo(f"stoker: {line}", err=True)
            sys.exit(error.code)
        except BrokenPipeError:  # `| head`, which click ends quietly
            raise
        except OSError as error:
            where = error.filename or "what this command writes to"
            click.echo(
                f"stoker: {where} cannot be used ({error.strerror}): it must be there, have room, and be for UID "
                f"{os.geteuid()}, GID {os.getegid()}",
                err=True,
            )
            sys.exit(ExitCode.NO_INPUT if isinstance(error, FileNotFoundError) else ExitCode.CONFIG)
        except KeyboardInterrupt:
            click.echo("stoker: interrupted", err=True)
            sys.exit(ExitCode.STOPPED)

    return wrapper


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"\b\nExit codes:\n{_EXIT_CODES}",
)
@click.version_option(__version__, prog_name="stoker")
def main() -> None:
    """Plan, launch and guard a fine-tuning run inside a Kubeflow TrainJob."""


@main.command(
    "run",
    context_settings=_PASS_THROUGH,
    epilog="\b\nExamples:\n"
    "  stoker run --learning_rate 2e-4 --use_peft     # in a TrainJob's pod, which names method, model and data\n"
    "  stoker run trl.scripts.sft --config /workspace/sft.yaml\n"
    "  STOKER_ARG_MAX_STEPS=100 stoker run",
)
@click.argument("trainer_args", nargs=-1, type=click.UNPROCESSED)
@_reported
def run_command(trainer_args: tuple[str, ...]) -> int:
    """Train on this node, as a TrainJob's pods do.

    TRAINER_ARGS are the trainer's own flags, its module perhaps first; defaults come from STOKER_ARG_<FLAG> in the
    environment. See `stoker plan` for what would run.
    """
    from stoker import launch

    return launch.start(trainer_args)


@main.command(
    "plan",
    context_settings=_PASS_THROUGH,
    epilog="\b\nExamples:\n"
    "  stoker plan trl.scripts.sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara\n"
    "  stoker plan --output json --use_peft     # in a TrainJob's pod, which names method, model and data",
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
@click.argument("trainer_args", nargs=-1, type=click.UNPROCESSED)
@_reported
def plan_command(output: str, trainer_args: tuple[str, ...]) -> None:
    """Print what `stoker run` would do, with the origin of every value. Options of this command come first."""
    from stoker import describe, start

    plan = start.resolve(trainer_args)
    click.echo(json.dumps(plan.to_json(), indent=2) if output == "json" else describe.plan(plan))


@main.command(
    "validate",
    epilog="\b\nExamples:\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml\n"
    "  stoker validate trainjob.yaml     # the runtime is read from your cluster, with kubectl\n"
    "  helm template charts/training-runtimes --set skipApiCheck=true > runtimes.yaml &&\n"
    "    stoker validate trainjob.yaml --runtime runtimes.yaml\n"
    "  cat trainjob.yaml runtime.yaml | stoker validate -\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml --volume initializer=./workspace",
)
@click.argument("trainjob", type=_PATH)
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=_PATH,
    help="File with rendered (Cluster)TrainingRuntimes, one or many.",
)
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder with what a pod volume will hold.")
@_reported
def validate_command(trainjob: Path, runtimes: tuple[Path, ...], volumes: tuple[str, ...]) -> int:
    """Say what would become of TRAINJOB, before it is submitted: nothing is started, no cluster is changed.

    Every TrainJob of the file (`-` is standard input) is judged as the cluster would judge it, and planned as each of
    its pods would plan it. The exit code is the one its pods would end with. Devices are taken from the resources
    asked for; what lies in a volume is looked at only where --volume says what it holds.
    """
    from stoker import validate

    verdicts = validate.validate(trainjob, runtimes, volumes)
    for verdict in verdicts:
        click.echo(str(verdict), err=bool(verdict.problems))
    return min((verdict.code for verdict in verdicts), key=PRECEDENCE.index)


@main.command(
    "trainjob",
    epilog="\b\nExamples:\n"
    "  stoker trainjob sft --name capybara --model hf://Qwen/Qwen3-0.6B --dataset hf://trl-lib/Capybara \\\n"
    "    --nodes 2 --lora --set learning_rate=2e-4 | kubectl apply -f -\n"
    "  stoker trainjob dpo --name prefs --model /workspace/sft --dataset hf://trl-lib/ultrafeedback_binarized\n"
    "  stoker trainjob run.py:config --name capybara --dataset hf://trl-lib/Capybara    # config = TRLConfig(…)",
)
@click.argument("subject", metavar="METHOD|FILE.py:NAME")
@click.option("--name", required=True, help="Name of the TrainJob.")
@click.option("--runtime", help="Name of the runtime; by default the one that fits any run, e.g. trl-distributed.")
@click.option("--namespace", help="Namespace of the TrainJob; by default kubectl's.")
@click.option("--model", help="Model: an address to fetch it from (hf://…), or a folder or Hub id for the trainer.")
@click.option("--dataset", help="Data: an address to fetch it from (hf://…), or a folder or Hub id for the trainer.")
@click.option("--secret", default="", help="Secret with what the initializers need, such as ACCESS_TOKEN.")
@click.option("--nodes", type=int, help="Number of pods.")
@click.option("--resources", multiple=True, metavar="NAME=AMOUNT", help="Resource of each pod, e.g. gpu=1.")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="Flag of the trainer.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the trainer container.")
@click.option("--lora", "adapter", flag_value="lora", help="Train an adapter, on every linear layer unless set.")
@click.option("--qlora", "adapter", flag_value="qlora", help="The same, on a base model in 4 bits.")
@_reported
def trainjob_command(subject: str, adapter: str | None, **words: Any) -> None:
    """Print a TrainJob for `kubectl apply`, its flags checked.

    METHOD is one of TRL's, e.g. sft. FILE.py:NAME is a config in a Python file, which is run to get it.
    """
    from stoker.backends import submission

    click.echo(submission.render(submission.Wanted(subject, adapter=adapter or "", **words)), nl=False)


@main.command("doctor", epilog="\b\nExamples:\n  stoker doctor\n  stoker doctor --image   # in an image build")
@click.option("--image", is_flag=True, help="Check what is installed, not where this container runs.")
@_reported
def doctor_command(image: bool) -> int:
    """Print what this container sees, a line each; exit with 78 if a run could not work."""
    from stoker import doctor

    return doctor.run(image_only=image)


@main.command(
    "flags",
    epilog="\b\nExamples:\n  stoker flags sft\n  stoker flags sft lora",
)
@click.argument("method")
@click.argument("containing", default="")
@_reported
def flags_command(method: str, containing: str) -> None:
    """List the trainer flags of METHOD (of those CONTAINING a text), with type, default and help."""
    from stoker import describe

    click.echo(describe.flags(method, containing))


@main.group("recipe", epilog="\b\nExamples:\n  stoker recipe list\n  stoker recipe show --tuning lora")
def recipe_group() -> None:
    """The trainer defaults that Stoker sets where the trainer's own surprise, each with its reason."""


@recipe_group.command("list", epilog="\b\nExamples:\n  stoker recipe list")
@_reported
def recipe_list_command() -> None:
    """List every default of Stoker's, the runs it is for, and why."""
    from stoker import describe

    click.echo(describe.recipe_list())


@recipe_group.command(
    "show",
    epilog="\b\nExamples:\n  stoker recipe show --tuning qlora\n  stoker recipe show --accelerator cpu --method reward",
)
@click.option("--accelerator", default="nvidia", show_default=True, help="nvidia, amd, intel, tpu or cpu.")
@click.option("--tuning", default="full", show_default=True, help="full, lora or qlora.")
@click.option("--method", default="sft", show_default=True, help="Training method.")
@_reported
def recipe_show_command(accelerator: str, tuning: str, method: str) -> None:
    """Show the defaults of one kind of run, and why."""
    from stoker import describe

    click.echo(describe.recipe(accelerator, tuning, method))


@main.command(
    "local",
    epilog="\b\nExamples:\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out --volume inputs=./inputs\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out --python torchtune=venv/bin/python",
)
@click.argument("trainjob", type=_PATH)
@click.option(
    "--runtime",
    type=_PATH,
    help="Rendered runtimes; one that is not in there is read from your cluster, with kubectl.",
)
@click.option("--workspace", required=True, type=_PATH, help="Folder in the place of the /workspace volume.")
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder in the place of a pod volume.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="FRAMEWORK=PATH",
    help="Python that has a framework, `fetch` for the initializers; this one by default.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME=FILE", help="File of KEY=VALUE lines in the place of a secret."
)
@_reported
def local_command(
    trainjob: Path,
    runtime: Path | None,
    workspace: Path,
    volumes: tuple[str, ...],
    pythons: tuple[str, ...],
    secrets: tuple[str, ...],
) -> int:
    """Run TRAINJOB as local processes, one group per node, with the environment Trainer would give them.

    The runtime's initializers come first. Restarts follow the runtime's rules; the exit code is the job's.
    """
    from stoker import local

    return local.run(trainjob, runtime, workspace, volumes, pythons, secrets)


@main.group(
    "adapters",
    cls=_Commands,
    epilog="\b\nExamples:\n  stoker adapters publish /workspace/output /adapters support\n"
    "  stoker adapters check /workspace/output --model /models/qwen",
)
def adapters_group() -> None:
    """Publish, check and serve LoRA adapters with vLLM."""


@adapters_group.command(
    "check",
    epilog="\b\nExamples:\n  stoker adapters check /workspace/output --model /models/qwen --max-rank 16",
)
@click.argument("folder", type=_PATH)
@click.option("--model", required=True, type=_PATH, help="Folder of the server's base model.")
@click.option("--source", default="", help="Where that model came from, such as Qwen/Qwen3-0.6B.")
@click.option("--max-rank", default=512, show_default=True, help="Largest rank the server has room for.")
@click.option("--foreign", is_flag=True, help="Accept an adapter without the manifest of a run.")
@_reported
def adapters_check_command(folder: Path, model: Path, source: str, max_rank: int, foreign: bool) -> None:
    """Say whether a server with a base model can serve the adapter in FOLDER; end with 78 if it cannot."""
    from stoker.adapters import prepare

    click.echo(prepare.verdict(folder, model, source, max_rank, require_manifest=not foreign))


@adapters_group.command(
    "prepare",
    epilog="\b\nExamples:\n  stoker adapters prepare --settings /settings/adapters.yaml --output /config\n"
    "  vllm serve /models/qwen --config /config/vllm.yaml",
)
@click.option("--settings", required=True, type=_PATH, help="What the adapters are (YAML).")
@click.option("--output", required=True, type=_PATH, help="Folder to write vllm.yaml into.")
@_reported
def adapters_prepare_command(settings: Path, output: Path) -> None:
    """Check the adapters a server starts with and write vLLM's configuration; end with 78 if one cannot be served."""
    from stoker.adapters import prepare
    from stoker.adapters.settings import load

    prepare.prepare(load(settings), output)


@adapters_group.command(
    "watch",
    epilog="\b\nExamples:\n  stoker adapters watch --settings /settings/adapters.yaml --server http://127.0.0.1:8000",
)
@click.option("--settings", required=True, type=_PATH, help="What the adapters are (YAML).")
@click.option("--server", default="http://127.0.0.1:8000", show_default=True, help="This replica's vLLM.")
@click.option("--host", default="", help="Address of /readyz, /adapters and /metrics (default: all).")
@click.option("--port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Their port.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@_reported
def adapters_watch_command(settings: Path, server: str, host: str, port: int, interval: float) -> int:
    """Keep this replica's adapters as they are published, and say which it has."""
    from stoker.adapters import watch
    from stoker.adapters.settings import load

    return watch.run(load(settings), server, (host, port), interval)


@adapters_group.command(
    "publish",
    epilog="\b\nExamples:\n  stoker adapters publish /workspace/output /adapters support\n"
    "  stoker adapters publish /workspace/output /adapters policy --version 120",
)
@click.argument("output", type=_PATH)
@click.argument("folder", type=_PATH)
@click.argument("name")
@click.option("--version", type=int, help="The version's number; the next one by default.")
@_reported
def adapters_publish_command(output: Path, folder: Path, name: str, version: int | None) -> None:
    """Publish the adapter of a finished run (OUTPUT) in FOLDER as a new version of NAME, and print what to call it."""
    from stoker.adapters import versions

    click.echo(versions.publish(output, folder, name, version).name)


@adapters_group.command("retract", epilog="\b\nExamples:\n  stoker adapters retract /adapters support 3")
@click.argument("folder", type=_PATH)
@click.argument("name")
@click.argument("version", type=int)
@_reported
def adapters_retract_command(folder: Path, name: str, version: int) -> None:
    """Take VERSION of NAME out of FOLDER: servers unload it."""
    from stoker.adapters import versions

    versions.retract(folder, name, version)


@main.command(
    "fetch",
    epilog="\b\nExamples:\n"
    "  STORAGE_URI=hf://Qwen/Qwen3-0.6B STOKER_WORKSPACE=./out stoker fetch model\n"
    "  STORAGE_URI=hf://trl-lib/Capybara@main/data stoker fetch dataset --dry-run\n"
    "  STORAGE_URI=s3://bucket/prefix ENDPOINT=https://s3.example.com stoker fetch dataset",
)
@click.option("--dry-run", is_flag=True, help="Print what would be fetched and what is left out, and why.")
@click.argument("kind", type=click.Choice(["model", "dataset"]), required=False)
@_reported
def fetch_command(kind: str | None, dry_run: bool) -> None:
    """Put the model or data set of STORAGE_URI into the workspace, as a TrainJob's initializers do.

    Without `model` or `dataset` the pod's host name says which. Nothing is done where STORAGE_URI is empty; what is
    there already is not fetched again.
    """
    from stoker.fetch import command

    command.run(kind, dry_run)
