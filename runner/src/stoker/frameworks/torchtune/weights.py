"""Checks that the files exist that a recipe reads its models' weights from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf
from torchtune.config._parse import TuneRecipeArgumentParser
from torchtune.config._utils import _merge_yaml_and_cli_args
from torchtune.training import FormattedCheckpointFiles

from stoker.contract.exits import ExitCode, RunError

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_CHECKPOINTERS = ("checkpointer", "teacher_checkpointer", "ref_checkpointer")


def check_weights(words: Sequence[str]) -> None:
    """Refuse a model's folder without the files that a config names: another model has other files.

    Args:
        words: the recipe's words, `--config` among them.

    Raises:
        RunError: a file is missing (66).
    """
    config = _merge_yaml_and_cli_args(*TuneRecipeArgumentParser().parse_known_args(list(words)))
    for name in _CHECKPOINTERS:
        key = f"{name}.checkpoint_files"
        folder, files = OmegaConf.select(config, f"{name}.checkpoint_dir"), OmegaConf.select(config, key)
        if folder is None or files is None:
            continue
        missing = [file for file in _names(files) if not Path(folder, file).is_file()]
        if missing:
            more = f" and {len(missing) - 1} more of its files" if len(missing) > 1 else ""
            raise RunError(
                ExitCode.NO_INPUT, f"the folder {folder} lacks {missing[0]}{more}: {_fix(key, Path(folder))}"
            )


def _names(files: ListConfig | DictConfig) -> list[str]:
    """Return the names of files, which a config lists or numbers."""
    if isinstance(files, DictConfig):
        names: list[str] = FormattedCheckpointFiles.from_dict(files).build_checkpoint_filenames()
        return names
    return [str(file) for file in files]


def _fix(key: str, folder: Path) -> str:
    there = sorted(path.name for path in folder.glob("*") if path.suffix in SUFFIXES)
    return f"write {key}=[{','.join(there)}]" if there else "put the model's weights there"
