"""The API server itself refuses what is wrong, says where and what to do, and fills in defaults.

No webhook: everything here is the generated schema at work on a real kube-apiserver.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.resources.crd import NAME, definition
from archipelago.planner.errors import SpecError
from archipelago.planner.servingplan import API_VERSION, load_resource
from archipelago.planner.table.validate import validate_table
from tests.manifests.cases import Bad, bad, good
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import Plans, resource, small

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "archipelago.dev_servingplans.yaml"
MINIMAL = (ROOT / "examples" / "02-minimal.yaml").read_text()
EXAMPLES = {
    file.stem: file.read_text()
    for folder in ("examples", "examples/live")
    for file in sorted((ROOT / folder).glob("*.yaml"))
}
BAD = bad()
GOOD = good()


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[str]:
    """One namespace for all tests that leave nothing behind."""
    with cluster.namespace("admission") as name:
        yield name


def apply(cluster: Cluster, namespace: str, text: str, *options: str) -> tuple[bool, str]:
    """Apply a manifest as a user would; whether it was accepted, and what was said."""
    done = cluster.kubectl(
        "apply", f"--namespace={namespace}", "-f", "-", *options, input=text, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr


def stored(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """The object as the API server has it."""
    out = cluster.kubectl("get", "splan", name, f"--namespace={namespace}", "--output=json").stdout
    found: dict[str, Any] = json.loads(out)
    return found


# The definition


def test_the_definition_is_established_within_five_seconds_and_structural(cluster: Cluster) -> None:
    """Under another group, so that the plans of other tests stay."""
    text = CRD.read_text().replace("archipelago.dev", "first.archipelago.dev")
    text = text.replace("- splan", "- firstplan").replace("- archipelago\n", "- firsts\n")
    name = NAME.replace("archipelago.dev", "first.archipelago.dev")
    started = time.monotonic()
    try:
        cluster.kubectl("create", "--validate=strict", "-f", "-", input=text)
        cluster.wait_established(f"crd/{name}", within=5)
        assert time.monotonic() - started < 5
        found = json.loads(cluster.kubectl("get", "crd", name, "--output=json").stdout)
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}
    finally:
        cluster.kubectl("delete", "crd", name, "--ignore-not-found")


def test_the_installed_definition_loses_nothing_of_the_committed_one(cluster: Cluster) -> None:
    """The server drops what it does not know; a dropped rule would guard nothing."""
    found = json.loads(cluster.kubectl("get", "crd", NAME, "--output=json").stdout)
    installed = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert installed == definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_explain_describes_every_field(cluster: Cluster) -> None:
    """What ``kubectl explain`` reads is the document that the server publishes."""
    listed = cluster.kubectl("explain", "splan.spec", "--recursive").stdout
    assert "pricePerGPUHour" in listed
    assert "<empty>" not in listed
    told = cluster.kubectl("explain", "splan.spec.models.workload.histogram.bins.inputMean").stdout
    assert "Mean input length in the bin [tokens], a decimal string." in told
    published = json.loads(
        cluster.kubectl("get", "--raw", f"/openapi/v3/apis/{API_VERSION}").stdout
    )
    plan = published["components"]["schemas"]["dev.archipelago.v1alpha1.ServingPlan"]["properties"]
    described = dict(_leaves(plan["spec"], "spec")) | dict(_leaves(plan["status"], "status"))
    assert len(described) >= 60
    assert not [path for path, text in described.items() if len(text) < 20]


def _leaves(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Path and description of every field that holds a value."""
    below = schema.get("items", schema)
    for name, field in below.get("properties", {}).items():
        yield from _leaves(field, f"{path}.{name}")
    if "properties" not in below:
        yield path, schema.get("description", "")


# Rules


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_its_path_and_remedy(
    cluster: Cluster, shared: str, case: Bad
) -> None:
    accepted, said = apply(cluster, shared, case.text)
    assert not accepted
    assert case.path in said
    assert case.online in said


@pytest.mark.parametrize("text", [*GOOD.values(), *EXAMPLES.values()], ids=[*GOOD, *EXAMPLES])
def test_what_the_command_line_accepts_is_accepted(
    cluster: Cluster, shared: str, text: str
) -> None:
    load_resource(text)
    accepted, said = apply(cluster, shared, text, "--dry-run=server")
    assert accepted, said
    assert "Warning" not in said


VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 7, 12, 10**12, -1, 1.5, 3.0, True, None, [], {}, [8, 4], [1, 2], {"x": 1}),
    *("", "0", "1.5", "1e3", "-1", "x", "X y", "a" * 64),
)


