"""What a release stored: plans with their status and their tables, in a file of ``releases``.

``python -m tests.support.e2e.stored`` plays a control plane and writes the file of this version. It
is written once for a release. A later release must read it: tests/e2e/test_upgrade.py.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.controlplane import ControlPlane
from tests.support.controlplane.cluster import Cluster
from tests.support.e2e.operators import ROOT, Operator, Plans, grant, resource, running, small

FOLDER = Path(__file__).parent / "releases"
APPLY = "application/apply-patch+yaml"
UID = "uid-of-the-plan"
"""Stands for what an API server gives to each plan."""


def specs() -> dict[str, dict[str, Any]]:
    """Plans of three kinds: the smallest, one with two pools and a budget, one that fails."""
    (pool,) = small()["pools"]
    cheap = {"name": "l4", "accelerator": "L4", "count": 8, "pricePerGPUHour": "0.50"}
    (model,) = small()["models"]
    hasty = {**model, "slo": {"tpotMilliseconds": 1}}
    return {
        "smallest": small(),
        "two-pools": small(pools=[pool, cheap], budgetPerHour="16"),
        "fails": small(models=[hasty]),
    }


def kept(body: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what an API server gives it."""
    given = ("labels", "annotations", "ownerReferences", "name")
    meta = {name: body["metadata"][name] for name in given if name in body["metadata"]}
    rest = ("apiVersion", "kind", "spec", "status", "data")
    return {**{name: body[name] for name in rest if name in body}, "metadata": meta}


def record(plans: Plans) -> list[dict[str, Any]]:
    """What is stored of these plans; each is followed by its table, if it has one."""
    objects = []
    for name in specs():
        plan = plans.plan(name)
        plan["metadata"].pop("annotations", None)  # of kubectl
        objects.append(json.loads(json.dumps(kept(plan)).replace(plan["metadata"]["uid"], UID)))
        if table := plans.get("configmap", f"{name}-routing"):
            text = json.dumps(kept({"apiVersion": "v1", "kind": "ConfigMap", **table}))
            objects.append(json.loads(text.replace(plan["metadata"]["uid"], UID)))
    return objects


def restore(plans: Plans, objects: list[dict[str, Any]]) -> None:
    """Store them as the operator of that release did: each part by its field manager."""
    uid = ""
    core = f"/api/v1/namespaces/{plans.namespace}/configmaps"
    for stored in objects:
        name = stored["metadata"]["name"]
        if stored["kind"] == "ServingPlan":
            plans.apply(name, stored["spec"])
            uid = plans.plan(name)["metadata"]["uid"]
        body = json.loads(json.dumps(stored).replace(UID, uid))
        if stored["kind"] == "ConfigMap":
            query = {"fieldManager": "archipelago", "force": "true"}
            plans.api("PATCH", f"{core}/{name}", body, APPLY, **query)
        else:
            group = stored["apiVersion"]
            path = f"/apis/{group}/namespaces/{plans.namespace}/servingplans/{name}/status"
            query = {"fieldManager": "archipelago-status", "force": "true"}
            status = {key: body[key] for key in ("apiVersion", "kind", "metadata", "status")}
            plans.api("PATCH", path, status, APPLY, **query)


def main() -> None:
    """Write the file of this version."""
    version = (ROOT / "deploy/chart/Chart.yaml").read_text().split("appVersion: ")[1].split()[0]
    with (
        ControlPlane.start(manifests=[ROOT / "crds"]) as plane,
        tempfile.TemporaryDirectory() as at,
    ):
        cluster: Cluster = plane
        with plane.namespace("stored") as namespace:
            plans = Plans(plane, namespace)
            for name, spec in specs().items():
                plans.kubectl("apply", "-f", "-", input=json.dumps(resource(name, spec)))
            with running(Operator(grant(cluster), Path(at) / "log")):
                for name in specs():
                    condition = "Ready=false" if name == "fails" else "Ready"
                    wait = f"--for=condition={condition}"
                    plans.kubectl("wait", wait, f"splan/{name}", "--timeout=60s")
            objects = record(plans)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(json.dumps(objects, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
