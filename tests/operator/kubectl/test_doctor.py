"""What the doctor says of objects as the API server gives them, good ones and broken ones."""

import copy
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from archipelago.operator.cluster.lease import STRATEGIES
from archipelago.operator.kubectl import doctor
from archipelago.operator.kubectl.doctor import REMEDY, RIGHTS, Check, Verdict
from archipelago.operator.resources import crd
from archipelago.operator.resources.manifests import table_manifest
from archipelago.operator.resources.names import Identity
from archipelago.operator.resources.objects import PlanObject, TableObject, owner_reference
from archipelago.operator.resources.shards import shards_of
from archipelago.operator.resources.status import Reason
from archipelago.planner.documents import canonical_bytes
from archipelago.planner.table.shards import Piece, split
from archipelago.planner.table.write import routing_content
from tests.support.planner.handmade import PLAN, resource

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "runbook.md"
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
CONTENT = canonical_bytes(routing_content(resource().spec, PLAN)).decode()


def established() -> dict[str, Any]:
    conditions = [{"type": "Established", "status": "True"}]
    return {**crd.definition(), "status": {"conditions": conditions}}


def plan_body(
    status: str = "True", reason: str = "Published", generation: int = 1
) -> dict[str, Any]:
    ready = {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": "told",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-07-01T11:00:00Z",
    }
    meta = {
        "namespace": "ns", "name": "paper", "uid": "u-1", "resourceVersion": "7",
        "generation": generation,
    }  # fmt: skip
    return {
        "metadata": meta,
        "spec": {},
        "status": {
            "observedGeneration": 1,
            "conditions": [ready],
            "summary": {"contentHash": digest(), "table": "paper-routing", "tableSequence": 1},
        },
    }


def digest() -> str:
    body = stored(CONTENT)
    content_hash = TableObject.from_body(body).content_hash
    assert content_hash is not None
    return content_hash


def stored(content: str, pieces: tuple[Piece, ...] = ()) -> dict[str, Any]:
    """The ConfigMap as the operator writes it and the server keeps it."""
    plan = PlanObject.from_body(
        {"metadata": {"namespace": "ns", "name": "paper", "uid": "u-1", "resourceVersion": "7"}}
    )
    identity = Identity("u-1", 1, 1)
    manifest = table_manifest(plan, None, identity, content, NOW, pieces=pieces)
    meta = {**manifest["metadata"], "uid": "c-1", "resourceVersion": "9"}
    return {**manifest, "metadata": meta | {"ownerReferences": [owner_reference(plan)]}}


def test_the_definition_of_this_version_is_fine() -> None:
    assert doctor.definition(established()).verdict is Verdict.OK


def test_a_missing_refused_old_or_other_definition_is_named() -> None:
    refused = established()
    refused["status"]["conditions"] = [
        {"type": "NamesAccepted", "status": "False", "message": "splan is taken"}
    ]
    other = copy.deepcopy(established())
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "older"
    unserved = copy.deepcopy(established())
    unserved["spec"]["versions"][0]["served"] = False
    verdicts = [doctor.definition(body) for body in (None, refused, other, unserved)]
    assert [check.verdict for check in verdicts] == [
        Verdict.FAIL, Verdict.FAIL, Verdict.WARN, Verdict.FAIL,
    ]  # fmt: skip
    assert "splan is taken" in verdicts[1].text
    assert all(check.remedy for check in verdicts)


def deployed(replicas: int, ready: int, name: str = doctor.OPERATOR) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app.kubernetes.io/name": name}},
        "spec": {"containers": [{"image": "archipelago-operator:0.1.0"}]},
    }
    return {
        "metadata": {"name": "archipelago-operator"},
        "spec": {"replicas": replicas, "template": template},
        "status": {"readyReplicas": ready},
    }


