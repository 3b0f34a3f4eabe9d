"""What the dashboard shows: expressions of PromQL with titles and units, as data.

Rows go from what a user of a plan asks to what an administrator of the operator asks: is it served,
does it carry its traffic, what was done about it; then the process itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_OF: Final = '{namespace=~"$namespace",plan=~"$plan"}'


@dataclass(frozen=True)
class Query:
    """One expression of PromQL and the name of its lines."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A diagram. ``unit`` in Grafana's words; ``lines``: values that mean something."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    lines: tuple[float, ...] = ()
    kind: str = "timeseries"


_PLAN: Final = "{{namespace}}/{{plan}}"
ROWS: Final = {
    "Plans": (
        Panel(
            "Plans that are ready",
            "1 where the stored table answers the spec; absent while suspended.",
            "none",
            (Query(f"archipelago_plan_ready{_OF}", _PLAN),),
            kind="state-timeline",
        ),
        Panel(
            "Sustained and observed requests",
            "What the table was planned for, and what arrived in the last window.",
            "reqps",
            (
                Query(
                    f"archipelago_plan_throughput_requests_per_second{_OF}", f"{_PLAN} sustained"
                ),
                Query(f"archipelago_plan_observed_requests_per_second{_OF}", f"{_PLAN} observed"),
            ),
        ),
        Panel(
            "Proven bound of the objective",
            "No plan over the same choices is better than this.",
            "none",
            (Query(f"archipelago_plan_bound{_OF}", _PLAN),),
        ),
        Panel(
            "Price of the islands",
            "Dollars per hour.",
            "currencyUSD",
            (Query(f"archipelago_plan_cost_dollars_per_hour{_OF}", _PLAN),),
        ),
    ),
    "Traffic against plan": (
        Panel(
            "Headroom",
            "Multiple of the observed demand that the table carries; below 1 queues grow.",
            "none",
            (
                Query(f"archipelago_plan_headroom{_OF}", _PLAN),
                Query(f"archipelago_plan_headroom_low{_OF}", f"{_PLAN} at least"),
            ),
            lines=(1.0, 1.25),
        ),
        Panel(
            "Headroom that each rung would reach",
            "Reroute changes weights, Flip the phase of islands, Reshape the islands.",
            "none",
            (Query(f"archipelago_plan_rung_headroom{_OF}", f"{_PLAN} {{{{rung}}}}"),),
            lines=(1.0,),
        ),
        Panel(
            "Regret",
            "How far the table is below what the best rung would carry, a share of that.",
            "percentunit",
            (Query(f"archipelago_plan_regret{_OF}", _PLAN),),
        ),
        Panel(
            "Degraded: share of the demand that fits",
            "Only while no allowed change restores safety.",
            "percentunit",
            (Query(f"archipelago_plan_degraded_share{_OF}", _PLAN),),
        ),
        Panel(
            "Lost islands and waiting proposals",
            "Islands on lost nodes; 1 where a change waits for approval.",
            "none",
            (
                Query(f"archipelago_plan_lost_islands{_OF}", f"{_PLAN} lost"),
                Query(f"archipelago_plan_proposal_pending{_OF}", f"{_PLAN} proposal"),
            ),
        ),
        Panel(
            "Traffic is observed",
            "0 where the metric source or what is needed of it is lost.",
            "none",
            (Query(f"archipelago_plan_metrics_available{_OF}", _PLAN),),
            kind="state-timeline",
        ),
    ),
    "Re-planning": (
        Panel(
            "Re-plans",
            "Changes of tables in an hour, by what made them and how much they changed.",
            "none",
            (
                Query(
                    "sum by (trigger, rung) (increase(archipelago_replans_total[1h]))",
                    "{{trigger}}: {{rung}}",
                ),
            ),
        ),
        Panel(
            "Time to a decision, p95",
            "From the window's end, or the event, to the decision.",
            "s",
            (
                Query(
                    "histogram_quantile(0.95, sum by (kind, le) "
                    "(rate(archipelago_replan_seconds_bucket[$__rate_interval])))",
                    "{{kind}}",
                ),
            ),
        ),
        Panel(
            "Questions to metric sources",
            "By source and by how the answer was.",
            "reqps",
            (
                Query(
                    "sum by (source, outcome) "
                    "(rate(archipelago_source_requests_total[$__rate_interval]))",
                    "{{source}}: {{outcome}}",
                ),
            ),
        ),
        Panel(
            "Nodes with GPUs",
            "By whether they can be used.",
            "none",
            (Query("archipelago_nodes", "{{state}}"),),
        ),
    ),
    "Planner": (
        Panel(
            "Answers of the planner",
            "In an hour, by outcome.",
            "none",
            (
                Query(
                    "sum by (outcome) (increase(archipelago_plannings_total[1h]))",
                    "{{outcome}}",
                ),
            ),
        ),
        Panel(
            "Time of a plan, p95",
            "Of planner processes, whatever came of it.",
            "s",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le) "
                    "(rate(archipelago_planning_seconds_bucket[$__rate_interval])))",
                    "p95",
                ),
            ),
        ),
        Panel(
            "Planner processes replaced",
            "In an hour, by reason.",
            "none",
            (
                Query(
                    "sum by (reason) (increase(archipelago_planner_replacements_total[1h]))",
                    "{{reason}}",
                ),
            ),
        ),
    ),
    "Operator": (
        Panel(
            "Age of watches",
            "A healthy one is asked for anew every 300 s.",
            "s",
            (Query("max by (kind) (archipelago_stream_age_seconds)", "{{kind}}"),),
            lines=(400.0,),
        ),
        Panel(
            "Longest wait in the queue",
            "Of a key that is due.",
            "s",
            (Query("archipelago_queue_oldest_age_seconds", "oldest"),),
        ),
        Panel(
            "Writes",
            "Requests that change objects; none while nothing changes.",
            "reqps",
            (
                Query(
                    "sum by (kind) (rate(archipelago_writes_total[$__rate_interval]))", "{{kind}}"
                ),
            ),
        ),
        Panel(
            "Work that failed, requests that failed",
            "Tried again, ever more rarely.",
            "reqps",
            (
                Query(
                    "sum by (error) (rate(archipelago_reconcile_failures_total[$__rate_interval]))",
                    "{{error}}",
                ),
                Query(
                    "sum by (kind) (rate(archipelago_stream_failures_total[$__rate_interval]))",
                    "watch of {{kind}}",
                ),
            ),
        ),
        Panel(
            "Delay of the event loop, p99",
            "Above 50 ms something works where it should not.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le) "
                    "(rate(archipelago_loop_lag_seconds_bucket[$__rate_interval])))",
                    "p99",
                ),
            ),
            lines=(0.05,),
        ),
        Panel(
            "Memory",
            "Of the operator itself, without planner processes.",
            "bytes",
            (Query("archipelago_process_resident_memory_bytes", "resident"),),
        ),
        Panel(
            "Processor",
            "Cores, of the operator itself.",
            "none",
            (
                Query(
                    "rate(archipelago_process_cpu_seconds_total[$__rate_interval])",
                    "cores",
                ),
            ),
        ),
        Panel(
            "Clock skew",
            "How far the wall clock has left the monotonic one since the start.",
            "s",
            (Query("archipelago_clock_skew_seconds", "skew"),),
            lines=(-300.0, 300.0),
        ),
    ),
}
