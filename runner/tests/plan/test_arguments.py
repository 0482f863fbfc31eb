"""Flags of every layer are parsed by their type, checked against the table, and laid over each other."""

from __future__ import annotations

import re

import pytest

from stoker.frameworks import get_framework
from stoker.plan.arguments import (
    CONFIG_FILE,
    IN_FILES,
    Flag,
    FlagTable,
    Layer,
    Resolution,
    Setting,
    config_words,
    resolve,
    split_args,
    split_env,
    with_lists,
)

TABLE = FlagTable(
    trainer="trl 1.0",
    method="sft",
    flags={
        flag.name: flag
        for flag in (
            Flag("learning_rate", "float"),
            Flag("max_steps", "int"),
            Flag("max_length", "int"),
            Flag("packing", "bool"),
            Flag("use_cache", "bool", default="True"),
            Flag("fsdp", "str", alone=True),
            Flag("patience", "int", none=True),
            Flag("ranges", "tuple", none=True),
            Flag("code", "object"),
            Flag("run_name", "str"),
            Flag("report_to", "str", many=True),
            Flag("trackers", "str", listed=True),
            Flag("optim", "str", choices=("adamw", "sgd")),
        )
    },
    renamed={"max_seq_length": "max_length"},
    removed={"old_flag": "write nothing instead"},
    reserved={"local_rank": "leave it out"},
)


def resolved(*words: str) -> Resolution:
    given, problems = split_args(words)
    assert problems == []
    return resolve(TABLE, [Layer("args", given)])


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--learning_rate", "2e-4"], "learning_rate", "2e-4"),
        (["--learning-rate=2e-4"], "learning_rate", "2e-4"),
        (["--max_steps", "-1"], "max_steps", "-1"),
        (["--max_steps", "1", "--max_steps", "2"], "max_steps", "2"),
        (["--packing"], "packing", "true"),
        (["--packing", "No"], "packing", "false"),
        (["--no_use_cache"], "use_cache", "false"),
        (["--use_cache", "--no_use_cache", "--use_cache"], "use_cache", "true"),
        (["--no-use-cache", "--use_cache", "--no_use_cache"], "use_cache", "false"),
        (["--run_name", "no"], "run_name", "no"),
        (["--run_name=1:30"], "run_name", "1:30"),
        (["--run_name="], "run_name", ""),
        (["--report_to", "wandb", "mlflow"], "report_to", ("wandb", "mlflow")),
        (["--optim", "sgd"], "optim", "sgd"),
        (["--fsdp"], "fsdp", "true"),
        (["--fsdp", "False"], "fsdp", "false"),
        (["--fsdp", "full_shard"], "fsdp", "full_shard"),
        (["--patience", "NULL"], "patience", "none"),
        (["--ranges", "none"], "ranges", "none"),
        (["--run_name", "none"], "run_name", "none"),
    ],
)
def test_command_lines_are_read_as_the_trainer_reads_them(
    words: list[str], name: str, value: str | tuple[str, ...]
) -> None:
    resolution = resolved(*words)
    assert resolution.problems == ()
    assert [(s.name, s.value) for s in resolution.settings] == [(name, value)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rat", "1"], "is an abbreviation, which trl 1.0 (sft) may misread: write --learning_rate ("),
        (["--leanring_rate", "1"], "did you mean --learning_rate?"),
        (["--zzz"], "`stoker flags sft` lists its flags"),
        (["--max_seq_length", "9"], "--max_seq_length is called --max_length in trl 1.0 (sft): write --max_length"),
        (["--old_flag"], "--old_flag no longer exists in trl 1.0 (sft): write nothing instead"),
        (["--local_rank", "0"], "--local_rank is reserved for stoker: leave it out"),
        (["--learning_rate"], "--learning_rate needs a value: write --learning_rate <float>"),
        (["--learning_rate", "fast"], "--learning_rate must be a number, not 'fast'"),
        (["--learning_rate", "1e30"], "--learning_rate must be a number below 2^63, not '1e30'"),
        (["--max_steps", "1.5"], "--max_steps must be a whole number, not '1.5'"),
        (["--packing", "maybe"], "--packing must be true or false, not 'maybe'"),
        (["--run_name", "a", "b"], "--run_name takes one value, got 2: 'a b'"),
        (["--optim", "adam"], "--optim must be one of adamw, sgd, not 'adam'; did you mean 'adamw'?"),
        (["--no_packing", "true"], "--no_packing is not a flag of"),
        (["--max_steps", "none"], "--max_steps must be a whole number, not 'none'"),
        (
            ["--ranges", "[1, 2]"],
            "--ranges takes a list, which no argument or variable can hold: write it in a --config",
        ),
        (["--code", "x"], "--code takes an object that only Python code can make: leave it out"),
    ],
)
def test_what_the_trainer_would_misread_is_refused(words: list[str], message: str) -> None:
    (problem,) = resolved(*words).problems
    assert message in problem
    assert "args" in problem