@pytest.mark.parametrize(
    ("items", "verdict", "text"),
    [
        ([], Verdict.FAIL, "no deployment"),
        ([deployed(1, 1, "other")], Verdict.FAIL, "no deployment"),
        ([deployed(0, 0)], Verdict.FAIL, "scaled to 0"),
        ([deployed(1, 0)], Verdict.FAIL, "0 of 1 ready"),
        ([deployed(1, 1)], Verdict.OK, "archipelago-operator:0.1.0"),
    ],
)
def test_the_deployment(items: list[dict[str, Any]], verdict: Verdict, text: str) -> None:
    check = doctor.deployment(items, "system")
    assert (check.verdict, text in check.text) == (verdict, True)


def pod(ready: str, restarts: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"name": "op-1"},
        "status": {
            "conditions": [{"type": "Ready", "status": ready, "message": "containers not ready"}],
            "containerStatuses": [{"restartCount": restarts}],
        },
    }


def test_health_is_what_the_probes_say() -> None:
    checks = [
        doctor.health(pods, "s") for pods in ([], [pod("False")], [pod("True")], [pod("True", 9)])
    ]
    assert [check.verdict for check in checks] == [
        Verdict.FAIL, Verdict.FAIL, Verdict.OK, Verdict.WARN,
    ]  # fmt: skip
    assert "containers not ready" in checks[1].text


def lease(holder: object, name: str = doctor.LEASE, strategies: object = "") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "acquireTime": "2026-07-01T11:00:00.000000Z"}
    return {"metadata": {"name": name, "annotations": {STRATEGIES: strategies}}, "spec": spec}


@pytest.mark.parametrize(
    ("leases", "pods", "verdict", "text"),
    [
        ([lease("op-1")], ["op-1", "op-2"], Verdict.OK, "000000Z; standing by: op-2"),
        ([lease("op-1", strategies="exact,b")], ["op-1"], Verdict.OK, "with strategies exact, b"),
        ([lease("op-1", strategies=7)], ["op-1"], Verdict.OK, "000000Z"),
        ([lease("op-1"), lease("x", "others")], ["op-1"], Verdict.OK, "op-1 since"),
        ([lease("")], ["op-1", "op-2"], Verdict.WARN, "no replica leads"),
        ([], ["op-1", "op-2"], Verdict.WARN, "no replica leads"),
        ([], [], Verdict.WARN, "no replica leads"),
        ([], ["op-1"], Verdict.OK, "single replica"),
        ([lease(7)], ["op-1", "op-2"], Verdict.OK, "unreadable since"),
        ([{"metadata": 7}], ["op-1"], Verdict.FAIL, "cannot be read: metadata: 7 is not"),
    ],
)  # fmt: skip
def test_the_leader_is_named(
    leases: list[dict[str, Any]], pods: list[str], verdict: Verdict, text: str
) -> None:
    found = [{"metadata": {"name": name}} for name in pods]
    check = doctor.leader(leases, found, "system")
    assert (check.verdict, text in check.text) == (verdict, True), check.text


def test_gpus_are_summed_by_namespace() -> None:
    def plan(namespace: str, gpus: int) -> dict[str, Any]:
        body = plan_body()
        body["metadata"]["namespace"] = namespace
        body["status"]["summary"]["gpus"] = gpus
        return body

    check = doctor.usage([plan("a", 8), plan("b", 64), plan("a", 16), plan("c", 0)])
    assert check.text == "used by plans, by namespace: b 64, a 24"


def test_rights_that_are_missing_are_named_with_what_needs_them() -> None:
    allowed = dict.fromkeys(RIGHTS, True)
    assert doctor.rights(allowed).verdict is Verdict.OK
    allowed[RIGHTS[-1]] = False
    assert doctor.rights(allowed).text == "you may not list nodes (for archipelago pools)"


