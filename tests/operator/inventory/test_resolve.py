"""Specs whose pools select nodes become specs with counts, written down by hand."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.inventory.ownership import PlanSelector, PoolSelector
from archipelago.operator.inventory.pools import PlanInventory, PoolInventory
from archipelago.operator.inventory.resolve import (
    NoPoolError,
    node_names,
    plan_selector,
    resolved_spec,
)
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import inputs_hash
from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import MAX_DOMAINS
from archipelago.planner.servingplan import load_resource, to_problem
from tests.manifests.cases import good
from tests.support.operator.live import plan_of

ROOT = Path(__file__).parents[3]
KEY = Key("team", "chat")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
SPEC: dict[str, Any] = yaml.safe_load(good()["nodes-found"])["spec"]
"""Pools h100 (by zone, 8 GPUs a node, islands of 4, 8 or 1,024), l40s (islands of 2), rented."""
ZONES = {"zone-a": ("n1", "n2"), "zone-b": ("n3",)}


def selector_of(spec: dict[str, Any]) -> PlanSelector:
    return plan_selector(KEY, "uid", WHEN, spec)


def inventory(spec: dict[str, Any], **nodes: Mapping[str, tuple[str, ...]]) -> PlanInventory:
    """The inventory with these nodes of each pool, of 8 GPUs unless the pool states it."""
    pools = selector_of(spec).pools
    inventories = (PoolInventory(p, p.gpus_per_node or 8, nodes.get(p.name, {})) for p in pools)
    return PlanInventory(tuple(inventories), ())


def resource(spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": "archipelago.dev/v1alpha1", "kind": "ServingPlan"}
    return head | {"metadata": {"name": "x"}, "spec": spec}


def test_the_selectors_of_a_plan_are_read() -> None:
    assert selector_of(SPEC) == PlanSelector(
        KEY,
        "uid",
        WHEN,
        (
            PoolSelector(
                "h100",
                "H100",
                {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "example.com/team": ""},
                8,
                "topology.kubernetes.io/zone",
                smallest_island=None,  # billing PerNode
            ),
            PoolSelector("l40s", "L40S", {"pool": "l40s"}, smallest_island=None),
        ),
        stated={"H20": 0},
    )


def test_a_plan_with_counts_selects_no_nodes_and_states_gpus() -> None:
    spec = yaml.safe_load(good()["every-field"])["spec"]
    assert plan_selector(KEY, "uid", WHEN, spec) == PlanSelector(
        KEY, "uid", WHEN, (), suspended=True, stated={"H200": 64, "L40S": 8}
    )


def test_accelerators_get_the_spelling_of_the_catalogue() -> None:
    """Nodes are read with it; a spec may write it in any case."""
    spec = deepcopy(SPEC)
    spec["pools"][0]["accelerator"] = "h100"
    spec["pools"][1]["accelerator"] = "H900"
    assert [pool.accelerator for pool in selector_of(spec).pools] == ["H100", "H900"]


def test_counts_replace_selectors() -> None:
    """3 nodes of 8 in two zones, 1 of 8; no island of 1,024 fits into 24 GPUs."""
    before = deepcopy(SPEC)
    spec = resolved_spec(SPEC, inventory(SPEC, h100=ZONES, l40s={"": ("m1",)}))
    h100, l40s, rented = spec["pools"]
    assert (h100["count"], h100["gpusPerNode"], h100["islandSizes"]) == (24, 8, [4, 8])
    assert h100["domains"] == [{"name": "zone-a", "nodes": 2}, {"name": "zone-b", "nodes": 1}]
    assert (l40s["count"], l40s["gpusPerNode"], l40s["islandSizes"]) == (8, 8, [2])
    assert not {"nodeSelector", "domainLabel"} & {*h100, *l40s}
    assert rented == SPEC["pools"][2]
    assert spec["pipelines"] == SPEC["pipelines"]
    assert before == SPEC
    problem = to_problem("x", load_resource(resource(spec)).spec)
    assert [(pool.name, pool.count) for pool in problem.pools] == [
        ("h100", 24),
        ("l40s", 8),
        ("rented", 0),
    ]


def test_plans_on_whole_nodes_keep_their_inputs() -> None:
    """Another hash would plan every stored table anew; it is that of before nodes were shared."""
    stock = inventory(SPEC, h100=ZONES, l40s={"": ("m2", "m1")})
    spec = resolved_spec(SPEC, stock)
    nodes = hashlib.sha256(canonical_bytes(dict(node_names(spec, stock)))).hexdigest()
    assert inputs_hash("chat", {**spec, "nodes": nodes}) == "7a04b967803fdf6a668a9b4c205223d8"


def test_a_pool_without_nodes_is_removed_with_its_pipelines() -> None:
    spec = resolved_spec(SPEC, inventory(SPEC, h100=ZONES))
    assert [pool["name"] for pool in spec["pools"]] == ["h100", "rented"]
    assert spec["pipelines"] == []
    assert to_problem("x", load_resource(resource(spec)).spec).pipelines == ()


def test_a_pool_too_small_for_its_islands_is_removed() -> None:
    """Without sizes it would have the default ones, which nobody allowed."""
    spec = deepcopy(SPEC)
    spec["pools"][0]["islandSizes"] = [32]
    resolved = resolved_spec(spec, inventory(spec, h100=ZONES, l40s={"": ("m1",)}))
    assert [pool["name"] for pool in resolved["pools"]] == ["l40s", "rented"]


def test_links_to_classes_without_a_domain_are_removed() -> None:
    spec = deepcopy(SPEC)
    west = {"name": "w", "accelerator": "H100", "count": 8, "gpusPerNode": 8}
    spec["pools"].append(west | {"domains": [{"name": "w", "nodes": 1, "class": "west"}]})
    link = {"name": "wan", "classes": ["default", "west"], "gigabitsPerSecond": "100"}
    spec["network"] = {"links": [link]}
    there = resolved_spec(spec, inventory(spec, h100=ZONES))
    assert there["network"] == {"links": [link]}
    spec["pools"] = [pool for pool in spec["pools"] if pool["name"] != "rented"]
    empty = resolved_spec(spec, inventory(spec))
    assert [pool["name"] for pool in empty["pools"]] == ["w"]
    assert empty["network"] == {"links": []}
    assert load_resource(resource(empty)).spec.network is not None


def test_a_plan_without_any_pool_is_refused_with_the_remedy() -> None:
    spec = {**SPEC, "pools": SPEC["pools"][:2]}
    with pytest.raises(NoPoolError) as caught:
        resolved_spec(spec, inventory(spec))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools"
    assert remedy.startswith("no node can be planned with at the moment in pool h100, l40s: ")


def test_an_unknown_accelerator_is_refused_with_its_field() -> None:
    spec = deepcopy(SPEC)
    spec["pools"][1]["accelerator"] = "H900"
    with pytest.raises(SpecError) as caught:
        resolved_spec(spec, inventory(spec, h100=ZONES))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools[1].accelerator"
    assert "'H900'" in remedy


def test_a_label_with_too_many_values_is_refused_as_a_domain() -> None:
    spec = deepcopy(SPEC)
    racks = {f"rack-{n}": (f"n{n}",) for n in range(MAX_DOMAINS)}
    assert resolved_spec(spec, inventory(spec, h100=racks))["pools"][0]["count"] == 512
    with pytest.raises(SpecError) as caught:
        resolved_spec(spec, inventory(spec, h100={**racks, "rack-64": ("n64",)}))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools[0].domainLabel"
    assert remedy.startswith("topology.kubernetes.io/zone has 65 values on the nodes of the pool")


def test_the_example_is_resolved_to_counts() -> None:
    """2 H100 nodes in two zones and one L40S node, 8 GPUs each."""
    whole = yaml.safe_load((ROOT / "examples" / "live" / "found-pools.yaml").read_text())
    spec = whole["spec"]
    assert load_resource(whole).spec.replanning.source == "prometheus"
    zones = {"eu-1a": ("n1",), "eu-1b": ("n2",)}
    there = resolved_spec(spec, inventory(spec, h100=zones, l40s={"": ("m1",)}))
    problem = to_problem("x", load_resource(resource(there)).spec)
    assert [(pool.name, pool.count, len(pool.domains)) for pool in problem.pools] == [
        ("h100", 16, 2),
        ("l40s", 8, 0),
    ]


def test_the_operators_process_imports_no_numpy() -> None:
    code = (
        "import sys, archipelago.operator.inventory.resolve as n; "
        "sys.exit('numpy' in sys.modules or 'pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LIVE: dict[str, Any] = {
    "models": [
        {
            "name": "llama",
            "architecture": "Llama-3.1-8B",
            "requestsPerSecond": "80",
            "workload": {
                "logNormal": {"median": 1020, "sigma": "0.9", "max": 16384},
                "outputTokens": {"mean": "211", "meanSquare": "71100"},
            },
            "slo": {"tpotMilliseconds": 40},
        }
    ],
    "objective": "MinimiseCost",
    "pools": [
        {
            "name": "h100",
            "accelerator": "H100",
            "nodeSelector": {"pool": "h100"},
            "gpusPerNode": 8,
            "pricePerGPUHour": "3.00",
        }
    ],
}


def planned(
    held: Mapping[str, int], content: str | None = None, labels: Mapping[str, str] | None = None
) -> str:
    """The table on nodes n0 to n2 of 8 GPUs, of which others hold some, beside what runs."""
    spec = deepcopy(LIVE)
    if labels:
        spec["pools"][0]["domainLabel"] = "rack"
    pools = selector_of(spec).pools
    free = {n: 8 - held.get(n, 0) for n in ("n0", "n1", "n2")}
    nodes: dict[str, tuple[str, ...]] = {}
    shared: dict[str, dict[str, int]] = {}
    for name, gpus in free.items():
        domain = (labels or {}).get(name, "")
        if gpus == 8:
            nodes[domain] = (*nodes.get(domain, ()), name)
        else:
            shared.setdefault(domain, {})[name] = gpus
    stock = PlanInventory((PoolInventory(pools[0], 8, nodes, shared),), ())
    resolved = resolved_spec(spec, stock)
    more = {"content": content, "nodes": node_names(resolved, stock)}
    found: str = plan_of(resource(resolved), **more)["steps"][-1]["content"]
    return found


def places(content: str) -> dict[str, list[str]]:
    """Real nodes by island."""
    return {island["name"]: island["nodes"] for island in json.loads(content)["islands"]}


def load(content: str) -> Counter[str]:
    """GPUs of islands by real node."""
    used: Counter[str] = Counter()
    for island in json.loads(content)["islands"]:
        assert island["pool"] == "h100"
        used.update(dict.fromkeys(island["nodes"], island["gpus"] // len(island["nodes"])))
    return used


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels", [None, {"n0": "a", "n1": "a", "n2": "b"}], ids=["no label", "racks"]
)
def test_islands_stay_on_a_node_that_others_come_to_as_long_as_they_fit(
    labels: dict[str, str] | None,
) -> None:
    """Others take all that the islands leave, then all GPUs of a node with an island, and go."""
    before = planned({}, None, labels)
    used = load(before)
    crowded = {name: min(7, 8 - used[name]) for name in ("n0", "n1", "n2")}
    assert places(planned(crowded, before, labels)) == places(before)
    full = max(used, key=lambda name: used[name])
    one_less = {full: 8 - used[full] + 1}
    moved = planned(one_less, before, labels)
    assert all(gpus <= 8 - one_less.get(name, 0) for name, gpus in load(moved).items())
    assert sum(load(moved).values()) == sum(used.values())
    assert places(planned({}, moved, labels)) == places(moved)
