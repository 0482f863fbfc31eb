"""Configs through the real Kubeflow SDK, which talks HTTP to a stand-in for the Kubernetes API with real runtimes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubeflow import trainer as kubeflow
from kubeflow.trainer.backends.kubernetes import utils
from kubeflow.trainer.options import Labels
from kubeflow.trainer.options import kubernetes as options
from runner.tests.kubernetes_api import Api

from builders import kept, pod_of, renamed, replicated_jobs, variables
from stoker.backends import (
    DataFormat,
    DataType,
    Initializer,
    LLMBackend,
    LoraConfig,
    Loss,
    Source,
    TorchTuneConfig,
    TorchTuneInstructDataset,
    TRLConfig,
    TRLGRPOConfig,
    TRLSFTConfig,
)
from stoker.cluster.pods import quantity
from stoker.cluster.validate import validate_one
from stoker.submit import sdk
from stoker.submit import trainjob as manifests


def fetched() -> Any:
    """Return the SDK's initializer with a model and data of the Hub."""
    return kubeflow.Initializer(
        model=kubeflow.HuggingFaceModelInitializer(storage_uri="hf://Qwen/Qwen2.5-0.5B"),
        dataset=kubeflow.HuggingFaceDatasetInitializer(storage_uri="hf://trl-lib/Capybara"),
    )


SFT = TRLConfig(method=TRLSFTConfig(packing=True), learning_rate=2e-5, num_nodes=2, resources_per_node={"gpu": 1})
TUNE = TorchTuneConfig(
    dtype=DataType.BF16,
    epochs=1,
    loss=Loss.CEWithChunkedOutputLoss,
    peft_config=LoraConfig(lora_rank=8, quantize_base=True),
    dataset_preprocess_config=TorchTuneInstructDataset(source=DataFormat.PARQUET, column_map={"input": "q"}),
    resources_per_node={"gpu": 1},
)


def amounts(resources: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return resources as numbers, for the SDK turns 1 into 1.0."""
    return {kind: {name: quantity(str(amount)) for name, amount in of.items()} for kind, of in resources.items()}


def comparable(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a TrainJob's spec without what the SDK says of its own accord."""
    spec = deepcopy(spec)
    spec["runtimeRef"].pop("kind", None)
    # Patterns of files to leave out, which Trainer's initializer has by itself.
    for part in spec["initializer"].values():
        part.pop("env", None)
    spec["trainer"]["resourcesPerNode"] = amounts(spec["trainer"]["resourcesPerNode"])
    return spec


@pytest.mark.parametrize(("config", "name"), [(SFT, "trl-distributed"), (TUNE, "torchtune-llama3.2-1b")])
def test_the_sdk_submits_what_we_print(client: Any, api: Api, config: LLMBackend, name: str) -> None:
    client.train(**config.sdk(client, initializer=fetched(), name="run"))
    (submitted,) = api.submitted
    assert submitted["metadata"]["name"] == "run"
    assert submitted["spec"]["runtimeRef"]["name"] == name
    source = Initializer(model=Source("hf://Qwen/Qwen2.5-0.5B"), dataset=Source("hf://trl-lib/Capybara"))
    printed = manifests.trainjob(config, "run", runtime=name, initializer=source)
    assert comparable(submitted["spec"]) == comparable(printed["spec"])


def test_the_shorter_spelling_returns_the_name(client: Any, api: Api) -> None:
    name = sdk.train(
        SFT, client, initializer=fetched(), env={"STOKER_RESUME": "never"}, options=[Labels({"team": "nlp"})]
    )
    (submitted,) = api.submitted
    assert submitted["metadata"]["name"] == name
    assert submitted["metadata"]["labels"] == {"team": "nlp"}
    assert submitted["spec"]["trainer"]["env"] == [{"name": "STOKER_RESUME", "value": "never"}]
    assert submitted["spec"]["trainer"]["args"][0] == "trl.scripts.sft"
    # The runtime's own image and command run.
    assert not {"image", "command"} & set(submitted["spec"]["trainer"])


def test_a_runtime_is_found_by_its_label_not_by_its_command(client: Any, api: Api) -> None:
    own = renamed("somewhere", "trl")
    for job in replicated_jobs(own):
        for container in pod_of(job)["containers"]:
            container["command"] = ["tune", "run"]
    api.runtimes = [own, renamed("stoker-run", "torch")]
    assert SFT.sdk(client)["runtime"].name == "somewhere"


def test_of_several_runtimes_the_generic_one_is_taken(client: Any, api: Api) -> None:
    api.runtimes.append(renamed("trl-other", "trl"))
    assert SFT.sdk(client)["runtime"].name == "trl-distributed"


def test_an_ambiguous_choice_lists_the_runtimes(client: Any, api: Api) -> None:
    api.runtimes.append(renamed("torchtune-llama3.2-3b", "torchtune"))
    message = r"2 runtimes are labelled .*=torchtune: torchtune-llama3.2-1b, torchtune-llama3.2-3b; name one"
    with pytest.raises(ValueError, match=message):
        TUNE.sdk(client)
    assert TUNE.sdk(client, runtime="torchtune-llama3.2-3b")["runtime"].name == "torchtune-llama3.2-3b"


def test_a_runtime_that_the_sdk_cannot_read_does_not_stand_in_the_way_of_a_named_one(client: Any, api: Api) -> None:
    unread = renamed("own", "torch")
    for job in replicated_jobs(unread):
        for container in pod_of(job)["containers"]:
            container["resources"] = {"limits": {"memory": "1Gi"}}
    api.runtimes.append(unread)
    with pytest.raises(ValueError, match=r"cannot list the runtimes: Unknown device type .*; name one"):
        SFT.sdk(client)
    assert SFT.sdk(client, runtime="trl-distributed")["runtime"].name == "trl-distributed"


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("torchtune-distributed", TUNE, "'torchtune-distributed' names none: leave out the command, or choose one"),
        ("torchtune-llama3.2-1b", TorchTuneConfig(num_nodes=2), "numNodes is 2, but Trainer accepts `tune run`"),
        ("torchtune-qwen2.5-1.5b", TUNE, "refuses QLoRA with `tune run` for qwen2_5/1.5B"),
    ],
)
def test_what_trainer_refuses_of_torchtune_is_told_before(
    client: Any, api: Api, name: str, config: TorchTuneConfig, message: str
) -> None:
    api.runtimes = [renamed(name, "torchtune")]
    with pytest.raises(ValueError, match=message):
        config.sdk(client)


