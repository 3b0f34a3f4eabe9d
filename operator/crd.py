"""The CustomResourceDefinition of ServingPlan, generated: ``python -m archipelago.operator.crd``.

``spec`` comes from the models that the command line reads files with (``planner/spec``), ``status``
from the models here. ``crds/`` holds the printed form; a test compares the two.
"""

import sys
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from archipelago.operator.structural import Schema, structural
from archipelago.planner.spec.rules import NAMED_KEY
from archipelago.planner.spec.schema import API_VERSION, KIND, ServingPlanSpec

GROUP, VERSION = API_VERSION.split("/")
PLURAL, SINGULAR, SHORT_NAME = "servingplans", "servingplan", "splan"
NAME = f"{PLURAL}.{GROUP}"
CONDITION_NAME = r"^[A-Z][A-Za-z]{2,40}$"
MESSAGE_LENGTH = 1024

Figure: TypeAlias = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$", max_length=32)]
Word: TypeAlias = Annotated[str, Field(pattern=CONDITION_NAME, max_length=63)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class StatusObject(BaseModel):
    """An object of the status: camelCase outside, no unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, extra="forbid")


class ConditionStatus(StatusObject):
    """One condition, with the fields of the Kubernetes API conventions."""

    type: Word = Field(description="What the condition is about, for example Ready or Planned.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the condition holds; Unknown while it is being found out."
    )
    reason: Word = Field(description="Why, as one CamelCase word of a closed vocabulary.")
    message: str = Field(
        max_length=MESSAGE_LENGTH, description="Why, in a sentence that says what to do about it."
    )
    observed_generation: Count = Field(
        description="Generation of the spec that the condition was found for."
    )
    last_transition_time: datetime = Field(
        description="Since when the condition has this status (RFC 3339)."
    )


class SummaryStatus(StatusObject):
    """The published plan in a few figures; the rest is in the routing table's ConfigMap."""

    strategy: str | None = Field(
        default=None, max_length=63, description="Planning strategy that found the plan."
    )
    objective: Literal["throughput", "headroom", "cost"] | None = Field(
        default=None,
        description="What was optimised: throughput [requests/s], headroom [multiple] or cost "
        "[$/h].",
    )
    throughput: Figure | None = Field(
        default=None,
        description="Requests that the plan sustains, all models together [requests/s].",
    )
    headroom: Figure | None = Field(
        default=None, description="Multiple of the stated request rates that the plan sustains."
    )
    bound: Figure | None = Field(
        default=None,
        description="Proven bound of the objective, in its unit: no plan has more throughput "
        "[requests/s] or headroom [multiple], or less cost [$/h].",
    )
    gap: Figure | None = Field(
        default=None,
        description="Proven distance to the best possible plan, a share of the bound or cost.",
    )
    cost_per_hour: Figure | None = Field(
        default=None, description="Price of the islands in use for one hour [$/h]."
    )
    islands: Count | None = Field(
        default=None, description="Number of islands in the plan [islands]."
    )
    gpus: Count | None = Field(default=None, description="GPUs of all islands together [GPUs].")
    rented_gpus: Count | None = Field(
        default=None,
        description="GPUs that are to be rented, beside those that exist [GPUs]; absent for none.",
    )
    slo: Literal["Met", "Missed", "None"] | None = Field(
        default=None,
        description="Whether the evaluated plan keeps every latency target; None: there is no "
        "target.",
    )
    ttft_milliseconds: Count | None = Field(
        default=None,
        description="Largest mean time to first token, at the plan's full load, of the models that "
        "have such a target: waiting and prefill on the busiest island, over the model's mix of "
        "lengths, by the queueing formula that the target limits [ms]. Absent without a target.",
    )
    tpot_milliseconds: Count | None = Field(
        default=None, description="Largest evaluated time per output token of any island [ms]."
    )
    content_hash: str | None = Field(
        default=None,
        max_length=71,
        description="Hash of the routing table's content (SHA-256, hex).",
    )
    short_hash: str | None = Field(
        default=None, max_length=12, description="The first 12 digits of contentHash, to show."
    )
    table: str | None = Field(
        default=None,
        max_length=253,
        description="Name of the ConfigMap that holds the routing table.",
    )
    table_sequence: Count | None = Field(
        default=None,
        description="Highest sequence number given to a routing table of this plan; it only ever "
        "grows [tables].",
    )


class LastPlanStatus(StatusObject):
    """The last planning run, whether or not its plan was published."""

    generation: Count = Field(description="Generation of the spec that was planned.")
    time: datetime = Field(description="When the run ended (RFC 3339).")
    outcome: Word = Field(description="How it ended, as one CamelCase word, for example Planned.")
    trigger: Word | None = Field(
        default=None, description="What started it, as one CamelCase word, for example SpecChanged."
    )
    plan_seconds: Figure | None = Field(default=None, description="How long the run took [s].")
    message: str | None = Field(
        default=None,
        max_length=MESSAGE_LENGTH,
        description="What the run decided, in one sentence.",
    )


class ServingPlanStatus(StatusObject):
    """What the operator says about the plan; written by the operator only."""

    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that the status speaks about."
    )
    conditions: Annotated[
        list[ConditionStatus], Field(max_length=16, json_schema_extra={NAMED_KEY: "type"})
    ] = Field(
        default=[], description="Ready, Planned, InventoryResolved, MetricsAvailable and others."
    )
    summary: SummaryStatus | None = Field(
        default=None,
        description="The published plan in a few figures; absent before the first one.",
    )
    last_plan: LastPlanStatus | None = Field(
        default=None, description="The last planning run; absent before the first one."
    )


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


HEADER = (
    "# Generated from the models in planner/spec and operator/crd.py by `make crds`; do not edit.\n"
)


def to_yaml() -> str:
    """Print the definition as it is committed: the same models give the same bytes."""
    return HEADER + yaml.safe_dump(definition(), sort_keys=False, width=100, allow_unicode=False)


if __name__ == "__main__":
    sys.stdout.write(to_yaml())
