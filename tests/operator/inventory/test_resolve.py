"""Specs with found pools as specs with counts, written down by hand beside what was found."""

from __future__ import annotations

import subprocess
import sys
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
    plan_selector,
    resolved_spec,
)
from archipelago.operator.resources.names import Key
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import MAX_DOMAINS
from archipelago.planner.servingplan import load_resource, to_problem
from tests.manifests.cases import good

ROOT = Path(__file__).parents[3]
KEY = Key("team", "chat")
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
FOUND: dict[str, Any] = yaml.safe_load(good()["nodes-found"])["spec"]
"""Pools h100 (by zone, 8 GPUs a node, islands of 4, 8 or 1,024), l40s (islands of 2), rented."""
ZONES = {"zone-a": ("n1", "n2"), "zone-b": ("n3",)}


def looked_for(spec: dict[str, Any]) -> PlanSelector:
    found = plan_selector(KEY, "uid", WHEN, spec)
    assert found is not None
    return found


def inventory(spec: dict[str, Any], **nodes: Mapping[str, tuple[str, ...]]) -> PlanInventory:
    """What was found of each pool by its name, 8 GPUs in a node where the pool says nothing."""
    pools = looked_for(spec).pools
    found = (PoolInventory(p, p.gpus_per_node or 8, nodes.get(p.name, {})) for p in pools)
    return PlanInventory(tuple(found), ())


def resource(spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": "archipelago.dev/v1alpha1", "kind": "ServingPlan"}
    return head | {"metadata": {"name": "x"}, "spec": spec}


def test_what_a_plan_looks_for() -> None:
    assert looked_for(FOUND) == PlanSelector(
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
            ),
            PoolSelector("l40s", "L40S", {"pool": "l40s"}),
        ),
    )


def test_a_plan_that_counts_its_gpus_looks_for_nothing() -> None:
    spec = yaml.safe_load(good()["every-field"])["spec"]
    assert plan_selector(KEY, "uid", WHEN, spec) is None


def test_accelerators_are_looked_for_in_the_spelling_of_the_catalogue() -> None:
    """Nodes are read with it; a spec may write it in any case."""
    spec = deepcopy(FOUND)
    spec["pools"][0]["accelerator"] = "h100"
    spec["pools"][1]["accelerator"] = "H900"
    assert [pool.accelerator for pool in looked_for(spec).pools] == ["H100", "H900"]


def test_counts_stand_where_selectors_stood() -> None:
    """3 nodes of 8 in two zones, 1 of 8; no island of 1,024 fits into 24 GPUs."""
    before = deepcopy(FOUND)
    spec = resolved_spec(FOUND, inventory(FOUND, h100=ZONES, l40s={"": ("m1",)}))
    h100, l40s, rented = spec["pools"]
    assert (h100["count"], h100["gpusPerNode"], h100["islandSizes"]) == (24, 8, [4, 8])
    assert h100["domains"] == [{"name": "zone-a", "nodes": 2}, {"name": "zone-b", "nodes": 1}]
    assert (l40s["count"], l40s["gpusPerNode"], l40s["islandSizes"]) == (8, 8, [2])
    assert not {"nodeSelector", "domainLabel"} & {*h100, *l40s}
    assert rented == FOUND["pools"][2]
    assert spec["pipelines"] == FOUND["pipelines"]
    assert before == FOUND
    problem = to_problem("x", load_resource(resource(spec)).spec)
    assert [(pool.name, pool.count) for pool in problem.pools] == [
        ("h100", 24),
        ("l40s", 8),
        ("rented", 0),
    ]


def test_a_pool_without_nodes_leaves_with_what_needs_it() -> None:
    spec = resolved_spec(FOUND, inventory(FOUND, h100=ZONES))
    assert [pool["name"] for pool in spec["pools"]] == ["h100", "rented"]
    assert spec["pipelines"] == []
    assert to_problem("x", load_resource(resource(spec)).spec).pipelines == ()


def test_a_pool_too_small_for_its_islands_leaves_as_well() -> None:
    """Without sizes it would have the default ones, which nobody allowed."""
    spec = deepcopy(FOUND)
    spec["pools"][0]["islandSizes"] = [32]
    left = resolved_spec(spec, inventory(spec, h100=ZONES, l40s={"": ("m1",)}))
    assert [pool["name"] for pool in left["pools"]] == ["l40s", "rented"]


def test_links_to_classes_that_nothing_is_in_any_more_go() -> None:
    spec = deepcopy(FOUND)
    west = {"name": "w", "accelerator": "H100", "count": 8, "gpusPerNode": 8}
    spec["pools"].append(west | {"domains": [{"name": "w", "nodes": 1, "class": "west"}]})
    link = {"name": "wan", "classes": ["default", "west"], "gigabitsPerSecond": "100"}
    spec["network"] = {"links": [link]}
    there = resolved_spec(spec, inventory(spec, h100=ZONES))
    assert there["network"] == {"links": [link]}
    spec["pools"] = [pool for pool in spec["pools"] if pool["name"] != "rented"]
    gone = resolved_spec(spec, inventory(spec))
    assert [pool["name"] for pool in gone["pools"]] == ["w"]
    assert gone["network"] == {"links": []}
    assert load_resource(resource(gone)).spec.network is not None


def test_no_pool_left_is_reported_in_words() -> None:
    spec = {**FOUND, "pools": FOUND["pools"][:2]}
    with pytest.raises(NoPoolError) as caught:
        resolved_spec(spec, inventory(spec))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools"
    assert remedy.startswith("no node can be planned with at the moment in pool h100, l40s: ")


def test_an_accelerator_that_no_catalogue_has_is_a_mistake_not_an_empty_pool() -> None:
    spec = deepcopy(FOUND)
    spec["pools"][1]["accelerator"] = "H900"
    with pytest.raises(SpecError) as caught:
        resolved_spec(spec, inventory(spec, h100=ZONES))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools[1].accelerator"
    assert "'H900'" in remedy


def test_a_label_that_differs_by_node_is_no_label_of_domains() -> None:
    spec = deepcopy(FOUND)
    racks = {f"rack-{n}": (f"n{n}",) for n in range(MAX_DOMAINS)}
    assert resolved_spec(spec, inventory(spec, h100=racks))["pools"][0]["count"] == 512
    with pytest.raises(SpecError) as caught:
        resolved_spec(spec, inventory(spec, h100={**racks, "rack-64": ("n64",)}))
    [(path, remedy)] = caught.value.problems
    assert path == "spec.pools[0].domainLabel"
    assert remedy.startswith("topology.kubernetes.io/zone has 65 values on the nodes of the pool")


def test_the_example_is_planned_with_what_is_found() -> None:
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


def test_the_operators_process_stays_without_numpy() -> None:
    code = (
        "import sys, archipelago.operator.inventory.resolve as n; "
        "sys.exit('numpy' in sys.modules or 'pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