def test_no_runtime_for_a_framework_lists_what_there_is(client: Any, api: Api) -> None:
    api.runtimes = [renamed("torch-distributed", "torch")]
    with pytest.raises(ValueError, match=r"no runtime is labelled .*=trl: .* torch-distributed \(torch\)"):
        SFT.sdk(client)


def test_a_runtime_of_another_framework_is_refused(client: Any, api: Api) -> None:
    with pytest.raises(ValueError, match=r"torch-distributed is labelled .*=torch, but TRLConfig is for trl"):
        SFT.sdk(client, runtime="torch-distributed")
    with pytest.raises(ValueError, match="is for torchtune"):
        TUNE.sdk(client, runtime="trl-distributed")


def test_what_cannot_be_meant_is_refused_before_anything_is_submitted(client: Any, api: Api) -> None:
    with pytest.raises(ValueError, match="needs reward_funcs"):
        sdk.train(TRLConfig(method=TRLGRPOConfig()), client)
    with pytest.raises(ValueError, match="env cannot be set"):
        sdk.train(TUNE, client, env={"A": "1"})
    assert api.submitted == []


def test_a_backend_that_sends_its_command(client: Any, api: Api) -> None:
    class Own(LLMBackend):
        framework: ClassVar[str] = "torch"
        command: ClassVar[tuple[str, ...]] = ("python", "-m", "own")

        def command_on(self, runtime: str) -> tuple[str, ...]:
            return self.command

        def to_args(self, initializer: object = None) -> list[str]:
            return ["--own"]

    Own(num_nodes=2).validate()
    sdk.train(Own(num_nodes=2), client)
    (submitted,) = api.submitted
    assert submitted["spec"]["trainer"] == {"numNodes": 2, "command": ["python", "-m", "own"], "args": ["--own"]}


def test_resources_are_named_as_the_sdk_names_them() -> None:
    asked = {"GPU": 2, "cpu": 4, "Memory": "8Gi", "storage": "1Gi", "example.com/Own": 1}
    theirs = utils.get_resources_per_node(asked).to_dict()
    assert amounts(manifests.resources(asked)) == amounts(theirs)
    assert set(manifests.resources({"MIG-1g.5gb": 1})["limits"]) == {"nvidia.com/mig-1g.5gb"}


WORDS = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="-_."), min_size=1, max_size=8)
COUNTS = st.none() | st.integers(0, 64)
FLAGS = st.none() | st.booleans()


