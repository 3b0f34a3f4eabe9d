"""From a node list to pools: nothing is guessed, and nothing is dropped without a word."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.planner.documents import Node
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.kubernetes.nodes import Why, accelerator_of, count, products, read_node
from archipelago.planner.kubernetes.pools import LeftOut, read_nodes
from archipelago.planner.servingplan import load_resource, to_problem
from tests.support.planner.command import Runner

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
CLIQUE, ZONE = "nvidia.com/gpu.clique", "topology.kubernetes.io/zone"


def node(
    name: str,
    labels: dict[str, str] | None = None,
    gpus: int | None = 8,
    *,
    ready: str = "True",
    cordoned: bool = False,
    allocatable: dict[str, str] | None = None,
    capacity: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A node as the API server sends it, cut to what counts."""
    stock = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "capacity": {"cpu": "96", "memory": "1056270380Ki", **stock, **(capacity or {})},
            "allocatable": {"cpu": "95", **stock, **(capacity or {}), **(allocatable or {})},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": ready},
            ],
        },
    }


def nodes(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def test_nodes_of_one_accelerator_are_one_pool() -> None:
    found = read_nodes(nodes(node("n1", H100), node("n2", H100), node("cpu", gpus=None)))
    assert found.pools == ({"name": "h100", "accelerator": "H100", "count": 16, "gpusPerNode": 8},)
    assert (found.left_out, found.partly, found.without_gpus) == ((), (), 1)


def test_nodes_of_two_sizes_are_two_pools() -> None:
    found = read_nodes(nodes(node("n1", H100), node("n2", H100, 4)))
    assert [(p["name"], p["count"], p["gpusPerNode"]) for p in found.pools] == [
        ("h100-x4", 4, 4),
        ("h100-x8", 8, 8),
    ]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (H100, "H100"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}, "A100-40GB"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe"}, "A100-PCIe-80GB"),
        (
            {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"},
            "RTX-PRO-6000",
        ),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "MI300X"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}, "H200"),
        ({"karpenter.k8s.aws/instance-gpu-name": "l40s"}, "L40S"),
        (
            {
                "karpenter.k8s.aws/instance-gpu-name": "a100",
                "karpenter.k8s.aws/instance-gpu-memory": "40960",
            },
            "A100-40GB",
        ),
    ],
)
def test_products_are_found_by_the_labels_of_their_vendors(
    labels: dict[str, str], expected: str
) -> None:
    (pool,) = read_nodes(nodes(node("n", labels))).pools
    assert pool["accelerator"] == expected


def test_every_product_of_the_table_is_in_the_catalogue() -> None:
    table = products()
    names = {
        *(name for names in table["products"].values() for name in names),
        *(name for names in table["machines"].values() for name in names),
    }
    assert [name for name in sorted(names) if accelerator(name).name != name] == []


