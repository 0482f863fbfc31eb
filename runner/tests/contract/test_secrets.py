"""What Stoker writes for people holds no secret, wherever it came from."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from runner.tests.samples import plan_of

from stoker.commands.main import main
from stoker.contract import words
from stoker.contract.exits import RunError
from stoker.contract.secrets import hidden, hidden_json, hide, is_secret
from stoker.plan.interfaces import FlagNames
from stoker.rank.endings import ending_of

# Made up, in the form of the Hub's.
TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0xR3u"


def test_a_value_is_hidden_at_any_depth() -> None:
    found = hidden({"dataset": {"token": "short", "files": [f"a?token={TOKEN}"]}, "eos_token": "</s>", "steps": 3})
    assert found == {
        "dataset": {"token": "(not shown)", "files": ["a?token=(not shown)"]},
        "eos_token": "</s>",
        "steps": 3,
    }


@pytest.mark.parametrize("before", ["", "\n", "\t"])
def test_json_holds_no_secret_whatever_stands_before_it(before: str) -> None:
    shown = hidden_json({"texts": (f"{before}{TOKEN}",), "api_key": "12345"})
    assert json.loads(shown) == {"texts": [f"{before}(not shown)"], "api_key": "(not shown)"}


def test_json_holds_no_secret_that_json_writes_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", 'pass"word\\é')
    assert json.loads(hidden_json(['it is pass"word\\é', 3])) == ["it is (not shown)", 3]


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "STOKER_ARG_HUB_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "SENTRY_DSN",
        "GH_PAT",
        "STOKER_WEBHOOK",
    ],
)
def test_a_variable_with_such_a_name_is_a_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "STOKER_ARG_EOS_TOKEN", "NUM_TOKENS", "PATH", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("GOOGLE_APPLICATION_CREDENTIALS_PATH", "KEYBOARD", "STOKER_ARG_PAD_TOKEN"),
    ],
)
def test_what_only_sounds_like_one_is_none(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"invalid token {TOKEN}.", "invalid token (not shown)."),
        (f"Illegal header value b'Bearer {TOKEN}\\n'", "Illegal header value b'Bearer (not shown)\\n'"),
        ("Authorization: bearer abcdefgh-123", "Authorization: bearer (not shown)"),
        ("http://me:hunter2@proxy:3128/x", "http://(not shown)@proxy:3128/x"),
        ("https://:hunter2@host", "https://(not shown)@host"),
        ("https://b.s3/x?X-Amz-Signature=0af&part=1", "https://b.s3/x?X-Amz-Signature=(not shown)&part=1"),
        ("https://a.blob/x?sv=1&sig=a%2Bb", "https://a.blob/x?sv=1&sig=(not shown)"),
        ('{"token": "abc", "revision": "main"}', '{"token": "(not shown)", "revision": "main"}'),
        ('"{\\"hub_token\\": \\"abc\\"}"', '"{\\"hub_token\\": \\"(not shown)\\"}"'),
        ('{"STOKER_ARG_HUB_TOKEN":"abc"}', '{"STOKER_ARG_HUB_TOKEN":"(not shown)"}'),
        ("hub_token=abc", "hub_token=(not shown)"),
        ("HF_TOKEN: abc", "HF_TOKEN: (not shown)"),
        ("aws_secret_access_key = abc/d+e", "aws_secret_access_key = (not shown)"),
        ("ghp_" + "a1" * 18, "(not shown)"),
        ("sk-proj-" + "a1" * 12, "(not shown)"),
        ("the value s3cr3t-of-mine is wrong", "the value (not shown) is wrong"),
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str, shown: str) -> None:
    assert hide(text, {"MY_SECRET": "s3cr3t-of-mine\n", "MY_TOKEN": "a"}) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--hub_token needs a value: write --hub_token <str>",
        "--eos_token '<|im_end|>' is not in the vocabulary",
        "found character '\t' that cannot start any token",
        '{"hub_token": null, "api_key": {"from": "secret"}, "use_auth_token": false}',
        "the secret hub is only in the cluster: give a file to use instead with --secret hub=FILE",
        "put a token into the secret of spec.initializer.model.secretRef as ACCESS_TOKEN",
        "git revision 0123456789abcdef0123456789abcdef01234567 of hf_transfer in huggingface_hub",
        "http://127.0.0.1:8000/v1/models and s3://bucket/a:b@c",
        "num_tokens=512, pad_token_id: 0, tokenizer.path=/workspace/model/tokenizer.json",
    ],
)
def test_any_other_text_stays(text: str) -> None:
    assert hide(text, {"TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin"}) == text


def test_lines_and_the_termination_message_hide_what_they_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("pod") / "termination-log"
    words.say(f"fetching with {TOKEN}")
    words.report_error(f"{TOKEN} is refused")
    words.write_termination_message(log, f"usage: {TOKEN}")
    try:
        raise ValueError(TOKEN)
    except ValueError:
        words.report_traceback()
    assert TOKEN not in capsys.readouterr().err + log.read_text()


def test_the_end_of_a_run_hides_a_token_before_it_cuts_the_message() -> None:
    error = ValueError(f"{'x' * 580} Illegal header value b'Bearer {TOKEN}'")
    assert "hf_" not in ending_of(error, FlagNames()).message


def test_a_plan_hides_tokens_in_any_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    options = json.dumps({"token": "abc", "attn_implementation": "sdpa"})
    plan = plan_of("--model_init_kwargs", options, "--run_name", TOKEN)
    assert plan.trainer_argv[plan.trainer_argv.index("--run_name") + 1] == TOKEN
    assert TOKEN not in str([plan.shown_argv, plan.shown_settings, plan.recorded_settings])
    assert json.loads(str(plan.recorded_settings["model_init_kwargs"])) == {
        "token": "(not shown)",
        "attn_implementation": "sdpa",
    }


@pytest.mark.parametrize(
    "words", [["--hub_token", "hunter2", "b"], ["--hub_token", "hunter2", "hunter3", "--max_steps", "x"]]
)
def test_a_refusal_does_not_quote_a_token(words: list[str]) -> None:
    with pytest.raises(RunError, match=r"--hub_token takes one value, got \d: \(not shown\)") as refused:
        plan_of(*words)
    assert "hunter" not in refused.value.message


@pytest.mark.parametrize("output", ["text", "json"])
def test_stoker_plan_prints_no_token(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ARG_HUB_TOKEN", "hunter2hunter2")
    monkeypatch.setenv("STOKER_ARG_RUN_NAME", "by hunter2hunter2")
    words = ["--model_name_or_path", "a/b", "--dataset_name", "c/d", "--model_init_kwargs", '{"token": "abc-def"}']
    result = CliRunner().invoke(main, ["plan", "--output", output, "trl.scripts.sft", *words])
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    assert "abc-def" not in result.output
    if output == "json":
        assert {"name": "run_name", "value": "by (not shown)"}.items() <= {
            key: value for setting in json.loads(result.output)["settings"] for key, value in setting.items()
            if setting["name"] == "run_name"
        }.items()  # fmt: skip


def test_doctor_prints_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = json.dumps({"STOKER_ARG_HUB_TOKEN": "hunter2", "STOKER_METHOD": "sft"})
    monkeypatch.setenv("STOKER_RUNTIME_DEFAULTS", defaults)
    monkeypatch.setenv("STOKER_HF_TOKEN", "hunter3")
    monkeypatch.setenv("STOKER_ARG_MODEL_INIT_KWARGS", '{"token": "hunter4"}')
    output = CliRunner().invoke(main, ["doctor"]).output
    assert "STOKER_RUNTIME_DEFAULTS" in output
    assert "hunter" not in output
