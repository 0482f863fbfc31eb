"""Reads facts about a local model folder and a local data set, without torch or datasets.

Only certain facts: anything that `datasets.load_dataset` might read in another way is left out.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from stoker.plan.inputs import DatasetColumns, ModelFolder
from stoker.plan.model_shape import shape_of

# With a byte order mark or without.
_ENCODING = "utf-8-sig"
_ROWS = 50
_BYTES = 2**20
_PARQUET_SECONDS = 60
# Suffix → format. Only `datasets` reads others (images, archives, …).
_READ_AS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_NO_DATA = re.compile(r"^(readme.*|license.*|dataset_infos?\.json|dataset_dict\.json|state\.json|.*\.lock|\..*)$", re.I)
# Files of `save_to_disk` (datasets 5), which `load_dataset` refuses.
_SAVED_TO_DISK = ("state.json", "dataset_dict.json")
# Names of splits in files and folders, as `datasets` finds them (datasets/data_files.py: SPLIT_KEYWORDS).
_SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "dev", "val"),
}
# Splits that are there only if a file or folder is named like them.
_NAMED_SPLITS = ("test", "validation")
_WORDS = re.compile(r"[^A-Za-z]+")
# Errors of files with unexpected content, and of patterns in a dataset card: a CSV field without end, a damaged gzip
# file, an absolute pattern, and the pattern `.` (Python 3.11: IndexError).
_UNREADABLE = (OSError, EOFError, ValueError, csv.Error, zlib.error, NotImplementedError, IndexError)


def read_model(folder: Path) -> ModelFolder:
    """Read a model folder's configuration; what cannot be read stays None."""
    whole = _json(folder / "config.json")
    text = whole.get("text_config")
    config = {**whole, **text} if isinstance(text, dict) else whole
    tokenizer = _json(folder / "tokenizer_config.json")
    names = _names(folder)
    templates = bool({"chat_template.jinja", "chat_template.json"} & names or tokenizer.get("chat_template"))
    told = templates or "tokenizer_config.json" in names
    return ModelFolder(str(folder), _positions(config), templates if told else None, shape_of(whole))


def _positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that a model's configuration allows; None if it sets no limit."""
    positions = config.get("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    if not isinstance(positions, int) or not isinstance(factor, int | float) or factor < 1:
        return None
    try:
        return int(positions * factor)
    except (OverflowError, ValueError):  # JSON as Python reads it has Infinity and NaN
        return None


def _names(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in folder.iterdir()}
    except OSError:
        return set()


def read_data(path: Path, config: str | None, split: str, setting: str = "") -> DatasetColumns | None:
    """Return the columns of a local data set; None if they are not certain.

    Args:
        path: its folder or file.
        config: its configuration to use.
        split: the split to train on.
        setting: how the framework spells the setting that names the split; empty if it has none.
    """
    try:
        if path.is_file():
            return _columns(path)
        files = _files(path)
        if any(file.name in _SAVED_TO_DISK for file in files):
            problem = "was written by save_to_disk, which load_dataset cannot read: write it with to_parquet or to_json"
            return DatasetColumns(str(path), {}, problem)
        if not files:
            return DatasetColumns(str(path), {}, "has no files: put jsonl, csv or parquet files there")
        if _lacks(path, files, config, split):
            where = f" in {setting}" if setting else ""
            problem = f"has no split {split}: name an existing split{where}"
            return DatasetColumns(str(path), {}, problem)
        wanted = _files_of_card(path, config, split)
        if wanted is None:
            wanted = _of_split(_data_files(files), path, split) if config is None else []
        if not wanted or len({_READ_AS.get(_suffix(file)) for file in wanted}) != 1:
            return None
        if not any(file.stat().st_size for file in wanted):
            return DatasetColumns(str(wanted[0]), {}, "is empty: put rows into it")
        return _columns(wanted[0])
    except _UNREADABLE:
        # Another check reports files that cannot be read.
        return None


def lacks_split(path: Path, config: str | None, split: str) -> bool:
    """Return whether a local data set certainly has no such split.

    Args:
        path: its folder or file.
        config: its configuration to use.
        split: the split.
    """
    try:
        return path.is_dir() and _lacks(path, _files(path), config, split)
    except _UNREADABLE:
        return False


def _lacks(folder: Path, files: list[Path], config: str | None, split: str) -> bool:
    if config is not None or split not in _NAMED_SPLITS or _files_of_card(folder, config, split) is not None:
        return False
    data = _data_files(files)
    return bool(data) and not _of_split(data, folder, split)


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and not _hidden(file, folder)]