@pytest.mark.parametrize(
    ("bad", "why", "detail"),
    [
        (node("n", H100, cordoned=True), Why.CORDONED, ""),
        (node("n", H100, ready="Unknown"), Why.NOT_READY, ""),
        (
            node("n", H100, None, capacity={"nvidia.com/mig-1g.10gb": "7"}),
            Why.SLICED,
            "nvidia.com/mig-1g.10gb",
        ),
        (
            node("n", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.5gb"}),
            Why.SLICED,  # an H100 has no such slice
            "NVIDIA-H100-80GB-HBM3-MIG-1g.5gb",
        ),
        (node("n", {"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}), Why.SHARED, "NVIDIA-L4-SHARED"),
        (
            node("n", {**H100, "nvidia.com/gpu.sharing-strategy": "time-slicing"}),
            Why.SHARED,
            "time-slicing",
        ),
        (
            node("n", {"nvidia.com/gpu.product": "NVIDIA-H800-NVL"}),
            Why.UNKNOWN,
            "nvidia.com/gpu.product=NVIDIA-H800-NVL",
        ),
        (
            node("n", {"karpenter.k8s.aws/instance-gpu-name": "a100"}),  # 40 or 80 GB?
            Why.UNKNOWN,
            "karpenter.k8s.aws/instance-gpu-name=a100",
        ),
        (node("n"), Why.NO_PRODUCT, ""),
        (node("n", gpus=None, capacity={"habana.ai/gaudi": "8"}), Why.NO_PRODUCT, ""),
        (node("n", H100, None), Why.NO_GPUS, ""),  # its device plugin does not run
        (node("n", H100, allocatable={"nvidia.com/gpu": "0"}), Why.NO_GPUS, ""),
    ],
)
def test_what_cannot_be_used_is_left_out_with_the_reason(
    bad: dict[str, Any], why: Why, detail: str
) -> None:
    found = read_nodes(nodes(bad))
    assert found.left_out == (LeftOut("n", why, detail),)
    assert found.pools == ()


def test_a_node_with_broken_gpus_counts_what_is_left_and_says_so() -> None:
    found = read_nodes(nodes(node("n", H100, allocatable={"nvidia.com/gpu": "7"})))
    assert (found.pools[0]["count"], found.pools[0]["gpusPerNode"]) == (7, 7)
    assert found.partly == ("n: 7 of 8 GPUs are allocatable",)


def test_domains_are_the_cliques_else_the_zones() -> None:
    """A clique is an NVLink domain, closer than a zone; one domain alone says nothing."""
    a, b = {**H100, ZONE: "eu-1a"}, {**H100, ZONE: "eu-1b"}
    by_zone = read_nodes(nodes(node("n1", a), node("n2", b), node("n3", b))).pools[0]
    assert by_zone["domains"] == [{"name": "eu-1a", "nodes": 1}, {"name": "eu-1b", "nodes": 2}]
    cliques = [{**a, CLIQUE: f"7B9F-11.{i}"} for i in (0, 1)]
    by_clique = read_nodes(nodes(*(node(f"n{i}", c) for i, c in enumerate(cliques)))).pools[0]
    assert [d["name"] for d in by_clique["domains"]] == ["7b9f-11-0", "7b9f-11-1"]
    assert "domains" not in read_nodes(nodes(node("n1", a), node("n2", a))).pools[0]
    assert "domains" not in read_nodes(nodes(node("n1", a), node("n2", H100))).pools[0]


def test_domains_that_would_have_one_name_get_two() -> None:
    labels = [{**H100, CLIQUE: text} for text in ("rack.1", "rack-1", "r" * 80)]
    pool = read_nodes(nodes(*(node(f"n{i}", c) for i, c in enumerate(labels)))).pools[0]
    names = [domain["name"] for domain in pool["domains"]]
    assert len({*names}) == 3
    assert max(map(len, names)) <= 63


def test_what_is_no_node_list_is_refused() -> None:
    with pytest.raises(PlanFileError, match="items: missing"):
        read_nodes({"kind": "Node"})
    with pytest.raises(InputError, match="'Pod' is no Node"):
        read_nodes(nodes({"kind": "Pod", "metadata": {"name": "p"}, "status": {}}))


def listed(tmp_path: Path, *items: dict[str, Any]) -> Path:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(nodes(*items)))
    return path


def test_pools_on_standard_output_and_the_rest_on_the_error_stream(
    run: Runner, tmp_path: Path
) -> None:
    path = listed(tmp_path, node("n1", H100), node("n2", H100, cordoned=True))
    result = run("pools", "-f", path)
    assert result.status == 0
    assert yaml.safe_load(result.out) == {
        "pools": [{"name": "h100", "accelerator": "H100", "count": 8, "gpusPerNode": 8}]
    }
    assert "left out n2: cordoned\n" in result.err
    assert "8 GPUs in 1 pools; 1 nodes with GPUs left out; 0 nodes have none\n" in result.err


def test_an_unknown_product_is_named_and_exits_1(run: Runner, tmp_path: Path) -> None:
    odd = {"nvidia.com/gpu.product": "NVIDIA-X1\x1b[2J"}
    result = run("pools", "-f", listed(tmp_path, node("n1", H100), node("n2", odd)))
    assert result.status == 1
    assert "left out n2: unknown product (nvidia.com/gpu.product=NVIDIA-X1\\x1b[2J)" in result.err
    assert yaml.safe_load(result.out)["pools"][0]["count"] == 8


def test_no_pool_at_all_exits_2(run: Runner, tmp_path: Path) -> None:
    result = run("pools", "-f", listed(tmp_path, node("cpu", gpus=None)))
    assert (result.status, result.out) == (2, "")
    assert "no node has GPUs that can be used" in result.err


def test_from_nodes_to_a_plan_in_one_pipe(run: Runner, tmp_path: Path) -> None:
    path = listed(tmp_path, node("n1", H100), node("n2", H100))
    made = run("pools", "-f", "-", "--model", "llama-3.1-8b", stdin=path.read_text())
    assert made.status == 0
    assert "lengths are assumed" in made.err
    resource = load_resource(made.out)
    assert to_problem("p", resource.spec).pools[0].count == 16
    planned = run("plan", "-f", "-", "-q", stdin=made.out)
    assert planned.status == 0
    assert "16 of 16" in planned.out


CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "node-labels.yaml").read_text()
)
KINDS = ("gfd", "sharing", "karpenter", "gke", "aks", "amd", "k8s")


def recorded(case: dict[str, Any]) -> dict[str, Any]:
    """A node with those labels."""
    found = node(
        "n",
        case["labels"],
        None,
        ready=case.get("ready", "True"),
        capacity=case["stock"],
        allocatable=case.get("allocatable"),
    )
    return found | {"spec": case.get("spec", {})}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_every_recorded_label_set_is_read_as_it_is_meant(case: dict[str, Any]) -> None:
    seen, expected = read_node(Node(recorded(case))), case["expect"]
    if expected == "nothing":
        assert not seen.has_gpus
        return
    assert seen.has_gpus
    if "why" in expected:
        assert seen.unusable() == (Why[expected["why"]], expected.get("detail", ""))
    else:
        assert seen.unusable() is None
        assert (seen.accelerator, seen.allocatable_gpus) == (
            expected["accelerator"],
            expected["gpus"],
        )


def test_the_table_has_every_kind_of_cluster_and_every_reason() -> None:
    """At least the twelve of A41; a reason that no label set shows has never been seen to work."""
    assert len(CASES) >= 12
    assert {case["source"] for case in CASES} == set(KINDS)
    reasons = {Why[c["expect"]["why"]] for c in CASES if "why" in c["expect"]}
    assert reasons == set(Why)


def test_labels_of_two_tools_that_disagree_on_the_memory_decide_nothing() -> None:
    """One name for 40 and 80 GB, and two labels for the size: neither is believed."""
    labels = {
        "karpenter.k8s.aws/instance-gpu-name": "a100",
        "karpenter.k8s.aws/instance-gpu-memory": "81920",
        "eks.amazonaws.com/instance-gpu-memory": "40960",
    }
    assert read_node(Node(node("n", labels))).permanent_reason() is not None


def test_a_product_label_that_is_not_known_is_not_overruled_by_the_machine() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H800-NVL",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
    }
    assert read_node(Node(node("n", labels))).permanent_reason() == (
        Why.UNKNOWN,
        "nvidia.com/gpu.product=NVIDIA-H800-NVL",
    )