@pytest.mark.parametrize(
    ("value", "words"), [("true", ["--fsdp"]), ("false", ["--fsdp", ""]), ("full_shard", ["--fsdp", "full_shard"])]
)
def test_a_flag_that_may_stand_alone_reaches_the_trainer_in_its_own_words(value: str, words: list[str]) -> None:
    assert Setting("fsdp", value, "args").for_trainer(TABLE.flags["fsdp"]).to_argv() == words
    assert Setting("packing", value, "args").for_trainer(TABLE.flags["packing"]).to_argv() == ["--packing", value]


def test_a_flag_of_another_method_is_told_apart_from_nonsense() -> None:
    table = get_framework("trl").flag_table("sft")
    assert table.refusal("num_generations") == (
        "--num_generations is a flag of grpo, rloo, grpo_async, not of trl 1.16.0 (sft): leave it out, or choose "
        "another method"
    )


def test_a_name_that_only_changed_is_read_as_todays_and_said() -> None:
    sft = get_framework("trl").flag_table("sft")
    named = [
        Layer("args", {"max_seq_length": ("9",)}),
        Layer("TrainJob env", {"max_seq_length": ("9",)}, label="{FLAG}"),
    ]
    for layer, label in zip(named, ("--max_seq_length", "MAX_SEQ_LENGTH"), strict=True):
        resolution = resolve(sft, [Layer("runtime", {"max_length": ("8",)}), layer])
        assert [(one.name, one.value, one.source) for one in resolution.settings] == [("max_length", "9", layer.source)]
        assert resolution.notices == (f"{label} is read as --max_length, its name in trl 1.16.0",)
    (problem,) = resolve(sft, [Layer("args", {"max_seq_length": ("few",)})]).problems
    assert problem == "--max_seq_length must be a whole number, not 'few' (given by args)"
    (problem,) = resolve(sft, [Layer("args", {"max_seq_length": ("9",), "max_length": ("8",)})]).problems
    assert problem == (
        "--max_seq_length and --max_length are the same flag (both given by args): write --max_length alone"
    )


def test_a_former_name_is_refused_where_the_trainer_would_not_get_todays() -> None:
    table = get_framework("trl").flag_table
    # TRL reads the file itself, and skips the key.
    in_file = resolve(table("sft"), [Layer(CONFIG_FILE, {"max_seq_length": ("9",)}, label="key {flag}")])
    for resolution in (in_file, resolve(table("dpo"), [Layer("args", {"max_seq_length": ("9",)})])):
        (problem,) = resolution.problems
        assert "--max_seq_length is called --max_length in trl 1.16.0" in problem


def test_a_word_that_belongs_to_no_flag_is_refused() -> None:
    _, problems = split_args(["sft.yaml", "--packing"])
    assert problems == ["'sft.yaml' is not a flag: write trainer arguments as --flag value"]


def test_all_problems_are_told_at_once() -> None:
    assert len(resolved("--zzz", "--packing", "maybe", "--local_rank", "1").problems) == 3


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("run_name", "no", ("no",)),
        ("run_name", "1:30", ("1:30",)),
        ("run_name", "a b, c", ("a b, c",)),
        ("run_name", "[1]", ("[1]",)),
        ("report_to", "wandb, mlflow", ("wandb", "mlflow")),
        ("report_to", "wandb mlflow", ("wandb", "mlflow")),
        ("report_to", '["a b", "c"]', ("a b", "c")),
        ("report_to", "[broken", ("[broken",)),
        ("report_to", "[" * 50_000, ("[" * 50_000,)),
        ("trackers", "wandb, mlflow", ("wandb", "mlflow")),
        ("trackers", '["wandb", "mlflow"]', ("wandb", "mlflow")),
        ("trackers", "wandb", ("wandb",)),
        ("trackers", ".*(a|b){1,2}", (".*(a|b){1,2}",)),
        ("trackers", " ", (" ",)),
    ],
    ids=[
        *("no", "1:30", "commas in a string", "brackets in a string", "commas", "spaces", "JSON", "no JSON", "deep"),
        *("names", "a list", "a name", "a pattern", "nothing"),
    ],
)
def test_variables_are_split_by_the_flags_type(flag: str, text: str, words: tuple[str, ...]) -> None:
    assert split_env(text, TABLE.flags[flag]) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, ("True",)), (2e-4, ("0.0002",)), (["a", 1], ("a", "1")), ({"a": 1}, ('{"a": 1}',))],
)
def test_values_of_a_config_file_become_words(value: object, words: tuple[str, ...]) -> None:
    assert config_words(value) == words


