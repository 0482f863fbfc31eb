"""How many processes a run has is decided from what Trainer, the runtime and the command say, or refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from runner.tests.samples import alone, pod

from stoker.plan.facts import Facts
from stoker.plan.world import World, resolve_world

GPUS = ("nvidia0", "nvidia1", "nvidia2", "nvidia3")
NVIDIA = {"STOKER_ACCELERATOR": "nvidia"}


def test_a_container_that_was_told_nothing_is_one_process_that_meets_itself() -> None:
    world = resolve_world(alone())
    assert (world.size, world.node_rank, world.master_addr, world.problems) == (1, 0, "127.0.0.1", ())


def test_two_nodes_meet_where_trainer_says() -> None:
    world = resolve_world(pod({"PET_NODE_RANK": "1"}))
    assert (world.nnodes, world.node_rank, world.master_addr, world.master_port) == (2, 1, "sft-node-0-0.sft", 29500)
    assert world.problems == ()


@pytest.mark.parametrize(
    ("env", "devices", "expected", "noticed"),
    [
        # Trainer writes 1 or the CPU request where nobody asked; a profile knows better.
        ({"PET_NPROC_PER_NODE": "4", "STOKER_CPU_REQUEST": "4", "STOKER_NPROC_PER_NODE": "1"}, (), 1, True),
        ({"PET_NPROC_PER_NODE": "1", "STOKER_NPROC_PER_NODE": "2", **NVIDIA}, GPUS, 2, True),
        ({"PET_NPROC_PER_NODE": "auto", "STOKER_NPROC_PER_NODE": "2", **NVIDIA}, GPUS[:2], 2, False),
        ({"PET_NPROC_PER_NODE": "", "STOKER_NPROC_PER_NODE": "2", **NVIDIA}, GPUS[:2], 2, False),
        ({"PET_NPROC_PER_NODE": "8", "STOKER_CPU_LIMIT": "8", "STOKER_NPROC_PER_NODE": "1"}, (), 8, True),
        # Any other number was asked for.
        ({"PET_NPROC_PER_NODE": "3", "STOKER_CPU_REQUEST": "4", "STOKER_NPROC_PER_NODE": "1"}, (), 3, True),
        ({"PET_NPROC_PER_NODE": "2", "STOKER_NPROC_PER_NODE": "2"}, (), 2, False),
        # Without a profile and without devices, Trainer's word counts, even where it is the CPU count.
        ({"PET_NPROC_PER_NODE": "4", "STOKER_CPU_REQUEST": "4"}, (), 4, False),
        ({"PET_NPROC_PER_NODE": "4", "STOKER_CPU_REQUEST": "4", "STOKER_ACCELERATOR": "cpu"}, (), 4, False),
        # Where there are devices, each has a process unless somebody asked for another number.
        ({"PET_NPROC_PER_NODE": "1", **NVIDIA}, GPUS, 4, True),
        ({"PET_NPROC_PER_NODE": "1"}, GPUS, 4, True),
        ({"PET_NPROC_PER_NODE": "1", "STOKER_ACCELERATOR": "tpu"}, ("accel0", "accel1"), 2, True),
        ({"PET_NPROC_PER_NODE": "2", "STOKER_CPU_REQUEST": "2", **NVIDIA}, GPUS, 4, True),
        ({"PET_NPROC_PER_NODE": "16", "STOKER_CPU_REQUEST": "16", **NVIDIA}, GPUS, 4, True),
        ({"PET_NPROC_PER_NODE": "16", "STOKER_CPU_REQUEST": "8", "STOKER_CPU_LIMIT": "16", **NVIDIA}, GPUS, 4, True),
        ({"PET_NPROC_PER_NODE": "1", **NVIDIA}, GPUS[:1], 1, False),
        ({"PET_NPROC_PER_NODE": "4", "STOKER_CPU_REQUEST": "4", **NVIDIA}, GPUS, 4, False),
        ({"PET_NPROC_PER_NODE": "2", "STOKER_CPU_REQUEST": "8", **NVIDIA}, GPUS, 2, True),
        ({"PET_NPROC_PER_NODE": "1", "STOKER_NPROC_PER_NODE": "1", **NVIDIA}, GPUS[:1], 1, False),
        ({"PET_NPROC_PER_NODE": "4", "STOKER_CPU_REQUEST": "4", "STOKER_NPROC_PER_NODE": "2", **NVIDIA}, GPUS, 2, True),
        # auto counts devices, never CPUs.
        ({"PET_NPROC_PER_NODE": "auto", **NVIDIA}, GPUS, 4, False),
        ({"PET_NPROC_PER_NODE": "gpu", **NVIDIA}, GPUS[:2], 2, False),
        ({"PET_NPROC_PER_NODE": "auto", "STOKER_NPROC_PER_NODE": "auto", **NVIDIA}, GPUS, 4, False),
        ({"PET_NPROC_PER_NODE": "auto"}, (), 1, False),
    ],
    ids=[
        "the CPU count gives way to the profile",
        "1 gives way to the profile",
        "auto gives way to the profile",
        "nothing gives way to the profile",
        "the CPU limit on a runtime for CPUs wins over the profile",
        "a number of the user's wins over the profile",
        "agreement needs no notice",
        "the CPU count without a profile",
        "the CPU count on a runtime for CPUs",
        "1 gives way to the devices",
        "1 gives way to devices that no runtime told of",
        "1 gives way to TPU chips",
        "a low CPU count gives way to the devices",
        "a high CPU count gives way to the devices",
        "the CPU limit gives way to the devices",
        "1 on one device",
        "the CPU count is the number of devices",
        "a number of the user's wins over the devices",
        "the variable and Trainer's 1 agree",
        "the variable wins over the devices",
        "auto with four devices",
        "gpu with two devices",
        "a profile of auto",
        "auto on CPU",
    ],
)
def test_processes_per_node(env: Mapping[str, str], devices: tuple[str, ...], expected: int, noticed: bool) -> None:
    world = resolve_world(pod(env, devices))
    assert world.problems == ()
    assert world.nproc_per_node == expected
    assert bool(world.notices) == noticed


@pytest.mark.parametrize(
    ("env", "options", "notice"),
    [
        (
            {"PET_NPROC_PER_NODE": "1"},
            {},
            (
                "using 4 processes per node, one per nvidia device, not 1 (PET_NPROC_PER_NODE), which looks like "
                "Trainer's default: if you want 1, set STOKER_NPROC_PER_NODE in spec.trainer.env"
            ),
        ),
        (
            {"PET_NPROC_PER_NODE": "3"},
            {},
            (
                "3 processes per node (PET_NPROC_PER_NODE) leave 1 of the 4 nvidia devices of this container idle: "
                "use 4 processes, or request 3 in resourcesPerNode"
            ),
        ),
        (
            {"PET_NPROC_PER_NODE": "auto", "STOKER_NPROC_PER_NODE": "1"},
            {},
            (
                "1 process per node (STOKER_NPROC_PER_NODE) leaves 3 of the 4 nvidia devices of this container idle: "
                "use 4 processes, or request 1 in resourcesPerNode"
            ),
        ),
        (
            {"PET_NPROC_PER_NODE": "1"},
            {"nproc_per_node": "2"},
            (
                "2 processes per node (command) leave 2 of the 4 nvidia devices of this container idle: "
                "use 4 processes, or request 2 in resourcesPerNode"
            ),
        ),
    ],
    ids=["Trainer's 1", "the user's number", "the runtime's number", "the command's number"],
)
def test_no_device_is_left_out_in_silence(env: Mapping[str, str], options: Mapping[str, str], notice: str) -> None:
    world = resolve_world(pod({**NVIDIA, **env}, GPUS), options)
    assert (world.notices, world.problems) == ((notice,), ())


@pytest.mark.parametrize("processes", ["1", "16", "auto"])
def test_without_the_promised_devices_no_number_of_processes_is_to_blame(processes: str) -> None:
    told = {"PET_NPROC_PER_NODE": processes, "STOKER_CPU_REQUEST": "16", **NVIDIA}
    world = resolve_world(pod(told))
    assert world.notices == ()
    assert [problem.partition(":")[0] for problem in world.problems] == [
        "the runtime is for nvidia, but this container sees no such device"
    ]


def problems_of(facts: Facts, options: Mapping[str, str] | None = None) -> str:
    world: World = resolve_world(facts, options)
    return "\n".join(world.problems)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK is not set, but this run has several nodes"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR is not set, but this run has several nodes"),
        ({"PET_NODE_RANK": "2"}, "node_rank is 2, but the run has 2 nodes: write a number from 0 to 1"),
        ({"PET_NNODES": "two"}, "nnodes is 'two' (PET_NNODES)"),
        ({"PET_NNODES": "0"}, "nnodes is '0' (PET_NNODES)"),
        ({"PET_NNODES": "1:2"}, "nnodes is '1:2' (PET_NNODES)"),
        ({"PET_NNODES": "1000000000"}, "from 1 to 100000"),
        ({"PET_NNODES": "9" * 5000}, "from 1 to 100000"),
        ({"PET_MASTER_PORT": "70000"}, "master_port is '70000' (PET_MASTER_PORT)"),
        ({"PET_NPROC_PER_NODE": "many"}, "nproc_per_node is 'many' (PET_NPROC_PER_NODE)"),
        ({"PET_NPROC_PER_NODE": "0"}, "write auto or a whole number"),
        ({"PET_NPROC_PER_NODE": "8", **NVIDIA}, "8 processes per node (PET_NPROC_PER_NODE) need 8 nvidia devices"),
        ({"PET_NPROC_PER_NODE": "auto", **NVIDIA}, "this container sees no such device"),
    ],
)
def test_what_cannot_work_is_refused_by_name(env: Mapping[str, str], expected: str) -> None:
    assert expected in problems_of(pod(env))


def test_a_pod_that_trainer_told_nothing_does_not_train_alone() -> None:
    assert "PET_NNODES is not set, so this pod, number 1 of its job, would train alone" in problems_of(
        alone({"JOB_COMPLETION_INDEX": "1"})
    )
    assert problems_of(alone({"JOB_COMPLETION_INDEX": "0"})) == ""


def test_a_command_that_contradicts_the_trainjob_is_refused() -> None:
    said = problems_of(pod(), {"nnodes": "4"})
    assert "the command says --nnodes=4 but the TrainJob says 2 (PET_NNODES)" in said


def test_a_command_may_repeat_the_trainjob_and_name_its_own_number_of_processes() -> None:
    world = resolve_world(pod({"STOKER_NPROC_PER_NODE": "1"}), {"nnodes": "2", "nproc_per_node": "2"})
    assert (world.size, world.problems, world.notices) == (4, (), ())


def test_a_command_with_another_number_of_processes_than_the_trainjob_is_told_of() -> None:
    world = resolve_world(pod({"PET_NPROC_PER_NODE": "4"}), {"nproc_per_node": "2"})
    assert world.size == 4
    assert world.notices == ("using the command's 2 processes per node, not 4 (PET_NPROC_PER_NODE)",)


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("sft-node-0-0.sft", ("sft-node-0-0.sft", "sft-node-0-1.sft")),
        ("sft-node-0-0.sft.team.svc.cluster.local", None),
        ("10-0-0-0.pods.local", ()),
        ("127.0.0.1", ()),
        ("trainer", ()),
        ("trainer-5.jobs", ()),
    ],
    ids=["JobSet's name", "a longer domain", "an address", "loopback", "no domain", "no name of node 0"],
)
def test_names_of_the_peers_follow_from_node_0s(address: str, names: tuple[str, ...] | None) -> None:
    peers = resolve_world(pod({"PET_MASTER_ADDR": address})).peers()
    expected = (address, address.replace("-0.", "-1.", 1)) if names is None else names
    assert peers == expected


def test_one_node_has_no_peers_to_wait_for() -> None:
    assert resolve_world(pod({"PET_NNODES": "1"})).peers() == ()