def _data_files(files: list[Path]) -> list[Path]:
    return [file for file in files if not _NO_DATA.match(file.name)]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)


def _suffix(file: Path) -> str:
    return Path(file.name.lower().removesuffix(".gz")).suffix


def _files_of_card(folder: Path, config: str | None, split: str) -> list[Path] | None:
    """Return the files that the dataset card (README.md) names for a split; None if it names no files."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    parts = card.read_text(encoding="utf-8").split("---", 2)
    try:
        header = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except yaml.YAMLError:
        return []
    configs = header.get("configs") if isinstance(header, dict) else None
    if not isinstance(configs, list):
        return None
    for entry in configs:
        if isinstance(entry, dict) and (entry.get("config_name") == config or (config is None and len(configs) == 1)):
            patterns = _patterns(entry.get("data_files"), split)
            return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())
    return []


def _patterns(files: Any, split: str) -> Iterable[str]:
    for entry in files if isinstance(files, list) else [files]:
        if isinstance(entry, dict) and entry.get("split") == split:
            path = entry.get("path")
            yield from (str(item) for item in (path if isinstance(path, list) else [path]))


def _of_split(files: list[Path], folder: Path, split: str) -> list[Path]:
    named: dict[str, list[Path]] = {}
    for file in files:
        words = {word.lower() for word in _WORDS.split(str(file.relative_to(folder)))}
        for name, keywords in _SPLITS.items():
            if words & {*keywords}:
                named.setdefault(name, []).append(file)
    if not named:
        # If no file names a split, all files are `train`.
        return files if split == "train" else []
    return named.get(split, [])


def _columns(file: Path) -> DatasetColumns | None:
    kind = _READ_AS.get(_suffix(file))
    if kind == "parquet":
        columns = _parquet_columns(file)
    elif kind is not None:
        with _open(file) as stream:
            columns = _csv_columns(stream, file) if kind == "csv" else _json_columns(stream)
    else:
        columns = None
    return None if not columns else DatasetColumns(str(file), columns)


def _open(file: Path) -> IO[str]:
    if file.suffix.lower() == ".gz":
        return gzip.open(file, "rt", encoding=_ENCODING)
    return file.open(encoding=_ENCODING, newline="")


def _csv_columns(stream: IO[str], file: Path) -> dict[str, str] | None:
    head = stream.readline(_BYTES)
    rows = list(csv.reader([head], delimiter="\t" if _suffix(file) == ".tsv" else ","))
    return dict.fromkeys(rows[0], "text") if rows else None


def _json_columns(stream: IO[str]) -> dict[str, str] | None:
    head = stream.read(_BYTES)
    rows: list[Any] = []
    if head.lstrip().startswith("["):
        decoder, rest = json.JSONDecoder(), head.lstrip()[1:].lstrip()
        try:
            while rest and len(rows) < _ROWS:
                row, end = decoder.raw_decode(rest)
                rows.append(row)
                rest = rest[end:].lstrip().removeprefix(",").lstrip()
        except ValueError:
            pass
    else:
        # The last line may be incomplete.
        lines = [line for line in head.split("\n")[: _ROWS + 1] if line.strip()]
        complete = lines[:-1] if len(lines) > 1 else lines
        rows = [json.loads(line) for line in complete]
    if not rows or not all(isinstance(row, dict) for row in rows):
        return None
    columns: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            if columns.get(name, "other") == "other":
                columns[name] = _kind(value)
    return columns


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return "messages"
    return "other"


# In another process, because pyarrow would stay in the runner's memory while the trainer runs.
_PARQUET = """
import json, sys
import pyarrow.parquet, pyarrow.types as types
def kind(t):
    if types.is_string(t) or types.is_large_string(t): return "text"
    if (types.is_list(t) or types.is_large_list(t)) and types.is_struct(t.value_type): return "messages"
    return "other"
schema = pyarrow.parquet.read_schema(sys.argv[1])
print(json.dumps({field.name: kind(field.type) for field in schema}))
"""


def _parquet_columns(file: Path) -> dict[str, str] | None:
    command = [sys.executable, "-c", _PARQUET, str(file)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PARQUET_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    columns: dict[str, str] = json.loads(done.stdout)
    return columns
