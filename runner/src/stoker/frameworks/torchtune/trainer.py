"""Runs TorchTune's recipes with Stoker's guard, stop, sealed checkpoints, progress and published result.

A recipe is a script with one class whose training loop has no hooks. This module loads the script as a module and
replaces the class with a subclass: its `global_step` reports every step, its `save_checkpoint` every save.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torchtune
from omegaconf import OmegaConf
from torchtune.recipe_interfaces import FTRecipeInterface
from tqdm import tqdm

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, write_json
from stoker.contract.manifest import BESIDE_THE_RESULT, LAST_ERROR, MANIFEST
from stoker.contract.metrics import (
    EVALUATION,
    LEARNING_RATE,
    LOSS,
    METRICS,
    PEAK_MEMORY,
    REPORT,
    TOKENS_PER_SECOND,
)
from stoker.frameworks.torchtune import cpu, random_states
from stoker.frameworks.torchtune.keys import configs_of
from stoker.frameworks.torchtune.weights import SUFFIXES, check_weights
from stoker.plan.plan import Plan
from stoker.rank import checkpoints
from stoker.rank.guard import achieved_world_size
from stoker.rank.job import Job, Outcome, StopRequested, any_rank, barrier
from stoker.rank.metrics import MetricsFile, peak_memory_gib
from stoker.rank.progress import Progress
from stoker.rank.pulse import FINISHING, FIRST_STEP, SAVING, TRAINING

_RECIPES = Path(torchtune.__file__).parent.parent / "recipes"
# A checkpoint is written here, and renamed when it is complete.
_DRAFT = ".saving"
# The same number as in the recipe for TRL; each checkpoint includes the optimizer's state.
_KEPT_CHECKPOINTS = 3
# The last metrics, stored beside TorchTune's files of a checkpoint.
_LAST_METRICS = "stoker-metrics.json"
# TorchTune's names of metrics that all frameworks share.
_OUR_NAMES = {"lr": LEARNING_RATE, "val_loss": f"{EVALUATION}{LOSS}"}
_FILES = "checkpointer.checkpoint_files"
# Recipes of torchtune 0.6 that log the sum of the ranks' losses, where the others log their mean.
_SUMS_LOSS = ("lora_dpo_distributed",)
# What a run of Stoker leaves in its output beside the model.
_RUNS_FILES = (MANIFEST, LAST_ERROR, METRICS, REPORT)


def check(plan: Plan) -> None:
    """Refuse a model without the weights that the recipe reads, before this rank waits for another.

    Raises:
        RunError: a file is missing (66).
    """
    check_weights(words_of(plan))


def train(job: Job) -> Outcome:
    """Run the recipe to its end.

    Raises:
        RunError, StopRequested, and any exception of the recipe.
    """
    words = words_of(job.plan, job.checkpoint)
    recipe = _load(job.plan.module)
    if "device=cpu" in words:
        cpu.apply(recipe)
    follower = _Follower(job, Outcome())
    follow(recipe, follower)
    sys.argv = [job.plan.module, *words]
    try:
        recipe.recipe_main()
    except SystemExit as error:
        # `config.parse` wraps the recipe's main function in `sys.exit`.
        if error.code not in (None, 0):
            raise
    return follower.outcome


def words_of(plan: Plan, checkpoint: Path | None = None) -> list[str]:
    """Return the recipe's words: the config's path, the plan's settings, and the checkpoint to resume from."""
    _, config, *words = plan.trainer_argv
    file = configs_of(plan.method).get(config)
    path = str(_RECIPES / "configs" / file) if file else config
    if checkpoint is not None:
        resume = resume_words(checkpoint)
        if any(word.startswith(_FILES) for word in resume):
            words = [word for word in words if not word.startswith(_FILES)]
        words += resume
    own = OmegaConf.load(path)
    keys = [word.partition("=")[0] for word in words if not word.startswith("~")]
    return ["--config", path, *(f"~{key}" for key in keys if _is_numbered(own, key)), *words]


def _is_numbered(config: Any, key: str) -> bool:
    """Return whether a config names a model's files by a pattern and a number, which a list cannot override."""
    return key.endswith(_FILES) and OmegaConf.is_dict(OmegaConf.select(config, key))