def test_the_command_line_and_the_server_agree_on_plans_that_nobody_thought_of(
    cluster: Cluster, shared: str
) -> None:
    """Hundreds of good plans with one place changed: both accept each of them, or neither."""
    dice = random.Random(0)  # noqa: S311  # the same plans in every run
    sources = [yaml.safe_load(text) for text in (*GOOD.values(), *EXAMPLES.values())]
    small = [source for source in sources if len(json.dumps(source)) < 5000]
    plans = {f"v{n}": _varied(dice.choice(small), dice, f"v{n}") for n in range(400)}
    text = "\n---\n".join(json.dumps(plan) for plan in plans.values())
    said = cluster.kubectl(
        "create",
        f"-n={shared}",
        "-f",
        "-",
        "--dry-run=server",
        "--output=name",
        input=text,
        check=False,
    ).stdout
    online = {line.rsplit("/", 1)[-1] for line in said.splitlines()}
    offline = {name for name, plan in plans.items() if _is_accepted(plan)}
    assert 40 <= len(online) <= 360
    assert {n: plans[n] for n in online ^ offline} == {}


def _is_accepted(plan: dict[str, Any]) -> bool:
    try:
        load_resource(plan)
    except SpecError:
        return False
    return True


def _varied(plan: dict[str, Any], dice: random.Random, name: str) -> dict[str, Any]:
    """The plan with one place of its spec changed."""
    changed = deepcopy(plan)
    changed["metadata"] = {"name": name}
    holder, key = dice.choice(list(_places(changed["spec"])))
    action = dice.random()
    if action < 0.4:
        holder[key] = deepcopy(dice.choice(VALUES))
    elif action < 0.8:
        holder[key] = _nearby(holder[key], dice)
    elif action < 0.9 or isinstance(holder, list):
        del holder[key]
    else:
        holder[f"{key}x"] = holder[key]
    return changed


