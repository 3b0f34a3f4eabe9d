"""What to do about each reason, as docs/conditions.md says it; a test compares the two."""

from __future__ import annotations

from typing import Final

from archipelago.operator.conditions import Reason

REMEDY: Final[dict[Reason, str]] = {
    Reason.PLANNING: "Wait: at most `spec.planner.timeLimitSeconds` and a few seconds.",
    Reason.NOT_PLANNED: "Mend what `Planned` says.",
    Reason.WAITING_FOR_COLLECTION: (
        "Wait for Kubernetes' garbage collector; after a minute look whether a finalizer "
        "holds the ConfigMap."
    ),
    Reason.PLANNED: "Nothing: this is the good case.",
    Reason.PUBLISHED: "Nothing: this is the good case.",
    Reason.STATIC_COUNT: "Nothing: this is the good case.",
    Reason.NODES_FOUND: "Nothing: this is the good case.",
    Reason.ACTIVE: "Nothing: this is the good case.",
    Reason.SUSPENDED: "Set `spec.suspend` to false to go on.",
    Reason.NOT_CONFIGURED: "Nothing, unless live traffic should be observed.",
    Reason.TABLE_RESTORED: (
        "Change the ServingPlan instead; your own keys, labels and annotations are kept."
    ),
    Reason.INFEASIBLE: (
        "Make one of the changes that the message lists. The last good table stays in use."
    ),
    Reason.INVALID_SPEC: "Correct the fields that the message names.",
    Reason.UNKNOWN_ACCELERATOR: "Use one of the names in the message.",
    Reason.UNKNOWN_MODEL: "Use one of the names in the message.",
    Reason.POOL_CLAIMED: "Narrow the selector of one of the plans, or delete the older one.",
    Reason.NO_NODES: (
        "Correct the pool's selector, accelerator or domain label, or mend the nodes; or do what "
        "the message says ([operating](operating.md#nodes))."
    ),
    Reason.NAME_CONFLICT: (
        "Rename the plan, or delete that ConfigMap; it is looked at again every 15 s."
    ),
    Reason.TABLE_TOO_LARGE: (
        "Use fewer ranges (`spec.models[].workload.ranges.count`) or larger islands "
        "(`spec.pools[].islandSizes`)."
    ),
    Reason.WRITE_REFUSED: "Do what the server's message says; it is tried again after 1 to 30 s.",
    Reason.LAST_GOOD_KEPT: (
        "Mend what `Planned` says; routers go on with the table that they have."
    ),
    Reason.PLANNER_TIMEOUT: (
        "Raise the limit, or use fewer ranges, pools or island sizes. It is tried again after"
        " 1 to 30 minutes."
    ),
    Reason.PLANNER_OOM: (
        "Use fewer ranges, pools or island sizes, or raise `ARCHIPELAGO_PLANNER_MEMORY_MIB` "
        "of the operator."
    ),
    Reason.PLANNER_CRASHED: (
        "Report it with the ServingPlan and the operator's log. It is tried again after 1 to "
        "30 minutes."
    ),
    Reason.SOLVER_FAILED: (
        "Raise `spec.planner.timeLimitSeconds`; report it where that does not help."
    ),
    Reason.CHECK_FAILED: (
        "Report it with the ServingPlan; the message lists what the checker found."
    ),
    Reason.OBSERVED: ("Nothing: this is the good case."),
    Reason.REPAIRED: (
        "Nothing: mend the nodes; what a better split reaches is decided in the next moment."
    ),
    Reason.REROUTED: ("Nothing; the message says what it gained."),
    Reason.FLIPPED: ("Nothing; the message names them and what it gained."),
    Reason.RESHAPED: (
        "Apply the new workloads of `archipelago render`; the table sends requests to an island "
        "when it is ready."
    ),
    Reason.PROPOSED: ("Set `spec.replanning.approve` to the hash, or leave it: it expires."),
    Reason.DEGRADED: ("Add GPUs, or raise the limits of `spec.replanning`."),
    Reason.SOURCE_UNKNOWN: (
        "Use one of the names in the message, or ask the operator's administrator to add it."
    ),
    Reason.SOURCE_FAILED: ("Look at the source; it is asked again in the next window."),
    Reason.ANSWER_UNUSABLE: (
        "Correct the address or the labels of the source in the operator's configuration; where "
        "the message names `DuplicateSeries`, have each pod scraped once, and ask a server that "
        "merges replicas."
    ),
    Reason.SIGNAL_MISSING: (
        "Label the pods with `archipelago.dev/plan` and `archipelago.dev/island`, and have them "
        "scraped; after a start, wait for two scrapes. Where engines restarted (`CounterReset`, "
        "`SeriesLost`, `SeriesAppeared`), nothing: the next whole window says so."
    ),
}