def _load(name: str) -> ModuleType:
    # The folder of recipes is not a package, so a normal import fails.
    spec = importlib.util.spec_from_file_location(f"torchtune_recipe_{name}", _RECIPES / f"{name}.py")
    if spec is None or spec.loader is None:
        raise RunError(ExitCode.CONFIG, f"{_RECIPES} has no recipe {name}: use an image with the pinned torchtune")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def resume_words(checkpoint: Path) -> list[str]:
    """Return the keys that make a recipe resume from one of Stoker's checkpoints, which has TorchTune's layout."""
    (epoch,) = checkpoint.glob("epoch_*")
    words = ["resume_from_checkpoint=True", f"checkpointer.output_dir={checkpoint}"]
    if (epoch / "adapter_model.pt").exists():
        # The recipe reads the base model from its folder, as in the first attempt.
        return words
    files = sorted(path.name for path in epoch.iterdir() if path.suffix in SUFFIXES)
    return [*words, f"{_FILES}=[{','.join(f'{epoch.name}/{name}' for name in files)}]"]


def follow(recipe: ModuleType, follower: _Follower) -> None:
    """Replace a recipe's class with a subclass that tells the follower what happens."""
    (original,) = (
        thing
        for thing in vars(recipe).values()
        if isinstance(thing, type) and FTRecipeInterface in thing.__mro__ and thing.__module__ == recipe.__name__
    )

    class Followed(original):  # type: ignore[misc, valid-type]  # the recipe's class is known at run time only
        _step = 0

        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            follower.made(self)

        def setup(self, cfg: Any) -> None:
            super().setup(cfg)
            follower.ready(self, cfg)

        def _setup_lr_scheduler(self, **given: Any) -> Any:
            # Four recipes of torchtune 0.6 count from 0 after a resume, unless max_steps_per_epoch shortens an epoch.
            self._step = self.epochs_run * self._steps_per_epoch
            return super()._setup_lr_scheduler(**{**given, "last_epoch": self._step - 1})

        @property
        def global_step(self) -> int:
            return self._step

        @global_step.setter
        def global_step(self, step: int) -> None:
            self._step = step
            follower.stepped(self)

        def train(self) -> None:
            super().train()
            follower.trained()

        def save_checkpoint(self, epoch: int) -> None:
            with follower.saving(self._checkpointer, epoch):
                # TorchTune saves no recipe state in the last epoch, but a run with more epochs needs it.
                self.total_epochs += 1
                super().save_checkpoint(epoch=epoch)
                self.total_epochs -= 1

    vars(recipe)[original.__name__] = Followed
    # Stoker prints one line per logged step instead of a progress bar, which fills a pod's log.
    vars(recipe)["tqdm"] = _no_bar


def _no_bar(*args: Any, **options: Any) -> Any:
    return tqdm(*args, **{**options, "disable": True})