def _nearby(value: Any, dice: random.Random) -> Any:  # noqa: ANN401  # plain JSON
    """A value like this one, as a slip of the finger makes it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice((value - 1, value + 1, 2 * value, value // 2))
    if isinstance(value, str):
        return dice.choice((value[1:], f"{value}0", f"0.{value}", value.upper(), f"-{value}"))
    return value[::-1] if isinstance(value, list) else {}


def _places(thing: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # plain JSON
    """Every (container, key or index) below ``thing``."""
    keys = thing if isinstance(thing, dict) else range(len(thing))
    for key in keys:
        yield thing, key
        if isinstance(thing[key], dict | list):
            yield from _places(thing[key])


def test_the_largest_plan_is_within_the_budget_of_the_rules_and_of_kubectl(
    cluster: Cluster, namespace: str
) -> None:
    """Every list and text at its longest: rules cost time, apply keeps a copy in 256 KiB.

    What is stored, with that copy and the owners of every field, is below etcd's 1.5 MiB.
    """
    text = json.dumps(largest())
    assert len(text) < 262_144
    load_resource(text)
    started = time.monotonic()
    accepted, said = apply(cluster, namespace, text)
    assert accepted, said
    assert time.monotonic() - started < 10
    show = ["get", "splan", "l" * 253, f"-n={namespace}", "--show-managed-fields", "-o=json"]
    assert len(json.dumps(json.loads(cluster.kubectl(*show).stdout))) < 1_000_000


def largest() -> dict[str, Any]:
    """A ServingPlan at every maximum of the schema."""
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "l" * 253},
        "spec": {
            "models": [_model(index) for index in range(16)],
            "pools": [*map(_found_pool, range(56)), *map(_pool, range(56, 64))],
            "network": {"links": [_link(index) for index in range(32)]},
            "pipelines": [_pipeline(index) for index in range(16)],
            "objective": "MinimiseCost",
            "budgetPerHour": "999999999.999999",
            "minHeadroom": "999999999.999999",
            "replanning": {
                "source": f"s{0:062d}",
                "targetUtilisation": "0.123456",
                "windows": {"needed": 100, "of": 100},
                "approve": "0" * 64,
            },
        },
    }


def _link(index: int) -> dict[str, Any]:
    """From one class of the last pool to another, which a search finds last."""
    return {
        "name": f"l{index:062d}",
        "classes": [_class(511), _class(510 - index)],
        "gigabitsPerSecond": "999999999.999999",
    }


def _pipeline(index: int) -> dict[str, Any]:
    pools = [f"p{pool:062d}" for pool in (63 - index, 62 - index, 61 - index, 60 - index)]
    return {"name": f"l{index:062d}", "pools": pools}


def _class(index: int) -> str:
    return f"c{index:062d}"


def _model(index: int) -> dict[str, Any]:
    edges = [16_000_000 + 100 * step for step in range(33)]  # 16 models of 32 bins: 512
    return {
        "name": f"m{index:062d}",
        "architecture": f"A{index:062d}",
        "precision": "bf16",
        "requestsPerSecond": "999999999.999999",
        "maxSequences": 65_536,
        "serving": "Disaggregated",
        "maxUtilisation": "0.123456",
        "workload": {
            "histogram": {
                "bins": [
                    {
                        "min": low,
                        "max": high,
                        "weight": 1_000_000_000,
                        "inputMean": f"{low}.123456",
                        "outputMean": "16777216.123456",
                        "outputMeanSquare": "999999999999999.999999",
                    }
                    for low, high in pairwise(edges)
                ]
            },
            "ranges": {"count": 256, "spacing": "Probability"},
        },
        "slo": {"ttftMilliseconds": 3_600_000, "tpotMilliseconds": 60_000},
        "engine": {"roleSwitch": "Restart", "metrics": "dynamo", "servedName": "s" * 253},
    }


def _found_pool(index: int) -> dict[str, Any]:
    """56 pools of 128 labels together, and of as many labels for domains."""
    domain = f"{'d' * 61}.d"
    labels = 2 if index < 48 else 4
    return {
        "name": f"p{index:062d}",
        "accelerator": f"A{index:062d}",
        "nodeSelector": {f"{domain}/k{key:062d}": "v" * 63 for key in range(labels)},
        "domainLabel": f"{domain}/{'k' * 63}",
        **_of_any_pool(),
    }


def _pool(index: int) -> dict[str, Any]:
    """8 pools of 64 domains: 512, all in classes of their own."""
    return {
        "name": f"p{index:062d}",
        "accelerator": f"A{index:062d}",
        "count": 524_288,  # 64 domains of 512 nodes of 16 GPUs
        "domains": [
            {"name": f"d{n:062d}", "nodes": 512, "class": _class(64 * (index - 56) + n)}
            for n in range(64)
        ],
        **_of_any_pool(),
    }


def _of_any_pool() -> dict[str, Any]:
    return {
        "gpusPerNode": 16,
        "pricePerGPUHour": "999999999.999999",
        "billing": "PerNode",
        "nicGigabitsPerSecond": "999999999.999999",
        "islandSizes": [2**power for power in range(16)],
    }


# Defaults and changes


def test_a_minimal_plan_shows_its_defaults(cluster: Cluster, namespace: str) -> None:
    assert len(MINIMAL.splitlines()) <= 12
    assert apply(cluster, namespace, MINIMAL)[0]
    spec = stored(cluster, namespace, "minimal")["spec"]
    assert spec["planner"] == {"strategy": "exact", "seed": 0, "gapPartsPerMillion": 1000}
    assert spec["routing"] == {"lengthUnit": "tokens", "unknownLength": "Longest"}
    assert spec["models"][0]["workload"]["ranges"] == {"count": 32, "spacing": "Probability"}
    assert (spec["maxUnservable"], spec["suspend"]) == ("0.001", False)


@pytest.mark.parametrize("text", [*GOOD.values(), *EXAMPLES.values()], ids=[*GOOD, *EXAMPLES])
def test_the_stored_plan_is_the_plan_of_the_file(cluster: Cluster, shared: str, text: str) -> None:
    """Both sides fill in the same defaults, so that a laptop plans what the cluster plans."""
    out = cluster.kubectl(
        "create", f"-n={shared}", "-f", "-", "--dry-run=server", "--output=json", input=text
    )
    assert load_resource(json.loads(out.stdout)).spec == load_resource(text).spec


def test_two_managers_own_one_pool_each(cluster: Cluster, namespace: str) -> None:
    """Pools are merged by name, so that two teams can keep theirs in their own repositories."""
    assert apply(cluster, namespace, MINIMAL, "--server-side", "--field-manager=one")[0]
    theirs = {"apiVersion": API_VERSION, "kind": "ServingPlan", "metadata": {"name": "minimal"}}
    for pools in ([{"name": "l40s", "accelerator": "L40S", "count": 4}], []):
        text = json.dumps(theirs | {"spec": {"pools": pools}})
        accepted, said = apply(cluster, namespace, text, "--server-side", "--field-manager=two")
        assert accepted, said
        found = [pool["name"] for pool in stored(cluster, namespace, "minimal")["spec"]["pools"]]
        assert sorted(found) == ["h100", *(pool["name"] for pool in pools)]


def test_a_misspelt_field_is_named(cluster: Cluster, shared: str) -> None:
    text = MINIMAL.replace("count: 8", "count: 8, bogus: 1")
    accepted, said = apply(cluster, shared, text)
    assert not accepted
    assert 'unknown field "spec.pools[0].bogus"' in said


def test_the_architecture_of_a_model_cannot_be_changed(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, MINIMAL)[0]
    patch = json.dumps(
        [{"op": "replace", "path": "/spec/models/0/architecture", "value": "Qwen3-32B"}]
    )
    change = ["patch", "splan", "minimal", f"-n={namespace}", "--type=json", f"--patch={patch}"]
    done = cluster.kubectl(*change, "-v=8", check=False)
    assert done.returncode != 0
    assert '"reason":"FieldValueForbidden"' in done.stderr
    assert "spec.models[0].architecture" in done.stderr
    assert "remove this model and add one with another name" in done.stderr


def test_a_model_under_a_new_name_may_have_another_architecture(
    cluster: Cluster, namespace: str
) -> None:
    assert apply(cluster, namespace, MINIMAL)[0]
    changed = MINIMAL.replace("name: llama", "name: qwen").replace("Llama-3.1-8B", "Qwen3-32B")
    accepted, said = apply(cluster, namespace, changed)
    assert accepted, said


def test_a_tightened_rule_lets_old_plans_be_labelled_but_not_changed_for_the_worse(
    cluster: Cluster,
) -> None:
    """Ratcheting: an upgrade of the rules must not lock users or the operator out."""
    text = CRD.read_text().replace("archipelago.dev", "ratchet.archipelago.dev")
    text = text.replace("- splan", "- ratchetplan").replace("- archipelago\n", "- ratchets\n")
    crd = yaml.safe_load(text)
    name = crd["metadata"]["name"]
    plan = MINIMAL.replace("archipelago.dev", "ratchet.archipelago.dev")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    count = spec["properties"]["pools"]["items"]["properties"]["count"]
    assert count["maximum"] == 1_000_000
    with cluster.namespace("ratchet") as namespace:
        try:
            cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
            cluster.wait_established(f"crd/{name}", within=10)
            _eventually_applied(cluster, namespace, plan)
            count["maximum"] = 7  # the stored plan has 8 GPUs
            cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(crd))
            patch = ["patch", f"{name}/minimal", f"-n={namespace}", "--type=merge"]
            _eventually_refused(cluster, namespace, plan.replace("name: minimal", "name: other"))
            cluster.kubectl(*patch, '--patch={"metadata":{"labels":{"team":"a"}}}')
            status = '{"status":{"observedGeneration":1}}'
            cluster.kubectl(*patch, "--subresource=status", f"--patch={status}")
            worse = '[{"op":"replace","path":"/spec/pools/0/count","value":9}]'
            done = cluster.kubectl(
                "patch",
                f"{name}/minimal",
                f"-n={namespace}",
                "--type=json",
                f"--patch={worse}",
                check=False,
            )
            assert done.returncode != 0
            assert "spec.pools[0].count" in done.stderr
        finally:
            cluster.kubectl("delete", "crd", name, "--ignore-not-found", "--timeout=30s")


def _eventually_applied(cluster: Cluster, namespace: str, text: str) -> None:
    """An established definition is served a moment later."""
    for _ in range(50):
        accepted, said = apply(cluster, namespace, text)
        if accepted:
            return
        time.sleep(0.2)
    pytest.fail(said)


def _eventually_refused(cluster: Cluster, namespace: str, text: str) -> None:
    """A changed definition takes effect a moment later."""
    for _ in range(50):
        if not apply(cluster, namespace, text, "--dry-run=server")[0]:
            return
        time.sleep(0.2)
    pytest.fail("the tightened rule never took effect")


def test_the_table_of_plans_fits_a_terminal(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, MINIMAL)[0]
    status = {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Published",
                "message": "gap 0.04 %",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "summary": {
            "strategy": "exact",
            "objective": "throughput",
            "throughput": "123456.78",
            "gap": "0.0004",
            "costPerHour": "123456.00",
            "islands": 1000,
            "gpus": 100_000,
            "slo": "Missed",
            "ttftMilliseconds": 2000,
            "tpotMilliseconds": 50,
            "contentHash": "0123456789abcdef" * 4,
        },
    }
    cluster.kubectl(*status_patch(namespace, status))
    table = cluster.kubectl("get", "splan", f"-n={namespace}").stdout.splitlines()
    assert table[0].split() == [
        "NAME", "READY", "REASON", "ISLANDS", "GPUS", "COST/H", "SLO", "AGE",
    ]  # fmt: skip
    assert table[1].split()[:-1] == [
        "minimal", "True", "Published", "1000", "100000", "123456.00", "Missed",
    ]  # fmt: skip
    assert max(map(len, table)) <= 120
    wide = cluster.kubectl("get", "archipelago", f"-n={namespace}", "--output=wide").stdout
    assert {"TTFT", "TPOT", "HASH"} <= set(wide.splitlines()[0].split())


def status_patch(namespace: str, status: object) -> tuple[str, ...]:
    """The arguments of kubectl that write a status of the plan ``minimal``."""
    patch = f"--patch={json.dumps({'status': status})}"
    return (
        "patch",
        "splan",
        "minimal",
        f"-n={namespace}",
        "--type=merge",
        "--subresource=status",
        patch,
    )


def test_a_status_outside_the_schema_is_refused(cluster: Cluster, namespace: str) -> None:
    assert apply(cluster, namespace, MINIMAL)[0]
    refused = status_patch(namespace, {"summary": {"throughput": 12.5}})
    done = cluster.kubectl(*refused, check=False)
    assert done.returncode != 0
    assert "status.summary.throughput" in done.stderr


HARDWARE, RENTED = "hardware-team", "rented-capacity"
SPEC = small()
MODELS = {"models": SPEC["models"]}


def pool(name: str, accelerator: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """An entry of ``spec.pools``."""
    price = {"pricePerGPUHour": "2.00"}
    return {"name": name, "accelerator": accelerator, "count": 8, **price, **more}


H100, L40S = pool("h100", "H100"), pool("l40s", "L40S")


def apply_as(plans: Plans, manager: str, *, check: bool = True, **spec: Any) -> str:  # noqa: ANN401
    """Server-side apply of a part of the spec, as one of its owners."""
    return plans.kubectl(
        *("apply", "--server-side", f"--field-manager={manager}", "-f", "-"),
        input=json.dumps(resource("chat", spec)),
        check=check,
    )


def pools(plans: Plans) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in plans.plan("chat")["spec"]["pools"]}


def test_two_owners_each_keep_a_pool_and_remove_only_their_own(team: Plans) -> None:
    apply_as(team, HARDWARE, **MODELS, pools=[H100])
    apply_as(team, RENTED, pools=[L40S])
    assert set(pools(team)) == {"h100", "l40s"}
    team.wait_ready("chat")

    # Each says its own part again, changed: the other's entry is neither moved nor taken.
    apply_as(team, HARDWARE, **MODELS, pools=[pool("h100", "H100", count=16)])
    apply_as(team, RENTED, pools=[pool("l40s", "L40S", count=24)])
    assert {name: found["count"] for name, found in pools(team).items()} == {"h100": 16, "l40s": 24}

    # What is another's is not to be had without a word.
    said = apply_as(team, RENTED, check=False, pools=[pool("l40s", "L40S", count=24), H100])
    assert "conflict" in said
    assert HARDWARE in said
    assert pools(team)["h100"]["count"] == 16

    # An owner that leaves its entry out removes it, and nothing else.
    apply_as(team, HARDWARE, **MODELS, pools=[pool("h100", "H100", count=16)])
    rented = {**pool("spare", "L40S"), "count": 1}
    apply_as(team, RENTED, pools=[rented])
    assert set(pools(team)) == {"h100", "spare"}
    apply_as(team, HARDWARE, **MODELS)
    assert set(pools(team)) == {"spare"}

    # The operator's own writes are of the status: no entry became anybody else's.
    whole = json.loads(team.kubectl("get", "splan", "chat", "-o=json", "--show-managed-fields"))
    fields = whole["metadata"]["managedFields"]
    owners = {owner["manager"] for owner in fields if owner.get("subresource") != "status"}
    assert owners == {HARDWARE, RENTED}
    eventually(lambda: team.ready("chat")[2] == team.plan("chat")["metadata"]["generation"])
    table = team.table("chat")
    assert validate_table(table) == []