def test_a_soft_taint_takes_no_node_away() -> None:
    soft = node("n", {"nvidia.com/gpu.product": "NVIDIA-H20"})
    soft["spec"] = {
        "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"}]
    }
    assert read_node(Node(soft)).unusable() is None


@pytest.mark.parametrize("quantity", ["8k", "-1", "", "٨", "9" * 10, None, 7.5])
def test_what_is_no_plain_number_counts_as_none(quantity: object) -> None:
    assert count(quantity) == 0


@pytest.mark.parametrize(
    ("product", "memory", "expected"),
    [
        ("NVIDIA-A100-SXM4-80GB", "39538", "A100-40GB"),  # the memory wins: a sibling has it
        ("NVIDIA-A100-SXM4-80GB", "81251", "A100-80GB"),
        ("NVIDIA-H20", "143771", "H20-141GB"),
        ("NVIDIA-A40", "49140", "A40"),  # error correction off
        ("NVIDIA-H100-80GB-HBM3", "24576", ""),  # no H100 has so little
        ("NVIDIA-H100-80GB-HBM3", "many", "H100"),  # no number says nothing
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "9728", "A100-80GB-MIG-1g.10gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "4864", ""),
    ],
)
def test_the_memory_beside_a_product_decides_its_size(
    product: str, memory: str, expected: str
) -> None:
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory}
    name, source = accelerator_of(labels)
    assert name == expected
    assert expected or f"nvidia.com/gpu.memory={memory}" in source


def test_a_name_of_several_accelerators_is_decided_by_memory_or_machine_or_not_at_all() -> None:
    label, machine = "karpenter.azure.com/sku-gpu-name", "node.kubernetes.io/instance-type"
    assert accelerator_of({label: "A100"})[0] == ""
    assert accelerator_of({label: "A100", machine: "Standard_ND96asr_v4"})[0] == "A100-40GB"
    assert accelerator_of({label: "A100", machine: "Standard_NC24ads_A100_v4"})[0] == ""
    assert accelerator_of({label: "A100", "nvidia.com/gpu.memory": "81920"})[0] == "A100-80GB"


def test_every_label_name_of_the_reference_list_is_found() -> None:
    path = Path(__file__).parents[4] / "shared/data/catalogue/label_names.csv"
    if not path.exists():
        pytest.skip("the reference list is not here")
    wrong = []
    for row in csv.DictReader(path.read_text().splitlines()):
        key, value = row["label_key"], row["value"].partition(" (")[0]
        meant = row["accelerator"]
        if key not in {*products()["labels"], "node.kubernetes.io/instance-type"} or "<" in value:
            continue
        for each in value.split(", "):
            labels = {key: each}
            if row["memory_MiB"]:
                labels["karpenter.k8s.aws/instance-gpu-memory"] = row["memory_MiB"]
            name = accelerator_of(labels)[0]
            if meant in UNSURE or each in SEVERAL:
                continue
            if not name or not name.startswith(accelerator(meant).name):
                wrong.append((each, meant, name))
    assert wrong == []


UNSURE = {"MI308X", "any NVIDIA"}
"""Not in the catalogue, or a rule."""
SEVERAL = {"740c"}
"""A device id of both MI250 and MI250X."""