class _Follower:
    """Follows a recipe: agrees with all ranks on a stop, seals checkpoints, reports progress, records the outcome."""

    def __init__(self, job: Job, outcome: Outcome) -> None:
        self.outcome = outcome
        self._job = job
        self._output = Path(job.plan.output_dir)
        self._recipe: Any = None
        self._dropout = 0.0
        self._epoch_steps = 0
        self._log_every = 1
        self._stopping = False
        self._newest = job.checkpoint
        self._progress: Progress | None = None
        self._metrics: MetricsFile | None = None
        self._peak = 0.0

    def made(self, recipe: Any) -> None:
        """Check device and world before the recipe loads a model."""
        self._recipe = recipe
        self._job.guard(recipe._device)
        client = getattr(recipe, "_checkpoint_client", None)
        if client is not None:
            self._follow_client(client)

    def _follow_client(self, client: Any) -> None:
        save = client.save_checkpoint

        def followed(*args: Any, training_progress: Any, epoch: int, **kwargs: Any) -> None:
            with self.saving(client._get_checkpointer(), epoch):
                training_progress.total_epochs += 1
                save(*args, training_progress=training_progress, epoch=epoch, **kwargs)

        client.save_checkpoint = followed

    def ready(self, recipe: Any, cfg: Any) -> None:
        """Record where training starts, and start to report."""
        self._epoch_steps = recipe._steps_per_epoch
        self._log_every = recipe._log_every_n_steps
        if self._epoch_steps < 1:
            raise RunError(
                ExitCode.BAD_DATA,
                "the data has fewer rows than one step needs (batch_size × gradient_accumulation_steps × "
                f"{achieved_world_size()} processes): lower these numbers, or add data",
            )
        self._dropout = float(cfg.model.get("lora_dropout", None) or 0.0)
        self.outcome.step, self.outcome.total = recipe.global_step, recipe.total_epochs * self._epoch_steps
        if recipe.global_step and self._is_first:
            print(f"[stoker] resuming after step {recipe.global_step} of {self.outcome.total}", flush=True)
        if self._is_first:
            self._progress = Progress(recipe.global_step, self.outcome.total, achieved_world_size())
            self._metrics = MetricsFile(self._output, recipe.global_step)
            summed = achieved_world_size() if self._job.plan.module in _SUMS_LOSS else 1
            recipe._metric_logger = _Relay(recipe._metric_logger, self.logged, summed)
        self._job.pulse.beat(FIRST_STEP, recipe.global_step)
        self._beat_in_steps(recipe)
        self._job.on_training()
        if self._job.checkpoint is not None:
            # Metrics of earlier attempts count until this attempt has newer ones; it may have no step left.
            self.outcome.metrics.update(read_json(self._job.checkpoint / _LAST_METRICS) or {})
            # This comes last, because TorchTune seeds the generators in each start.
            random_states.restore(self._job.checkpoint, self._rank)

    def _beat_in_steps(self, recipe: Any) -> None:
        """Count each forward pass of the model as a sign of life: a step may accumulate many."""
        began = recipe.global_step

        def beat(*_: Any) -> None:
            self._job.pulse.beat(FIRST_STEP if self.outcome.step == began else TRAINING, self.outcome.step)

        recipe._model.register_forward_pre_hook(beat)

    def stepped(self, recipe: Any) -> None:
        """Agree with all ranks on a stop after each step; after the last step of an epoch, the recipe saves first."""
        if not self._epoch_steps or recipe.global_step <= self.outcome.step:
            return
        self._job.pulse.beat(TRAINING, recipe.global_step)
        self.outcome.step = recipe.global_step
        lost = recipe.global_step % self._epoch_steps
        # The recipe logs next. It always logs before it saves, so that a run with a NaN loss saves nothing.
        recipe._log_every_n_steps = self._log_every if lost else 1
        if self._progress is not None:
            self._progress.step(recipe.global_step)
        if not self._stopping and any_rank(self._job.stop_flag.exists(), recipe._device):
            self._stopping = True
        if self._stopping and lost:
            self._close()
            newest = f"the newest checkpoint is {self._newest.name}" if self._newest else "there is no checkpoint yet"
            raise StopRequested(
                recipe.global_step,
                f"{lost} steps of this epoch are lost, because TorchTune saves only at the end of an epoch: {newest}",
            )

    @contextmanager
    def saving(self, checkpointer: Any, epoch: int) -> Iterator[None]:
        """Direct a save into the draft folder, and seal it as a checkpoint after every rank is done."""
        draft = self._output / _DRAFT
        self._job.pulse.beat(SAVING, self.outcome.step)
        if self._is_first:
            shutil.rmtree(draft, ignore_errors=True)
        checkpointer._output_dir = draft
        yield
        barrier()
        # Dropout uses the random states of each rank, which TorchTune does not save.
        random_states.save(draft, self._rank)
        barrier()
        folder = self._output / f"checkpoint-{self.outcome.step}"
        if self._is_first:
            _drop_earlier_run(draft / f"epoch_{epoch}")
            self._complete(draft / f"epoch_{epoch}")
            write_json(draft / _LAST_METRICS, self.outcome.metrics)
            checkpoints.seal(draft, self.outcome.step, **self._job.plan.record)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
            self._prune()
        barrier()
        self._newest = folder
        self._job.pulse.beat(TRAINING, self.outcome.step)
        if self._stopping and self.outcome.step < self.outcome.total:
            self._close()
            raise StopRequested(self.outcome.step)

    def _complete(self, epoch: Path) -> None:
        """Add the fields that PEFT and vLLM read, and that TorchTune leaves out, to an adapter's config."""
        path = epoch / "adapter_config.json"
        config = read_json(path)
        if isinstance(config, dict):
            ours = {
                "base_model_name_or_path": self._job.plan.base_model[0],
                "task_type": "CAUSAL_LM",
                "bias": "none",
                "lora_dropout": self._dropout,
                "use_dora": self._uses_dora(),
                "inference_mode": True,
            }
            write_json(path, {**ours, **{name: value for name, value in config.items() if value is not None}})

    def _uses_dora(self) -> bool:
        return any(type(module).__name__ == "DoRALinear" for module in self._recipe._model.modules())

    def _prune(self) -> None:
        sealed = [c for c in checkpoints.read_checkpoints(self._output) if not c.flaw]
        for old in sealed[_KEPT_CHECKPOINTS:]:
            # Remove the seal first, so that a half-removed checkpoint never looks complete.
            (old.path / checkpoints.SEAL).unlink()
            shutil.rmtree(old.path, ignore_errors=True)

    def logged(self, numbers: dict[str, float], step: int) -> None:
        """Report progress; end the run if the loss is NaN or infinite."""
        rate = numbers.pop("tokens_per_second_per_gpu", None)
        if rate is not None:
            numbers[TOKENS_PER_SECOND] = rate * achieved_world_size()
        for theirs, ours in _OUR_NAMES.items():
            if theirs in numbers:
                numbers[ours] = numbers.pop(theirs)
        if self._metrics is not None:
            # TorchTune forgets the peak each time it logs it.
            self._peak = max(self._peak, numbers.get("peak_memory_alloc", 0.0), peak_memory_gib())
            self._metrics.write(step, {**numbers, PEAK_MEMORY: self._peak})
        loss = numbers.get(LOSS, 0.0)
        if not math.isfinite(loss):
            raise RunError(
                ExitCode.CRASHED,
                f"the loss is {loss} at step {step}: lower optimizer.lr, or look for broken rows in the data",
            )
        shown = " ".join(f"{name}={value:.6g}" for name, value in numbers.items())
        print(f"[stoker] step {step} of {self.outcome.total}: {shown}", flush=True)
        if self._progress is not None:
            self.outcome.metrics.update(self._progress.log(step, numbers))

    def trained(self) -> None:
        """Record that all epochs are done, and publish the result."""
        self.outcome.finished = self.outcome.step >= self.outcome.total
        self._job.pulse.beat(FINISHING, self.outcome.step)
        if self._is_first and self._newest is not None:
            (epoch,) = self._newest.glob("epoch_*")
            publish(epoch, self._output)
        barrier()
        self._close()

    @property
    def _rank(self) -> int:
        return int(os.environ.get("RANK", "0"))

    @property
    def _is_first(self) -> bool:
        return self._rank == 0

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


