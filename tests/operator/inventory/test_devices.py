"""GPUs of ResourceSlices: which count, when, as what, and who has them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.errors import Unreadable
from archipelago.operator.inventory.devices import DeviceTable, read_claim, read_device_slice
from archipelago.operator.inventory.nodes import NodeTable, Shape, read_versioned
from archipelago.operator.resources.names import Key
from archipelago.planner.kubernetes.devices import NodeDevices
from archipelago.planner.kubernetes.nodes import Why
from tests.operator.inventory.test_cluster_inventory import World, plan
from tests.support.operator import devices
from tests.support.operator.devices import device_slice, gaudi, gpu, mi300x, mig, of_one_gpu, vfio
from tests.support.operator.nodes import H100, body

EIGHT = [gpu(i) for i in range(8)]
NO_PLUGIN = {"gpus": None}


def taken(*bodies: dict[str, Any]) -> DeviceTable:
    """A table that has taken in these slices."""
    table = DeviceTable()
    table.watched = True
    for each in bodies:
        if facts := read_device_slice(each):
            table.update(facts)
    return table


def shape(devices: DeviceTable, **state: Any) -> Shape:  # noqa: ANN401
    """What a node without labels of GPUs is."""
    table = NodeTable(devices=devices)
    table.update(*read_versioned(body("n", state.pop("labels", {}), **{**NO_PLUGIN, **state})))
    found = table.get("n")
    assert found
    return found.shape


@pytest.mark.parametrize(
    ("driver", "published", "accelerator", "whole", "parts", "why"),
    [
        (devices.NVIDIA, EIGHT, "H100", 8, {}, None),
        (devices.NVIDIA, [gpu(0, "NVIDIA A100-SXM4-40GB", "40Gi")], "A100-40GB", 1, {}, None),
        # A virtual GPU of a cloud that keeps the name of the card.
        (devices.NVIDIA, [gpu(0, memory="10Gi")], "", 1, {}, Why.UNKNOWN),
        (devices.NVIDIA, [gpu(0, "GRID A100-10C", "10Gi")], "", 1, {}, Why.UNKNOWN),
        (devices.NVIDIA, [gpu(0), gpu(1, "NVIDIA H200", "141Gi")], "", 2, {}, Why.UNKNOWN),
        # Static MIG: the slices are there, the GPU as a whole is not.
        (
            devices.NVIDIA,
            [mig(0, 0), mig(0, 1), mig(0, 2, "3g.40gb")],
            "",
            0,
            {"1g.10gb": 2, "3g.40gb": 1},
            Why.SLICED,
        ),
        # Dynamic MIG: each slice could be cut from the GPU, which counts once.
        (
            devices.NVIDIA,
            [of_one_gpu(gpu(0), 0), *(of_one_gpu(mig(0, i), 0) for i in range(7))],
            "H100",
            1,
            {},
            None,
        ),
        (devices.NVIDIA, [gpu(0), vfio(1)], "H100", 1, {}, None),
        (
            devices.NVIDIA,
            [gpu(0, allowMultipleAllocations=True)],
            "",
            0,
            {"shared GPU": 1},
            Why.SHARED,
        ),
        (devices.AMD, [mi300x(i) for i in range(8)], "MI300X", 8, {}, None),
        (
            devices.AMD,
            [mi300x(i, "amdgpu-partition", "cpx_nps4") for i in range(8)],
            "",
            0,
            {"cpx_nps4": 8},
            Why.SLICED,
        ),
        (devices.INTEL, [gaudi(0), gaudi(1)], "Gaudi3", 2, {}, None),
        (devices.INTEL, [gaudi(0, "Gaudi1")], "", 1, {}, Why.UNKNOWN),
    ],
)
def test_devices_that_projects_publish_are_counted_as_what_they_are(  # noqa: PLR0917
    driver: str,
    published: list[dict[str, Any]],
    accelerator: str,
    whole: int,
    parts: dict[str, int],
    why: Why | None,
) -> None:
    found = shape(taken(device_slice("n", published, driver=driver)))
    assert (found.accelerator, found.capacity_gpus, dict(found.parts)) == (
        accelerator,
        whole,
        parts,
    )
    assert found.permanent_reason is why
    assert found.up is (why is None)
    assert found.by_devices


def test_other_drivers_and_devices_of_no_single_node_count_nothing() -> None:
    network = device_slice("n", EIGHT, name="fabric")
    del network["spec"]["nodeName"]
    network["spec"]["allNodes"] = True
    example = device_slice("n", EIGHT, driver="gpu.example.com", name="example")
    assert taken(network, example).of("n") is None


@pytest.mark.parametrize(
    ("effects", "allocatable"), [(["NoSchedule"], 7), (["NoExecute"], 7), (["None"], 8), ([], 8)]
)
def test_a_tainted_device_is_built_in_but_not_allocatable(
    effects: list[str], allocatable: int
) -> None:
    taints = [{"key": "gpu.nvidia.com/xid", "effect": effect} for effect in effects]
    found = shape(taken(device_slice("n", [*EIGHT[:7], gpu(7, taints=taints)])))
    assert (found.capacity_gpus, found.allocatable_gpus) == (8, allocatable)


def test_gpus_that_a_device_plugin_offers_too_count_once_and_labels_alone_count_nothing() -> None:
    table = taken(device_slice("n", EIGHT))
    both = shape(table, labels=H100, gpus=8)
    assert (both.capacity_gpus, both.by_devices) == (8, False)
    # GPU Operator in DRA mode: feature discovery labels the node, and no plugin runs.
    labelled = shape(table, labels=H100)
    assert (labelled.accelerator, labelled.capacity_gpus, labelled.up) == ("H100", 8, True)
    assert shape(DeviceTable(), labels=H100).capacity_gpus == 0


def part(number: int, generation: int, version: int, gpus: int = 2) -> dict[str, Any]:
    """One of three slices of a pool, with so many GPUs."""
    found = [gpu(10 * number + i) for i in range(gpus)]
    name = f"g{generation}-{number}"
    return device_slice("n", found, version, name=name, generation=generation, count=3)


def test_a_generation_counts_once_all_its_slices_are_there() -> None:
    """A43: generations 4 and 5, slices 2 of 3 present: generation 5 only, and it is waited for."""
    old = [part(i, 4, i + 1) for i in range(3)]
    new = [part(i, 5, i + 11, gpus=3) for i in range(3)]
    assert taken(*old, *new[:2]).of("n") == NodeDevices("NVIDIA H100 80GB HBM3", 81559, 6, 6)
    # An operator that starts now knows nothing yet, in whatever order a list has them.
    listed = taken()
    listed.begin_list()
    for each in (*old, *new[:2]):
        facts = read_device_slice(each)
        assert facts
        assert listed.update(facts) == frozenset()
    names = {each["metadata"]["name"] for each in (*old, *new[:2])}
    assert listed.end_list(names, 20) == frozenset()
    assert listed.of("n") is None
    full = taken(*old, *new).of("n")
    assert full
    assert full.capacity == 9


def test_a_driver_that_restarts_takes_its_gpus_from_nobody() -> None:
    table = taken(device_slice("n", EIGHT, 1))
    assert table.delete("n-gpu.nvidia.com-4lpks", 2) == {"n"}
    gone = table.of("n")
    assert gone
    assert (gone.capacity, gone.allocatable) == (8, 0)
    table.forget("n")
    assert table.of("n") is None


SLICES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=30
)


@given(SLICES)
def test_generations_are_never_mixed(events: list[tuple[int, int, bool]]) -> None:
    """Generation g has g GPUs in each of its three slices, whatever comes or goes in what order."""
    table, present = taken(), set[tuple[int, int]]()
    for version, (generation, number, comes) in enumerate(events, 1):
        each = part(number, generation, version, gpus=generation)
        facts = read_device_slice(each)
        assert facts
        if comes:
            table.update(facts)
            present.add((generation, number))
        else:
            table.delete(facts.published.name, version)
            present.discard((generation, number))
        found = table.of("n")
        assert found is None or found.capacity in (3, 6, 9)
        newest = max((g for g, _ in present), default=0)
        if {(newest, n) for n in range(3)} <= present:
            assert found
            assert found.capacity == found.allocatable == 3 * newest


def test_the_memory_of_a_large_number_is_refused_or_read_but_raises_nothing() -> None:
    strange = gpu(0, memory="9" * 40)
    facts = read_device_slice(device_slice("n", [strange]))
    assert facts
    assert facts.published.devices[0].mebibytes == 0
    with pytest.raises(Unreadable, match="resourceSliceCount"):
        read_device_slice(device_slice("n", [], count=0))


class Devices(World):
    """An inventory that watches devices; its nodes have no device plugin."""

    def __init__(self) -> None:
        super().__init__()
        self.inventory.watch_devices(slices=True, claims=True)

    def publish(self, node: str, found: list[dict[str, Any]] = EIGHT, generation: int = 1) -> None:
        self.version += 1
        facts = read_device_slice(device_slice(node, found, self.version, generation=generation))
        assert facts
        self.inventory.update_slice(facts)

    def claim(self, name: str, node: str, *names: str, pod: str = "", admin: bool = False) -> None:
        self.version += 1
        made = devices.claim(name, node, names, self.version, pod=pod, admin=admin)
        if facts := read_claim(made):
            self.inventory.update_claim(facts)

    def begin(self, *names: str) -> None:
        """The first list: nodes without a plugin, after their slices."""
        for name in names:
            self.publish(name)
        self.inventory.begin_list()
        for name in names:
            self.node(name, **NO_PLUGIN)
        self.inventory.replace_nodes(set(names), self.version)


def test_nodes_count_whether_slices_come_before_or_after_them() -> None:
    world, chat = Devices(), plan()
    world.inventory.update_plan(chat)
    world.begin("a")
    assert world.count(chat) == 8
    world.node("b", **NO_PLUGIN)
    world.publish("b")
    world.run(100)
    assert world.count(chat) == 16
    assert "GPUs in use by pool: h100 16" in world.inventory.finding(chat).message


def test_a_new_generation_of_the_same_gpus_is_no_news_and_a_lost_gpu_is_one() -> None:
    world, chat = Devices(), plan()
    world.inventory.update_plan(chat)
    world.begin("a", "b")
    assert world.count(chat) == 16
    world.publish("a", generation=2)
    world.run(100)
    assert world.news == []
    world.publish("a", EIGHT[:7], generation=3)
    world.run(100)
    assert world.count(chat) == 8
    assert world.inventory.lost(("a", "b")) == frozenset()


def test_gpus_that_claims_of_others_have_are_not_free() -> None:
    world, chat = Devices(), plan(smallest_island=1)
    world.inventory.update_plan(chat)
    world.begin("a")
    assert world.count(chat) == 8
    world.pod("engine", "a", plan="chat", gpus=0)
    world.claim("ours", "a", "gpu-0", "gpu-1", pod="uid-engine")
    world.claim("admins", "a", "gpu-5", admin=True)
    world.run(100)
    assert world.count(chat) == 8
    world.claim("theirs", "a", "gpu-2", "gpu-3", pod="uid-foreign")
    world.run(100)
    assert world.count(chat) == 6
    world.inventory.delete_claim("uid-theirs", world.version + 1)
    world.run(100)
    assert world.count(chat) == 8


def test_a_claim_of_a_slice_takes_the_gpu_that_it_is_cut_from() -> None:
    world, chat = Devices(), plan(smallest_island=1)
    world.inventory.update_plan(chat)
    world.begin("a")
    cut = [of_one_gpu(gpu(i), i) for i in range(8)]
    world.publish("a", [*cut, of_one_gpu(mig(3, 0), 3)], generation=2)
    world.claim("theirs", "a", "gpu-3-mig-1g-10gb-0")
    world.run(100)
    assert world.count(chat) == 7


def test_a_claim_that_the_scheduler_made_for_requested_gpus_counts_once() -> None:
    """Extended resources by DRA (KEP-5004): the pod requests GPUs, and has a claim for them."""
    world, chat = Devices(), plan(smallest_island=1)
    world.inventory.update_plan(chat)
    world.begin("a")
    world.pod("foreign", "a", gpus=2)
    world.claim("for-foreign", "a", "gpu-0", "gpu-1", pod="uid-foreign")
    world.run(1000)
    assert world.count(chat) == 6


def test_the_condition_says_which_right_is_missing_and_what_is_left_out() -> None:
    world, chat = World(), plan()
    world.inventory.update_plan(chat)
    world.listed()
    assert "grant the operator to list and watch resourceslices.resource.k8s.io" in (
        world.inventory.finding(chat).message
    )
    seen = Devices()
    seen.inventory.watch_devices(slices=True, claims=False)
    seen.inventory.update_plan(chat)
    seen.begin("a")
    finding = seen.inventory.finding(chat)
    assert "resourceclaims.resource.k8s.io" in finding.message
    assert finding.status.value == "True"


def test_slices_are_named_with_their_number() -> None:
    world, chat = World(), plan()
    world.inventory.update_plan(chat)
    world.inventory.begin_list()
    world.node("whole")
    mixed = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}
    world.node("mixed", gpus=0, capacity=mixed, allocatable=mixed)
    single = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1c.2g.20gb"}
    world.node("single", single, gpus=56)
    world.node("time-sliced", {**H100, "nvidia.com/gpu.replicas": "4"}, gpus=32)
    world.inventory.replace_nodes({"whole", "mixed", "single", "time-sliced"}, world.version)
    assert world.count(chat) == 8
    assert world.inventory.finding(chat).message == (
        "GPUs in use by pool: h100 8; not counted, for they are no whole GPUs: 56 x 1c.2g.20gb, "
        "7 x 1g.10gb, 2 x 3g.40gb, 32 x shared GPU on 3 nodes (mixed, single, time-sliced)"
    )


def test_a_slice_of_the_catalogue_is_an_accelerator_that_a_pool_can_select() -> None:
    """Strategy single: the node offers slices as nvidia.com/gpu, under the name of the slice."""
    world, slices = World(), plan(accelerator="H100-MIG-3g.40gb", gpus_per_node=None)
    whole = plan(Key("team", "whole"))
    for each in (slices, whole):
        world.inventory.update_plan(each)
    world.inventory.begin_list()
    label = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"}
    world.node("cut", label, gpus=16)
    world.inventory.replace_nodes({"cut"}, world.version)
    assert (world.count(slices), world.count(whole)) == (16, 0)
    world.node("shared", {**label, "nvidia.com/gpu.replicas": "2"}, gpus=32)
    world.run(100)
    assert world.count(slices) == 16
