"""Code written against KEP-2839's three texts means here what it means there, in the flags of TRL 1.16.

The texts: the first of kubeflow/trainer#3263 (LLMBackend, @register_backend), the second of the same pull request
(ConfigTrainer, TRLTrainer), and the newest of kubeflow/trainer#3930 (FrameworkConfig, TRLConfig(method=…)).
"""

from __future__ import annotations

import pytest

from stoker.backends import (
    ConfigTrainer,
    DataType,
    FrameworkConfig,
    Initializer,
    LLMBackend,
    LoraConfig,
    Source,
    TorchTuneConfig,
    TorchTuneTrainer,
    TRLConfig,
    TRLDPOConfig,
    TRLGRPOConfig,
    TRLPeftConfig,
    TRLSFTConfig,
    TRLTrainer,
    TRLTrainerType,
)
from stoker.submit import trainjob as manifests

PLACES = ["--model_name_or_path", "/workspace/model", "--dataset_name", "/workspace/dataset"]
FETCHED = Initializer(
    model=Source("hf://meta-llama/Llama-3.2-1B-Instruct"),
    dataset=Source("hf://tatsu-lab/alpaca"),
)


def pairs(words: list[str]) -> dict[str, list[str]]:
    """Return flag → its words."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_the_first_texts_defaults_are_sent() -> None:
    config = TRLConfig()
    assert (config.trainer_type, config.bf16, config.fp16) == (TRLTrainerType.SFT, True, False)
    module, *words = config.to_args()
    assert module == "trl.scripts.sft"
    assert pairs(words) == {
        "--model_name_or_path": ["/workspace/model"],
        "--dataset_name": ["/workspace/dataset"],
        "--output_dir": ["/workspace/output"],
        "--learning_rate": ["2e-05"],
        "--num_train_epochs": ["3"],
        "--per_device_train_batch_size": ["4"],
        "--gradient_accumulation_steps": ["1"],
        "--bf16": [],
        "--use_peft": ["false"],
    }


def test_the_first_texts_sft_is_sent_by_todays_names() -> None:
    config = TRLConfig(
        trainer_type=TRLTrainerType.SFT,
        model_name_or_path="/workspace/model",
        peft_config=TRLPeftConfig(),
        sft_config=TRLSFTConfig(packing=True, dataset_text_field="text"),
    )
    config.validate()
    words = pairs(config.to_args()[1:])
    assert words["--max_length"] == ["2048"]
    assert "--max_seq_length" not in words
    assert (words["--packing"], words["--dataset_text_field"]) == ([], ["text"])
    assert (words["--use_peft"], words["--lora_r"], words["--lora_alpha"]) == ([], ["16"], ["32"])
    assert (words["--lora_dropout"], words["--lora_target_modules"]) == (["0.05"], ["q_proj", "v_proj"])
    # The first text has these two fields and never sends them.
    assert not {"--use_rslora", "--use_dora"} & set(words)
    words = pairs(TRLConfig(peft_config=TRLPeftConfig(use_rslora=True, use_dora=True)).to_args()[1:])
    assert (words["--use_rslora"], words["--use_dora"]) == ([], [])


def test_the_first_texts_dpo_is_sent_by_todays_names() -> None:
    config = TRLConfig(trainer_type=TRLTrainerType.DPO, dpo_config=TRLDPOConfig())
    config.validate()
    assert config.to_args()[0] == "trl.scripts.dpo"
    words = pairs(config.to_args()[1:])
    assert (words["--beta"], words["--max_length"], words["--loss_type"]) == (["0.1"], ["1024"], ["sigmoid"])
    assert "--max_prompt_length" not in words


def test_a_length_of_prompts_that_trl_no_longer_knows_is_not_dropped_in_silence() -> None:
    with pytest.warns(UserWarning, match="no --max_prompt_length, so it is not sent: .*filter"):
        TRLConfig(trainer_type=TRLTrainerType.DPO, dpo_config=TRLDPOConfig(max_prompt_length=256)).to_args()


def test_the_first_texts_positions_are_kept() -> None:
    adapter, flags = TRLPeftConfig(8), TRLDPOConfig(0.2, 512)
    given = TRLConfig(
        TRLTrainerType.DPO, "/m", 1e-6, 1, 2, 8, False, True, adapter, None, flags, 2, {"gpu": 1}, "/o"
    )  # fmt: skip
    given.validate()
    assert (given.num_nodes, given.resources_per_node, given.output_dir) == (2, {"gpu": 1}, "/o")
    words = pairs(given.to_args()[1:])
    assert (words["--bf16"], words["--fp16"], words["--beta"], words["--lora_r"]) == (["false"], [], ["0.2"], ["8"])


def test_the_first_texts_sub_configs_keep_their_positions_and_defaults() -> None:
    adapter = TRLPeftConfig(8, 16, 0.1, ["o_proj"], True, True)
    assert TRLConfig(peft_config=adapter).to_args()[-11:] == [
        *("--use_peft", "--lora_r", "8", "--lora_alpha", "16", "--lora_dropout", "0.1"),
        *("--lora_target_modules", "o_proj", "--use_rslora", "--use_dora"),
    ]
    sft = TRLSFTConfig(4096, True, "text")
    assert (sft.max_seq_length, sft.packing, sft.dataset_text_field) == (4096, True, "text")
    assert (TRLSFTConfig().max_seq_length, TRLSFTConfig().packing) == (2048, False)
    dpo = TRLDPOConfig(0.2, 2048, 256, "ipo")
    assert (dpo.beta, dpo.max_length, dpo.max_prompt_length, dpo.loss_type) == (0.2, 2048, 256, "ipo")
    dpo = TRLDPOConfig()
    assert (dpo.beta, dpo.max_length, dpo.max_prompt_length, dpo.loss_type) == (0.1, 1024, 512, "sigmoid")


def test_the_first_texts_names_of_the_placement_are_taken() -> None:
    assert TRLConfig(_num_nodes=2, _resources_per_node={"gpu": 1}).num_nodes == 2
    assert TorchTuneConfig(_num_nodes=3).num_nodes == 3
    assert TorchTuneConfig(DataType.BF16, 4, 3, None, 2, LoraConfig(), None, {"gpu": 1}).resources_per_node == {
        "gpu": 1
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TRLConfig(bf16=True, fp16=True), "bf16=False"),
        (TRLConfig(trainer_type=TRLTrainerType.DPO, sft_config=TRLSFTConfig()), "sft_config should not be set"),
        (TRLConfig(trainer_type=TRLTrainerType.SFT, dpo_config=TRLDPOConfig()), "dpo_config should not be set"),
    ],
)
def test_what_the_first_text_refuses_is_refused(config: TRLConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.validate()


def test_the_second_texts_names_and_examples() -> None:
    assert issubclass(TRLTrainer, ConfigTrainer)
    assert ConfigTrainer is LLMBackend
    sft = TRLTrainer(
        trainer_type=TRLTrainerType.SFT,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=2e-5,
        bf16=True,
        gradient_checkpointing=True,
        use_peft=True,
        lora_r=16,
        lora_alpha=32,
    )
    sft.validate()
    module, *words = sft.to_args(FETCHED)
    assert (module, words[:4]) == ("trl.scripts.sft", PLACES)
    flags = pairs(words)
    assert (flags["--gradient_checkpointing"], flags["--use_peft"], flags["--lora_r"]) == ([], [], ["16"])
    dpo = TRLTrainer(trainer_type=TRLTrainerType.DPO, learning_rate=1e-6, bf16=True)
    dpo.validate()
    assert dpo.to_args(FETCHED)[0] == "trl.scripts.dpo"
    assert (sft.get_train_func(), sft.get_train_func_args(), sft.supported_frameworks) == (None, None, ["trl"])
    assert sft.get_framework_args() == {"_config_args": sft.to_args()}


def test_the_second_texts_modules_are_parted_at_commas_and_extra_flags_come_last() -> None:
    config = TRLTrainer(
        use_peft=True, lora_r=8, lora_target_modules="q_proj, v_proj", extra_args={"warmup_steps": "10"}, num_nodes=2
    )
    config.validate()
    words = pairs(config.to_args()[1:])
    assert words["--lora_target_modules"] == ["q_proj", "v_proj"]
    assert config.to_args()[-2:] == ["--warmup_steps", "10"]


def test_an_extra_flag_stands_for_the_field_that_writes_it() -> None:
    config = TRLConfig(method=TRLSFTConfig(packing=True), learning_rate=1e-4, extra_args={"learning-rate": "2e-4"})
    config.validate()
    assert config.to_args() == ["trl.scripts.sft", "--packing", "--learning_rate", "2e-4"]
    config = TRLTrainer(peft_config=TRLPeftConfig(), extra_args={"lora_target_modules": "all-linear"})
    assert pairs(config.to_args()[1:])["--lora_target_modules"] == ["all-linear"]
    assert config.to_args().count("--lora_target_modules") == 1


def test_the_second_texts_torchtune() -> None:
    config = TorchTuneTrainer(epochs=3, batch_size=4, peft_config=LoraConfig(lora_rank=16, lora_alpha=32))
    config.validate()
    assert TorchTuneTrainer is TorchTuneConfig
    assert config.to_args(FETCHED) == [
        *("batch_size=4", "epochs=3", "dataset.data_dir=/workspace/dataset/.", "model.lora_rank=16"),
        *("model.lora_alpha=32", "model.lora_attn_modules=[q_proj,v_proj,output_proj]"),
    ]


def test_the_newest_texts_sft_sends_only_what_is_given() -> None:
    config = TRLConfig(method=TRLSFTConfig(packing=True), learning_rate=2e-5, num_nodes=2)
    config.validate()
    assert issubclass(TRLConfig, FrameworkConfig)
    assert (TRLConfig.framework, TRLConfig.command) == ("trl", ("torchrun", "-m"))
    assert config.to_args() == ["trl.scripts.sft", "--learning_rate", "2e-05", "--packing"]
    assert config.to_args(FETCHED) == ["trl.scripts.sft", *PLACES, "--learning_rate", "2e-05", "--packing"]
    assert (config.num_train_epochs, config.bf16, config.trainer_type) == (None, None, TRLTrainerType.SFT)


def test_a_class_after_the_second_text_names_its_frameworks() -> None:
    class Own(ConfigTrainer):
        supported_frameworks = ["own"]  # noqa: RUF012
        command = ("own", "run")

        def to_args(self, initializer: object = None) -> list[str]:
            return []

    assert (Own.framework, TRLTrainer.supported_frameworks) == ("own", ["trl"])
    assert TorchTuneTrainer.supported_frameworks == ["torchtune"]


def test_a_class_after_the_newest_text_takes_no_initializer() -> None:
    class Own(FrameworkConfig):
        framework = "own"
        command = ("own", "run")

        def to_args(self) -> list[str]:  # type: ignore[override]
            return ["--own"]

    assert Own().args_for(FETCHED) == ["--own"]
    job = manifests.trainjob(Own(num_nodes=2), "own", runtime="own", initializer=FETCHED)
    assert job["spec"]["trainer"] == {"numNodes": 2, "args": ["--own"]}


def test_the_newest_texts_grpo() -> None:
    config = TRLConfig(
        method=TRLGRPOConfig(beta=0.04, num_generations=8, reward_funcs=["think_format_reward"]),
        learning_rate=1e-6,
        num_nodes=2,
        resources_per_node={"gpu": 1},
    )
    config.validate()
    assert pairs(config.to_args()[1:]) == {
        "--learning_rate": ["1e-06"],
        "--beta": ["0.04"],
        "--reward_funcs": ["think_format_reward"],
        "--num_generations": ["8"],
    }


def test_the_newest_texts_dpo_takes_several_losses_and_no_default() -> None:
    config = TRLConfig(method=TRLDPOConfig(loss_type=["sigmoid", "bco_pair"], loss_weights=[0.8, 0.2]))
    config.validate()
    assert config.to_args() == [
        *("trl.scripts.dpo", "--loss_type", "sigmoid", "bco_pair", "--loss_weights", "0.8", "0.2"),
    ]


def test_a_flag_of_another_method_is_a_type_error_as_in_the_newest_text() -> None:
    with pytest.raises(TypeError, match="num_generations"):
        TRLSFTConfig(num_generations=8)  # type: ignore[call-arg]


def test_data_below_a_repository_is_found_where_the_initializer_puts_it() -> None:
    def data(address: str) -> str:
        config = TRLConfig(method="sft")
        return pairs(config.to_args(Initializer(dataset=Source(address)))[1:])["--dataset_name"][0]

    assert data("hf://trl-lib/tldr") == "/workspace/dataset"
    assert data("hf://trl-lib/tldr/data/en") == "/workspace/dataset/data/en"
    assert data("hf://trl-lib/tldr/data/train.parquet") == "/workspace/dataset/data"
    assert data("hf://datasets/trl-lib/tldr") == "/workspace/dataset"
    assert data("hf://trl-lib/tldr@refs/convert/parquet") == "/workspace/dataset"
    assert data("hf://trl-lib/tldr@refs/convert/parquet/en") == "/workspace/dataset/en"
    assert data("s3://bucket/some/where") == "/workspace/dataset"
