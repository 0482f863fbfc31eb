"""What a trainer raises is told apart: whose fault, whether a retry helps, and what to do."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import TRL, TorchTune
from stoker.plan.interfaces import FlagNames
from stoker.rank.endings import ending_of


def named(name: str, text: str, *bases: type[BaseException]) -> BaseException:
    """Return an exception as another package defines it: known here by its name only."""
    error: BaseException = type(name, bases or (Exception,), {})(text)
    return error


@pytest.mark.parametrize(
    ("error", "code", "primary", "says"),
    [
        (RunError(ExitCode.CONFIG, "the world size is 1"), ExitCode.CONFIG, True, "the world size is 1"),
        (RunError(ExitCode.UNAVAILABLE, "rank 0 is gone"), ExitCode.UNAVAILABLE, False, "rank 0 is gone"),
        (named("StopRequested", "at step 3", BaseException), ExitCode.STOPPED, True, "at step 3"),
        (KeyboardInterrupt(), ExitCode.STOPPED, True, "interrupted"),
        (named("OutOfMemoryError", "CUDA out of memory", RuntimeError), ExitCode.CRASHED, True, "out of device memory"),
        (RuntimeError("CUDA error: out of memory"), ExitCode.CRASHED, True, "out of device memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ExitCode.CRASHED, True, "out of host memory"),
        (OSError(28, "No space left on device"), ExitCode.CONFIG, True, "the disk is full"),
        (OSError(122, "Disk quota exceeded"), ExitCode.CONFIG, True, "the disk is full"),
        (
            named(
                "DistBackendError",
                "Error while creating shared memory segment /dev/shm/nccl-1: No space left on device (28)",
                RuntimeError,
            ),
            ExitCode.CONFIG,
            True,
            "/dev/shm is full: mount an emptyDir",
        ),
        (
            RuntimeError("unable to write to file </torch_12_34_0>: No space left on device (28)"),
            ExitCode.CONFIG,
            True,
            "/dev/shm is full: mount an emptyDir",
        ),
        (OSError(30, "Read-only file system"), ExitCode.CONFIG, True, "the disk is read-only"),
        (
            PermissionError(13, "Permission denied", "/cache/x"),
            ExitCode.CONFIG,
            True,
            " cannot use /cache/x (Permission denied)",
        ),
        (
            named(
                "SafetensorError",
                'Error while serializing: I/O error: Os { code: 28, kind: StorageFull, message: "x" }',
            ),
            ExitCode.CONFIG,
            True,
            "the disk is full",
        ),
        (MemoryError(), ExitCode.CRASHED, True, "raise the memory limit"),
        (named("DatasetNotFoundError", "d"), ExitCode.NO_INPUT, True, "model or data not found"),
        (named("MyError", "x", type("GatedRepoError", (OSError,), {})), ExitCode.NO_INPUT, True, "not found"),
        (OSError("m is not a local folder and is not a valid model identifier"), ExitCode.NO_INPUT, True, "mounted"),
        (OSError("We couldn't connect to 'https://example.org'"), ExitCode.NO_INPUT, True, "initializer"),
        (OSError("/m does not appear to have a file named config.json"), ExitCode.NO_INPUT, True, "not found"),
        (
            OSError("Error no file named model.safetensors, or pytorch_model.bin, found in directory /m."),
            ExitCode.NO_INPUT,
            True,
            "model or data not found",
        ),
        (
            ValueError("No file with name: pytorch_model-00001-of-00002.bin found in /workspace/model."),
            ExitCode.NO_INPUT,
            True,
            "not found",
        ),
        (OSError("No such file or directory: /m/model-2.safetensors"), ExitCode.NO_INPUT, True, "not found"),
        (
            named("HFValidationError", "Repo id must be in the form 'a/b'", ValueError),
            ExitCode.NO_INPUT,
            True,
            "Name a",
        ),
        (named("ArrowInvalid", "Parquet magic bytes not found", ValueError), ExitCode.BAD_DATA, True, "as a table"),
        (
            ValueError("BuilderConfig 'foo' not found. Available: ['default']"),
            ExitCode.BAD_DATA,
            True,
            "no such configuration: BuilderConfig 'foo' not found. Available: ['default']. Name one that it has",
        ),
        (named("DatasetGenerationError", "row 3"), ExitCode.BAD_DATA, True, "cannot be read as a table: row 3"),
        (KeyError("loss"), ExitCode.CRASHED, True, "KeyError"),
        (
            named(
                "DistBackendError",
                "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.29.7\nncclInvalidUsage: This usually "
                "reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both "
                "on CUDA device 10",
                RuntimeError,
            ),
            ExitCode.CONFIG,
            True,
            "two ranks of this run share one GPU",
        ),
        (
            named("DistBackendError", "Multiple Ranks are using the same GPU/Partition.", RuntimeError),
            ExitCode.CONFIG,
            True,
            "request a whole GPU for each process",
        ),
        (
            named(
                "DistBackendError",
                "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
                RuntimeError,
            ),
            ExitCode.CRASHED,
            True,
            "out of device memory",
        ),
        (named("DistBackendError", "x", RuntimeError), ExitCode.UNAVAILABLE, False, "lost another rank"),
        (RuntimeError("[gloo] Connection closed by peer [10.0.0.1]:1"), ExitCode.UNAVAILABLE, False, "lost another"),
        (
            RuntimeError("[unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"),
            ExitCode.UNAVAILABLE,
            False,
            "lost another rank",
        ),
        (RuntimeError("Socket Timeout"), ExitCode.UNAVAILABLE, False, "lost another rank"),
        (
            RuntimeError("[pair.cc:537] Read error [10.0.0.1]:1: Connection timed out"),
            ExitCode.UNAVAILABLE,
            False,
            "lost",
        ),
        (
            RuntimeError("[pair.cc:537] Read error [10.0.0.1]:1: No route to host"),
            ExitCode.UNAVAILABLE,
            False,
            "lost another",
        ),
        (RuntimeError("Application timeout caused pair closure"), ExitCode.UNAVAILABLE, False, "lost another rank"),
        (TimeoutError(110, "Connection timed out"), ExitCode.CRASHED, True, "Connection timed out"),
        (ConnectionRefusedError(111, "Connection refused"), ExitCode.CRASHED, True, "Connection refused"),
        (
            named("ConnectionError", "HTTPConnectionPool(host='mlflow'): Connection refused", OSError),
            ExitCode.CRASHED,
            True,
            "ConnectionError: HTTPConnectionPool(host='mlflow')",
        ),
        (
            ValueError("Some specified arguments are not used by the HfArgumentParser: ['--x']"),
            ExitCode.USAGE,
            True,
            "--x",
        ),
        (ValueError("no such column"), ExitCode.CRASHED, True, "ValueError: no such column"),
        (SystemExit(2), ExitCode.USAGE, True, "refused its arguments"),
        (SystemExit(0), ExitCode.CRASHED, True, "exited before the end"),
        (SystemExit(), ExitCode.CRASHED, True, "exited before the end"),
        (SystemExit(78), ExitCode.CONFIG, True, "78"),
        (SystemExit("text"), ExitCode.CRASHED, True, "text"),
        (SystemExit(3), ExitCode.CRASHED, True, "3"),
    ],
)
def test_an_exception_becomes_an_ending(error: BaseException, code: ExitCode, primary: bool, says: str) -> None:
    verdict = ending_of(error, TRL.flag_names)
    assert verdict.code is code
    assert verdict.primary is primary
    assert says in verdict.message


@pytest.mark.parametrize(
    "error",
    [
        OSError("We couldn't connect to 'https://huggingface.co' to load the files. Run the library in offline mode"),
        ConnectionError("Couldn't reach 'org/name' on the Hub (LocalEntryNotFoundError)"),
        named("LocalEntryNotFoundError", "x"),
    ],
)
def test_a_hub_that_is_silent_after_a_restart_is_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ending_of(error, TRL.flag_names).code is ExitCode.NO_INPUT
    later = ending_of(error, TRL.flag_names, attempt=1)
    assert (later.code, later.primary) == (ExitCode.UNAVAILABLE, True)
    assert "the model hub does not answer" in later.message
    for offline, code in {"0": ExitCode.UNAVAILABLE, "true": ExitCode.NO_INPUT, "1": ExitCode.NO_INPUT}.items():
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        assert ending_of(error, TRL.flag_names, attempt=1).code is code


def test_a_missing_split_is_bad_data(tmp_path: Path) -> None:
    # `datasets` raises a bare KeyError for it, told apart by the file that raises it.
    module = tmp_path / "dataset_dict.py"
    module.write_text("raise KeyError('nowhere')")
    with pytest.raises(KeyError) as raised:
        runpy.run_path(str(module))
    verdict = ending_of(raised.value, TRL.flag_names)
    assert verdict.code is ExitCode.BAD_DATA
    assert verdict.message == "the data has no split 'nowhere': name an existing split in --dataset_train_split"
    assert ending_of(raised.value, FlagNames()).message == "the data has no split 'nowhere': name an existing split"


def test_a_split_without_rows_is_bad_data(tmp_path: Path) -> None:
    told = ending_of(ValueError('Instruction "test" corresponds to no data!'), TRL.flag_names)
    # The reader of JSON Lines ends with a bare StopIteration for an empty file, told apart by the file that raises it.
    module = tmp_path / "packaged_modules" / "json" / "json.py"
    module.parent.mkdir(parents=True)
    module.write_text("next(iter(()))")
    with pytest.raises(StopIteration) as raised:
        runpy.run_path(str(module))
    verdict = ending_of(raised.value, TRL.flag_names)
    assert told.code is verdict.code is ExitCode.BAD_DATA
    assert told.message.startswith('the data has no rows (Instruction "test" corresponds to no data!): give each split')
    assert verdict.message == "the data has no rows: give each split at least one, or remove its file"
    assert ending_of(StopIteration(), TRL.flag_names).code is ExitCode.CRASHED


@pytest.mark.parametrize(
    "words",
    [
        "With n_samples=1, test_size=0.5 and train_size=None, the resulting train set will be empty. Adjust any of the",
        "test_size=9 should be either positive and smaller than the number of samples 4 or a float in the (0, 1) range",
    ],
)
def test_a_share_for_tests_that_leaves_no_rows_is_bad_data(words: str) -> None:
    verdict = ending_of(ValueError(words), TRL.flag_names)
    assert verdict.code is ExitCode.BAD_DATA
    assert verdict.message == (f"the data cannot be split, one part has no rows: {words}. Add rows, or split less off")


def test_the_error_behind_an_error_counts() -> None:
    error = RuntimeError("loading failed")
    error.__cause__ = named("DatasetNotFoundError", "no such data")
    assert ending_of(error, TRL.flag_names).code is ExitCode.NO_INPUT


def test_a_long_message_is_cut_to_one_line() -> None:
    verdict = ending_of(ValueError("a\nb" * 10_000), TRL.flag_names)
    assert len(verdict.message) < 700
    assert "\n" not in verdict.message


def test_advice_is_written_as_the_framework_writes_it() -> None:
    for error in (RuntimeError("CUDA error: out of memory"), OSError(28, "No space left on device")):
        message = ending_of(error, TorchTune.flag_names).message
        assert "--" not in message, message
    assert (
        "lower batch_size or tokenizer.max_seq_len"
        in ending_of(RuntimeError("CUDA out of memory"), TorchTune.flag_names).message
    )


@pytest.mark.parametrize(("free", "code"), [(2**20, ExitCode.CONFIG), (2**30, ExitCode.CRASHED)])
def test_a_file_that_torch_could_not_write_means_a_full_disk_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, code: ExitCode
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    # As torch.save raises it for a path, whatever the reason is.
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534")
    verdict = ending_of(error, TRL.flag_names, output=tmp_path)
    assert verdict.code is code
    assert ("the disk is full: enlarge the volume" in verdict.message) is (code is ExitCode.CONFIG)