class _Relay:
    """A metric logger that also tells the follower.

    Args:
        logger: the recipe's own.
        logged: tells the follower.
        summed: of how many ranks the recipe adds up the losses.
    """

    def __init__(self, logger: Any, logged: Callable[[dict[str, float], int], None], summed: int) -> None:
        self._logger = logger
        self._logged = logged
        self._summed = summed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def log_dict(self, payload: dict[str, Any], step: int) -> None:
        """Log a step's numbers, which may be tensors."""
        payload = {name: value / self._summed if name == LOSS else value for name, value in payload.items()}
        self._logger.log_dict(payload, step=step)
        self._logged({name: float(value) for name, value in payload.items()}, step)


def _drop_earlier_run(epoch: Path) -> None:
    """Remove what TorchTune copied of the run that made the base model: it would pass for this run's own."""
    for path in epoch.iterdir():
        if path.is_dir() and path.name.startswith(BESIDE_THE_RESULT):
            shutil.rmtree(path)
        elif path.name in _RUNS_FILES:
            path.unlink()


def publish(epoch: Path, output: Path) -> None:
    """Put an epoch's files at the root of the output: the whole model, or the adapter with its tokenizer.

    A merged model goes into the folder `merged` next to the adapter, so that a server finds one thing at the root.
    """
    adapter = [path for path in sorted(epoch.iterdir()) if path.name.startswith("adapter_")]
    if not adapter:
        _link_tree(epoch, output)
        return
    # `.pt` is TorchTune's format, from which it resumes; models without PEFT's layout have no other file.
    served = [path for path in adapter if path.suffix != ".pt"] or adapter
    for path in sorted(epoch.iterdir()):
        if path in served or path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "chat_template")):
            _link(path, output / path.name)
    if any(path.suffix in SUFFIXES and path not in adapter for path in epoch.iterdir()):
        _link_tree(epoch, output / "merged", leave_out=tuple(path.name for path in adapter))


def _link_tree(source: Path, target: Path, leave_out: tuple[str, ...] = ()) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file() and path.name not in leave_out:
            _link(path, target / path.relative_to(source))


def _link(source: Path, target: Path) -> None:
    """Hard-link a file; copy it if the volume has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)