@st.composite
def torchtune_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Return the values of a TorchTune config, in our types."""
    modules = st.lists(st.sampled_from(["q_proj", "k_proj", "v_proj", "output_proj"]), unique=True)
    lora = st.builds(
        LoraConfig,
        apply_lora_to_mlp=FLAGS,
        apply_lora_to_output=FLAGS,
        lora_attn_modules=modules,
        lora_rank=COUNTS,
        lora_alpha=COUNTS,
        lora_dropout=st.none() | st.floats(0, 1),
        quantize_base=FLAGS,
        use_dora=FLAGS,
    )
    data = st.builds(
        TorchTuneInstructDataset,
        source=st.none() | st.sampled_from(DataFormat),
        split=st.none() | st.text(max_size=12),
        train_on_input=FLAGS,
        new_system_prompt=st.none() | st.text(max_size=12),
        column_map=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    )
    return {
        "dtype": draw(st.none() | st.sampled_from(DataType)),
        "batch_size": draw(COUNTS),
        "epochs": draw(COUNTS),
        "loss": draw(st.none() | st.sampled_from(Loss)),
        "num_nodes": draw(st.none() | st.integers(1, 4)),
        "peft_config": draw(st.none() | lora),
        "dataset_preprocess_config": draw(st.none() | data),
        "resources_per_node": draw(st.none() | st.just({"gpu": 1})),
    }


ADDRESSES = st.builds(
    lambda scheme, parts: scheme + "/".join(parts),
    st.sampled_from(["hf://", ""]),
    st.lists(WORDS | st.just(""), min_size=1, max_size=6),
)


@given(values=torchtune_configs(), address=st.none() | ADDRESSES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_torchtunes_arguments_are_the_sdks_in_their_order(values: dict[str, Any], address: str | None) -> None:
    ours = TorchTuneConfig(**values)
    theirs: Any = sdk._builtin_config(ours, kubeflow)
    assert type(theirs) is kubeflow.TorchTuneConfig
    assert (theirs.num_nodes, theirs.resources_per_node) == (values["num_nodes"], values["resources_per_node"])
    dataset = kubeflow.HuggingFaceDatasetInitializer(storage_uri=address) if address is not None else None
    initializer = kubeflow.Initializer(dataset=dataset)
    assert ours.to_args(initializer) == utils.get_args_using_torchtune_config(theirs, initializer)
    assert ours.to_args() == utils.get_args_using_torchtune_config(theirs)
    # The SDK's own types stand for ours.
    given: dict[str, Any] = vars(theirs)
    assert TorchTuneConfig(**given).to_args() == ours.to_args()


def test_torchtunes_fields_are_the_sdks_in_their_order() -> None:
    ours = TorchTuneConfig(DataType.FP32, 1, 2, Loss.CEWithChunkedOutputLoss, 3, None, None, {"gpu": 1})
    theirs = kubeflow.TorchTuneConfig(
        kubeflow.DataType.FP32, 1, 2, kubeflow.Loss.CEWithChunkedOutputLoss, 3, None, None, {"gpu": 1}
    )
    assert sdk._builtin_config(ours, kubeflow) == theirs


@pytest.mark.parametrize("name", ["Loss", "DataType", "DataFormat"])
def test_torchtunes_choices_are_the_sdks(name: str) -> None:
    ours = {item.name: item.value for item in {"Loss": Loss, "DataType": DataType, "DataFormat": DataFormat}[name]}
    assert ours == {item.name: item.value for item in getattr(kubeflow, name)}


def test_data_from_a_bucket_leaves_the_recipes_data_alone() -> None:
    initializer = kubeflow.Initializer(dataset=kubeflow.S3DatasetInitializer(storage_uri="s3://bucket/data"))
    theirs = utils.get_args_using_torchtune_config(kubeflow.TorchTuneConfig(epochs=1), initializer)
    assert TorchTuneConfig(epochs=1).to_args(initializer) == theirs == ["epochs=1"]


def test_a_config_says_how_to_shard(client: Any, api: Api) -> None:
    sdk.train(TRLConfig(method="sft", sharding="full"), client, env={"A": "1"})
    (submitted,) = api.submitted
    assert submitted["spec"]["trainer"]["env"] == variables({"STOKER_SHARDING": "full", "A": "1"})
    with pytest.raises(ValueError, match="STOKER_SHARDING is 'none', but the config says 'full'"):
        TRLConfig(method="sft", sharding="full").sdk(client, env={"STOKER_SHARDING": "none"})


def grace_patch(seconds: int, job: str = "node") -> Any:
    """Return the SDK's patch of a grace period, for which its own classes have no field."""
    pod: Any = {"spec": {"terminationGracePeriodSeconds": seconds}}
    patched = options.ReplicatedJobPatch(job, options.JobTemplatePatch(spec=options.JobSpecPatch(template=pod)))
    template = options.JobSetTemplatePatch(spec=options.JobSetSpecPatch(replicated_jobs=[patched]))
    return options.RuntimePatch(options.TrainingRuntimeSpecPatch(template=template))


def test_the_runner_is_told_of_a_patched_grace_period(client: Any, api: Api) -> None:
    sdk.train(SFT, client, env={"A": "1"}, options=[grace_patch(20), grace_patch(5, "dataset-initializer")])
    (submitted,) = api.submitted
    assert {"name": "STOKER_GRACE_PERIOD_SECONDS", "value": "20"} in submitted["spec"]["trainer"]["env"]
    verdict = validate_one(
        submitted, kept(next(one for one in api.runtimes if one["metadata"]["name"] == "trl-distributed"))
    )
    assert "to stop" not in f"{verdict.errors}{verdict.notices}"


def test_a_patched_grace_period_shorter_than_what_the_runner_is_told_is_refused(client: Any, api: Api) -> None:
    with pytest.raises(ValueError, match=r'add \{name: STOKER_GRACE_PERIOD_SECONDS, value: "20"\}'):
        SFT.sdk(client, env={"STOKER_GRACE_PERIOD_SECONDS": "21"}, options=[grace_patch(20)])
    with pytest.raises(ValueError, match="BuiltinTrainer, which runs torchtune, has no env to tell the runner in"):
        TUNE.sdk(client, options=[grace_patch(20)])
