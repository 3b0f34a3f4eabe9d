"""The CustomResourceDefinition of ServingPlan, generated: ``python -m archipelago.operator.crd``.

``spec`` comes from the models that the command line reads files with (``planner/spec``), ``status``
from those in ``statusschema``. ``crds/`` holds the printed form; a test compares the two.
"""

import sys
from typing import Any

import yaml

from archipelago.operator.statusschema import ServingPlanStatus
from archipelago.operator.structural import Schema, structural
from archipelago.planner.spec.schema import API_VERSION, KIND, ServingPlanSpec

GROUP, VERSION = API_VERSION.split("/")
PLURAL, SINGULAR, SHORT_NAME = "servingplans", "servingplan", "splan"
NAME = f"{PLURAL}.{GROUP}"


def definition() -> dict[str, Any]:
    """Build the whole CustomResourceDefinition, as plain data."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "archipelago"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["archipelago"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _schema() -> Schema:
    status = structural(ServingPlanStatus.model_json_schema())
    status["properties"]["conditions"].pop("default", None)
    status["properties"]["lastDecision"]["properties"]["rungs"].pop("default", None)
    return {
        "type": "object",
        "description": "A ServingPlan turns GPU pools, language models and their traffic into "
        "islands, phases and routes, with a proof of how good the plan is.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253,
                           "description": "Group and version of the resource."},
            "kind": {"type": "string", "maxLength": 63, "description": "Kind of the resource."},
            "metadata": {"type": "object"},
            "spec": structural(ServingPlanSpec.model_json_schema()),
            "status": status,
        },
    }  # fmt: skip


def _columns() -> list[dict[str, Any]]:
    """Columns of ``kubectl get splan``; priority 1 only with ``-o wide``."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    summary = ".status.summary"
    table = [
        ("Ready", "string", f"{ready}.status", 0, "Whether the routing table serves this spec."),
        ("Reason", "string", f"{ready}.reason", 0, "Why it is ready or not."),
        ("Islands", "integer", f"{summary}.islands", 0, "Islands in the plan."),
        ("GPUs", "integer", f"{summary}.gpus", 0, "GPUs of all islands."),
        ("Cost/h", "string", f"{summary}.costPerHour", 0, "Price of the islands [$/h]."),
        ("SLO", "string", f"{summary}.slo", 0, "Whether all latency targets are kept."),
        ("Req/s", "string", f"{summary}.throughput", 1, "Sustained requests [requests/s]."),
        ("Gap", "string", f"{summary}.gap", 1, "Proven distance to the best possible plan."),
        ("TTFT", "integer", f"{summary}.ttftMilliseconds", 1, "Mean time to first token [ms]."),
        ("TPOT", "integer", f"{summary}.tpotMilliseconds", 1, "Time per output token [ms]."),
        ("Hash", "string", f"{summary}.shortHash", 1, "Hash of the routing table's content."),
        ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the plan was created."),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": text}
        for name, kind, path, priority, text in table
    ]


HEADER = "# Generated from planner/spec and operator/statusschema.py by `make crds`; do not edit.\n"


def to_yaml() -> str:
    """Print the definition as it is committed: the same models give the same bytes."""
    return HEADER + yaml.safe_dump(definition(), sort_keys=False, width=100, allow_unicode=False)


if __name__ == "__main__":
    sys.stdout.write(to_yaml())
