"""The Grafana dashboard of the operator, generated: ``python -m archipelago.operator.dashboard``.

``panels`` says what is shown; here it gets Grafana's form and its place.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.panels import ROWS

if TYPE_CHECKING:
    from archipelago.operator.panels import Panel

WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "Archipelago",
        "uid": "archipelago-operator",
        "description": "Serving plans: what they carry, what was done about it, and the operator.",
        "tags": ["archipelago"],
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _variable("namespace"), _variable("plan")]},
        "panels": _placed(),
    }


def _placed() -> list[dict[str, Any]]:
    """All panels, two in a row, under headings; numbered in order."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        where = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        placed.append({"type": "row", "title": title, "collapsed": False, "gridPos": where})
        for place, panel in enumerate(panels):
            row, column = divmod(place, 2)
            half = WIDTH // 2
            at = {"h": HEIGHT, "w": half, "x": half * column, "y": y + 1 + HEIGHT * row}
            placed.append(_panel(panel) | {"gridPos": at})
        y += 1 + HEIGHT * -(-len(panels) // 2)
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": _thresholds(panel)} | _drawn(panel),
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": q.expression,
             "legendFormat": q.legend}
            for n, q in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "transparent", "value": None}]
    steps += [{"color": "orange", "value": line} for line in panel.lines]
    if panel.kind == "state-timeline":
        steps = [{"color": "red", "value": None}, {"color": "green", "value": 1}]
    return {"mode": "absolute", "steps": steps}


def _drawn(panel: Panel) -> dict[str, Any]:
    """Lines of meaning are drawn into the diagram; states are coloured by them."""
    if panel.kind == "state-timeline":
        return {"color": {"mode": "thresholds"}}
    return {"custom": {"thresholdsStyle": {"mode": "line"}}} if panel.lines else {}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource",
            "query": "prometheus"}  # fmt: skip


def _variable(label: str) -> dict[str, Any]:
    """A choice of several values of a label; all of them to begin with."""
    query = f"label_values(archipelago_plan_ready, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def to_json() -> str:
    """As it is committed: the same code gives the same bytes."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(to_json())