@pytest.mark.parametrize(
    ("body", "verdict", "remedy"),
    [
        (plan_body(), Verdict.OK, ""),
        (plan_body("False", "Infeasible"), Verdict.FAIL, REMEDY[Reason.INFEASIBLE]),
        (plan_body(generation=2), Verdict.WARN, REMEDY[Reason.PUBLISHED]),
        ({**plan_body(), "status": {}}, Verdict.FAIL, "see the lines about the operator"),
    ],
)
def test_a_plan_is_judged_by_its_condition_ready(
    body: dict[str, Any], verdict: Verdict, remedy: str
) -> None:
    check = doctor.plan(body)
    assert (check.subject, check.verdict, check.remedy) == ("plan ns/paper", verdict, remedy)


def test_a_valid_table_with_the_hash_of_the_status_is_fine() -> None:
    check = doctor.table(plan_body(), stored(CONTENT))
    assert check is not None
    assert check.verdict is Verdict.OK
    assert digest()[:12] in check.text


def test_a_table_that_is_gone_foreign_invalid_or_another_fails() -> None:
    foreign = stored(CONTENT)
    foreign["metadata"]["ownerReferences"] = []
    broken, cut, other = stored(CONTENT), stored(CONTENT), stored(CONTENT)
    table = json.loads(broken["data"]["table.json"])
    table["content"]["models"][0]["routes"][0]["pairs"][0]["weight"] -= 1
    broken["data"]["table.json"] = json.dumps(table)
    cut["data"]["table.json"] = "{"
    table = json.loads(other["data"]["table.json"])
    table["content"]["affinityKey"] = "x-other"
    other["data"]["table.json"] = json.dumps(table)
    checks = [doctor.table(plan_body(), body) for body in (None, foreign, broken, cut, other)]
    texts = ["does not exist", "another owner", "weights", "not JSON", "the status names"]
    for check, text in zip(checks, texts, strict=True):
        assert isinstance(check, Check)
        assert check.verdict is Verdict.FAIL
        assert text in check.text


def test_a_plan_that_was_never_published_has_no_table_to_judge() -> None:
    assert doctor.table({**plan_body(), "status": {}}, None) is None


def node(name: str, product: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
        "spec": {},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"},
            "capacity": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_accelerators_of_nodes_are_known_or_named() -> None:
    check = doctor.nodes([node("n-0", "NVIDIA-H100-80GB-HBM3")])
    assert (check.verdict, check.text) == (Verdict.OK, "8 GPUs that can be used: H100")
    warning = doctor.nodes([node("n-0", "NVIDIA-H100-80GB-HBM3"), node("n-1", "Tesla-K80")])
    assert warning.verdict is Verdict.WARN
    assert "n-1 (nvidia.com/gpu.product=Tesla-K80)" in warning.text
    assert doctor.nodes([]).verdict is Verdict.WARN


def test_remedies_are_those_of_the_page_for_every_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    page = {name: todo for name, todo in rows if name in set(Reason)}
    types = PAGE.read_text().partition("## Reasons")[0]
    assert types  # conditions and reasons may share a word: the later row, the reason's, counts
    assert {str(reason): remedy for reason, remedy in REMEDY.items()} == page


def test_a_table_in_shards_is_judged_as_a_whole() -> None:
    pieces = split(CONTENT, 200)
    shards = shards_of("paper", pieces)
    body = stored(CONTENT, pieces)
    texts = {s.name: p.of(CONTENT) for s, p in zip(shards, pieces, strict=True)}

    good = doctor.table(plan_body(), body, texts)
    gone = doctor.table(plan_body(), body, {k: v for k, v in texts.items() if k != shards[1].name})
    mixed = doctor.table(plan_body(), body, texts | {shards[1].name: texts[shards[0].name]})

    assert good is not None
    assert gone is not None
    assert mixed is not None
    assert (good.verdict, f"in {len(shards)} shards" in good.text) == (Verdict.OK, True)
    assert (gone.verdict, shards[1].name in gone.text) == (Verdict.FAIL, True)
    assert (mixed.verdict, "does not hold" in mixed.text) == (Verdict.FAIL, True)
