"""The plan of a run: frozen, printed for users, carried out on each node, and read by each training process."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.contract.files import read_json, write_json
from stoker.contract.samplers import SamplerRequest
from stoker.contract.secrets import HIDDEN, hidden, hide, is_secret
from stoker.plan.arguments import Setting
from stoker.plan.estimate import Memory
from stoker.plan.interfaces import Account, Dataset, FlagNames
from stoker.plan.world import World

# Addresses of proxies and databases that contain a user and a password.
_SECRET_IN_ADDRESS = re.compile(r"://[^/\s]*:[^/\s]*@")
# Fields for the training processes, which `stoker plan --output json` leaves out.
_INTERNAL = (
    "ways",
    "device_bytes",
    "trainer_argv",
    "training",
    "packages",
    "packages_needed",
    "accounts_needed",
    "secrets",
    "flag_names",
    "dataset",
    "model",
    "unseen",
    "fixed",
    "free",
    "per_node",
    "samplers",
    "idle_seconds",
    "metrics_port",
)


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold before the trainer starts.

    Attributes:
        kind: `writable` or `exists`.
        path: the file or folder to check.
        what: what messages call that path, for example `model`.
        code: the exit code if the check fails.
        fix: what to do if the check fails.
    """

    kind: str
    path: str
    what: str
    code: ExitCode
    fix: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run.

    Attributes:
        framework: the framework's name.
        method: the training method.
        module: the trainer's Python module.
        world: the number of processes and where they meet.
        settings: the trainer's flags, each with its origin.
        config: what `--config` names, passed to the trainer unchanged; None without one.
        workspace: folder shared by all pods.
        output_dir: folder of checkpoints, the model and the manifest.
        resume: `auto`, `never` or `require`.
        job_id: id of the job over all its attempts; empty if unset.
        run_id: id of this attempt, the same on all nodes.
        attempt: restarts before this attempt.
        image_version: tag of the image.
        accelerator: accelerator profile of the runtime.
        fingerprint: what a checkpoint must have in common with the run to be resumed.
        base_model: the model to train and its revision; None for each that is not named.
        budget: how much to train, by unit (`steps` or `epochs`).
        checks: what must hold before the start.
        env: variables added for the trainer's processes.
        grace_seconds: time between SIGTERM and SIGKILL.
        rendezvous_seconds: how long to wait for the other nodes.
        hang_seconds: how long a step may take before the run counts as hung; 0 for no limit.
        termination_log: file for the one-line reason of the ending.
        notices: what a user should know.
        config_env: the names in `env` that the `--config` file sets.
        trainer_argv: the trainer's command line, without its module and without the settings of the `--config` file.
        training: the module that runs the trainer inside each process.
        packages: the framework's distributions.
        packages_needed: package that an image may lack, or several joined by ` or ` → the setting that needs one.
        accounts_needed: the accounts that settings need.
        secrets: flags whose values must not appear in a log.
        flag_names: how the framework spells the settings that advice names.
        dataset: the data set to inspect before the start; None without one.
        model: the model folder to inspect before the start; None without one.
        unseen: the models and data sets that are not in a volume, as messages call them.
        ways: what the model needs on each device, and in other ways to train it, each with what to write for it; empty
            if unknown.
        device_bytes: memory of a device; None if unknown.
        fixed: every setting that must stay as it is on resume, set or not, by name.
        free: names, or patterns of names, of settings that may change on resume without a notice.
        per_node: settings that the recipe may choose on each node by its own devices.
        samplers: what the samplers of the same TrainJob serve; None if the run has none.
        idle_seconds: how long the samplers may be without a request before the run ends; 0 for no limit.
        metrics_port: port at which this node shows its metrics; 0 for none.
    """

    framework: str
    method: str
    module: str
    world: World
    settings: tuple[Setting, ...]
    config: str | None
    workspace: str
    output_dir: str
    resume: str
    job_id: str
    run_id: str
    attempt: int
    image_version: str
    accelerator: str
    fingerprint: Mapping[str, Any]
    base_model: tuple[str | None, str | None]
    budget: Mapping[str, float]
    checks: tuple[Check, ...]
    env: Mapping[str, str]
    grace_seconds: int
    rendezvous_seconds: int
    hang_seconds: int
    termination_log: str
    notices: tuple[str, ...]
    config_env: tuple[str, ...]
    trainer_argv: tuple[str, ...]
    training: str
    packages: tuple[str, ...]
    packages_needed: Mapping[str, str] = field(default_factory=dict)
    accounts_needed: tuple[Account, ...] = ()
    secrets: tuple[str, ...] = ()
    flag_names: FlagNames = field(default_factory=FlagNames)
    dataset: Dataset | None = None
    model: str | None = None
    unseen: tuple[str, ...] = ()
    ways: tuple[tuple[str, Memory], ...] = ()
    device_bytes: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    samplers: SamplerRequest | None = None
    idle_seconds: int = 0
    metrics_port: int = 0

    @property
    def memory(self) -> Memory | None:
        """What the model needs on each device; None if unknown."""
        return self.ways[0][1] if self.ways else None

    @property
    def shown_env(self) -> dict[str, str]:
        """`env` for output: values are hidden if the name is that of a secret, or if they contain a password."""
        return {
            name: HIDDEN if is_secret(name) or _SECRET_IN_ADDRESS.search(value) else value
            for name, value in self.env.items()
        }

    @property
    def shown_settings(self) -> tuple[Setting, ...]:
        """The settings for output, without the values of secret flags, and without secrets in others."""
        return tuple(replace(s, value=HIDDEN if s.name in self.secrets else _shown(s.value)) for s in self.settings)

    @property
    def shown_argv(self) -> list[str]:
        """The trainer's command line for output, without the values of secret flags."""
        values: set[str] = set()
        for words in (s.value for s in self.settings if s.name in self.secrets):
            values |= {*words, " ".join(words)} if isinstance(words, tuple) else {words}
        return [hide(_without(word, sorted(values - {""}, key=len, reverse=True))) for word in self.trainer_argv]

    @property
    def recorded_settings(self) -> dict[str, str | list[str]]:
        """The settings by name, as the manifest keeps them."""
        return {s.name: list(s.value) if isinstance(s.value, tuple) else s.value for s in self.shown_settings}

    @property
    def record(self) -> dict[str, Mapping[str, Any]]:
        """What seals and the manifest say of the run, to be compared on resume."""
        fingerprint, fixed = hidden(self.fingerprint), hidden(self.fixed)
        return {"fingerprint": fingerprint, "fixed": fixed, "settings": self.recorded_settings}

    @property
    def sources(self) -> dict[str, str]:
        """The layer that set each setting, by the setting's name."""
        return {setting.name: setting.source for setting in self.settings}

    @property
    def torchrun_argv(self) -> list[str]:
        """The arguments of torchrun on this node, up to the module each process runs."""
        world = self.world
        return [
            f"--nnodes={world.nnodes}",
            f"--nproc-per-node={world.nproc_per_node}",
            f"--node-rank={world.node_rank}",
            f"--master-addr={world.master_addr}",
            f"--master-port={world.master_port}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={self.rendezvous_seconds}",
            "--max-restarts=0",
            "--module",
            "stoker.rank.worker",
        ]

    @property
    def hash(self) -> str:
        """A digest of everything that the nodes of a run must agree on."""
        agreed = {
            "framework": self.framework,
            "method": self.method,
            "nnodes": self.world.nnodes,
            "nproc_per_node": self.world.nproc_per_node,
            "settings": [
                (setting.name, setting.value)
                for setting in self.settings
                if setting.source != "recipe" or setting.name not in self.per_node
            ],
            "fingerprint": self.fingerprint,
            "resume": self.resume,
            "run_id": self.run_id,
        }
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data without secrets (`stoker plan --output json`)."""
        data = {name: value for name, value in asdict(self).items() if name not in _INTERNAL}
        data |= {} if self.memory is None else {"memory": {**asdict(self.memory), "device": self.device_bytes}}
        data |= {} if self.samplers is None else {"samplers": asdict(self.samplers)}
        data |= {"idle_seconds": self.idle_seconds} if self.idle_seconds else {}
        data |= {"metrics_port": self.metrics_port} if self.metrics_port else {}
        data["world"] = {
            "size": self.world.size,
            **{name: data["world"][name] for name in ("nnodes", "nproc_per_node", "node_rank")},
            **{name: data["world"][name] for name in ("master_addr", "master_port", "settings")},
        }
        return {
            "hash": self.hash,
            **data,
            "fingerprint": hidden(self.fingerprint),
            "settings": [asdict(setting) for setting in self.shown_settings],
            "env": self.shown_env,
            "trainer_argv": self.shown_argv,
            "torchrun_argv": self.torchrun_argv,
        }

    def write(self, path: Path) -> None:
        """Write the whole plan to a file for the training processes.

        Raises:
            OSError: the folder cannot be written to.
        """
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Plan | None:
        """Return the plan in a file; None if the file holds none."""
        data: dict[str, Any] | None = read_json(path)
        if data is None:
            return None
        world: dict[str, Any] = _tuples({**data["world"], "settings": _settings(data["world"]["settings"])})
        nested: dict[str, Any] = {
            "world": World(**world),
            "settings": _settings(data["settings"]),
            "checks": tuple(Check(**{**check, "code": ExitCode(check["code"])}) for check in data["checks"]),
            "accounts_needed": tuple(Account(**_tuples(account)) for account in data["accounts_needed"]),
            "flag_names": FlagNames(**data["flag_names"]),
            "dataset": Dataset(**data["dataset"]) if data["dataset"] else None,
            "samplers": SamplerRequest(**data["samplers"]) if data["samplers"] else None,
            "ways": tuple((write, Memory(**memory)) for write, memory in data["ways"]),
        }
        return cls(**{**_tuples(data), **nested})


def _shown(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return tuple(hide(word) for word in value) if isinstance(value, tuple) else hide(value)


def _without(word: str, values: Sequence[str]) -> str:
    """Return a word of a command line with the first of these values hidden, whether alone or after `flag=`."""
    found = next((value for value in values if word == value or word.endswith(f"={value}")), None)
    return word if found is None else word.removesuffix(found) + HIDDEN


def _settings(entries: list[dict[str, Any]]) -> tuple[Setting, ...]:
    return tuple(Setting(**_tuples(entry)) for entry in entries)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no tuples, so every list in the file was one.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
