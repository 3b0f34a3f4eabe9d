"""Alert rules of the operator, generated: ``python -m archipelago.operator.alerts FOLDER``.

Few, each for something that a person can do something about; docs/runbook.md has a section for
each, under its name. They are written twice: as a rule file that Prometheus reads, and as an object
that prometheus-operator reads.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

RUNBOOK: Final = "https://archipelago.dev/docs/runbook"
"""Where docs/runbook.md is published; the chart's ``monitoring.runbook`` puts another there."""
RULES: Final = "monitoring/alerts.yaml"
OBJECT: Final = "components/alerts/prometheusrule.yaml"
HEADER: Final = "# Generated from operator/alerts.py by `make monitoring`; do not edit.\n"


class Severity(StrEnum):
    """Who is told: somebody now, somebody today, nobody who does not look."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Alert:
    """One rule. ``wait``: how long the expression must hold, as Prometheus writes durations."""

    name: str
    expression: str
    wait: str
    severity: Severity
    summary: str

    def rule(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.wait,
            "labels": {"severity": self.severity.value},
            "annotations": {
                "summary": self.summary,
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


_PLAN: Final = "{{ $labels.namespace }}/{{ $labels.plan }}"
ALERTS: Final = (
    Alert(
        "ArchipelagoOperatorDown",
        "absent(archipelago_process_start_time_seconds)",
        "5m",
        Severity.CRITICAL,
        "No operator is scraped: tables stay as they are, and nothing is repaired.",
    ),
    Alert(
        "ArchipelagoWatchStale",
        "max by (kind) (archipelago_stream_age_seconds) > 400",
        "1m",
        Severity.WARNING,
        "The operator has heard nothing of {{ $labels.kind }} for "
        "{{ $value | humanizeDuration }}: it does not see changes.",
    ),
    Alert(
        "ArchipelagoQueueStuck",
        "archipelago_queue_oldest_age_seconds > 120",
        "2m",
        Severity.WARNING,
        "A plan has been waiting for its turn for {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "ArchipelagoPlanNotReady",
        "archipelago_plan_ready == 0",
        "15m",
        Severity.WARNING,
        f"Plan {_PLAN} is not served as it is written.",
    ),
    Alert(
        "ArchipelagoNoHeadroom",
        "archipelago_plan_headroom < 1",
        "5m",
        Severity.CRITICAL,
        f"Plan {_PLAN} carries {{{{ $value | humanizePercentage }}}} of its traffic: queues grow.",
    ),
    Alert(
        "ArchipelagoPlanDegraded",
        "archipelago_plan_degraded_share",
        "10m",
        Severity.WARNING,
        f"No change that plan {_PLAN} allows gives it enough headroom; "
        "{{ $value | humanizePercentage }} of the demand fits.",
    ),
    Alert(
        "ArchipelagoMetricsLost",
        "archipelago_plan_metrics_available == 0",
        "10m",
        Severity.WARNING,
        f"No window of plan {_PLAN}'s traffic is read whole: its table may stay as it is.",
    ),
    Alert(
        "ArchipelagoProposalWaiting",
        "archipelago_plan_proposal_pending == 1",
        "15m",
        Severity.INFO,
        f"A change of plan {_PLAN} waits for approval; it expires.",
    ),
)


def groups() -> dict[str, Any]:
    """All rules, as a rule file holds them."""
    return {"groups": [{"name": "archipelago", "rules": [alert.rule() for alert in ALERTS]}]}


def rule_object() -> dict[str, Any]:
    """The same as prometheus-operator's object."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "archipelago-operator",
            "namespace": "archipelago-system",
            "labels": {"app.kubernetes.io/part-of": "archipelago"},
        },
        "spec": groups(),
    }


def to_yaml(document: dict[str, Any]) -> str:
    """As it is committed: the same rules give the same bytes."""
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=1000)


def main() -> None:
    """Write both files, below the folder ``deploy``."""
    folder = Path(sys.argv[1])
    (folder / RULES).write_text(to_yaml(groups()))
    (folder / OBJECT).write_text(to_yaml(rule_object()))


if __name__ == "__main__":
    main()