def test_the_stronger_layer_wins_and_is_named() -> None:
    layers = [
        Layer("recipe", {"max_steps": ("1",), "packing": ("true",)}, reasons={"packing": "because"}),
        Layer("args", {"max_steps": ("2",)}),
    ]
    settings = {s.name: (s.value, s.source, s.reason) for s in resolve(TABLE, layers).settings}
    assert settings == {"max_steps": ("2", "args", ""), "packing": ("true", "recipe", "because")}


def test_a_runtimes_foreign_default_is_dropped_with_a_notice() -> None:
    layer = Layer("runtime", {"num_generations": ("8",)}, foreign="drop", label="STOKER_ARG_{FLAG}")
    resolution = resolve(TABLE, [layer])
    assert resolution.settings == ()
    assert resolution.problems == ()
    assert resolution.notices == ("dropped the runtime default STOKER_ARG_NUM_GENERATIONS: sft has no such flag",)


def test_a_users_foreign_value_is_refused_under_the_name_it_was_given() -> None:
    layer = Layer("TrainJob env", {"num_generations": ("8",)}, label="STOKER_ARG_{FLAG}")
    (problem,) = resolve(TABLE, [layer]).problems
    assert problem.endswith("(given as STOKER_ARG_NUM_GENERATIONS by TrainJob env)")


@pytest.mark.parametrize("method", get_framework("trl").methods)
def test_the_tables_agree_with_themselves(method: str) -> None:
    table = get_framework("trl").flag_table(method)
    assert table.trainer == "trl 1.16.0"
    assert {"model_name_or_path", "dataset_name", "output_dir", "max_steps"} <= table.flags.keys()
    assert not table.renamed.keys() & table.flags.keys(), "a flag that exists is not renamed"
    assert not table.removed.keys() & table.flags.keys(), "a flag that exists is not gone"
    assert {flag.type for flag in table.flags.values()} <= {"bool", "int", "float", "str", "json", *IN_FILES, "object"}


@pytest.mark.parametrize("method", get_framework("trl").methods)
def test_advice_for_a_flag_that_is_gone_names_flags_that_the_method_has(method: str) -> None:
    table = get_framework("trl").flag_table(method)
    for name, advice in table.removed.items():
        assert {*re.findall(r"--(\w+)", advice)} <= table.flags.keys(), (name, advice)
    assert "--max_length" in get_framework("trl").flag_table("sft").removed["max_target_length"]
    gone = get_framework("trl").flag_table("grpo").refusal("max_target_length")
    assert gone == "--max_target_length no longer exists in trl 1.16.0 (grpo): leave it out, grpo has no flag for it"


def test_a_renamed_flag_whose_new_name_is_another_methods_is_called_that() -> None:
    problem = get_framework("trl").flag_table("sft").refusal("max_new_tokens")
    assert problem == (
        "--max_new_tokens is now --max_completion_length, a flag of orpo, grpo, rloo, distillation, grpo_async, "
        "not of trl 1.16.0 (sft): leave it out, or choose another method"
    )


@pytest.mark.parametrize(
    ("name", "called"), [("lr", "learning_rate"), ("epochs", "num_train_epochs"), ("torch_dtype", "dtype")]
)
def test_names_that_others_use_are_understood(name: str, called: str) -> None:
    problem = get_framework("trl").flag_table("sft").refusal(name)
    assert problem == f"--{name} is called --{called} in trl 1.16.0 (sft): write --{called}"


def test_deprecated_flags_still_work() -> None:
    framework = get_framework("trl")
    known = {name for method in framework.methods for name in framework.flag_table(method).flags}
    assert framework.flag_table("sft").deprecated.keys() <= known


def test_values_that_begin_with_a_dash_stay_values() -> None:
    assert Setting("run_name", "--max_steps", "args").to_argv() == ["--run_name=--max_steps"]
    (problem,) = resolve(TABLE, [Layer("env", {"report_to": ("-x",)})]).problems
    assert "do not begin with a dash" in problem


def test_new_names_of_renamed_flags_exist_somewhere() -> None:
    framework = get_framework("trl")
    tables = [framework.flag_table(method) for method in framework.methods]
    assert set(tables[0].renamed.values()) <= {name for table in tables for name in table.flags}


@pytest.mark.parametrize("words", [("a", "b"), ("a,b",), ("a b",), ('["a", "b"]',)], ids=" ".join)
def test_a_list_where_the_trainer_takes_a_word_is_one_word_of_json(words: tuple[str, ...]) -> None:
    given, _ = split_args(["--trackers", *words])
    (setting,) = resolve(TABLE, [Layer("args", with_lists(given, TABLE))]).settings
    assert setting.value == ("a", "b")
    assert setting.for_trainer(TABLE.flags["trackers"]).to_argv() == ["--trackers", '["a", "b"]']


def test_a_list_of_one_is_its_value() -> None:
    (setting,) = resolve(TABLE, [Layer("args", with_lists({"trackers": ('["a"]',)}, TABLE))]).settings
    assert setting.for_trainer(TABLE.flags["trackers"]).to_argv() == ["--trackers", "a"]
