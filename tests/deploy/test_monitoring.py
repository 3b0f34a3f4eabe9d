"""Alert rules and dashboard: read by Prometheus' own tool, and true.

Every name that they use is on the operator's metrics page; every alert fires where it should and is
silent close by; every alert has its section of the runbook.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.metrics import Metrics
from tests.deploy.rendering import DEPLOY, REPO
from tests.operator.test_metrics import labels_of

CASES = DEPLOY / "monitoring" / "alerts.test.yaml"
DASHBOARD = DEPLOY / "monitoring" / "dashboard.json"
RULES = "monitoring/alerts.yaml"
OBJECT = "components/alerts/prometheusrule.yaml"
RUNBOOK = "https://archipelago.dev/docs/how-to/runbook"
ALERTS = yaml.safe_load((DEPLOY / RULES).read_text())["groups"][0]["rules"]
OF_GRAFANA = {"$__rate_interval": "5m", "$namespace": ".*", "$plan": ".*"}


def told(command: Path, *arguments: str | Path) -> tuple[int, str]:
    """Exit status and words of promtool."""
    done = subprocess.run(
        [command, *arguments], capture_output=True, text=True, check=False, cwd=REPO
    )
    return done.returncode, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    """The committed rules."""
    (group,) = yaml.safe_load((DEPLOY / RULES).read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    """Return the committed dashboard."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def expressions() -> list[str]:
    """Every expression of the dashboard, as Grafana would send it."""
    found = [query["expr"] for panel in dashboard()["panels"] for query in panel.get("targets", ())]
    for word, value in OF_GRAFANA.items():
        found = [expression.replace(word, value) for expression in found]
    return found


def names() -> set[str]:
    """Every name that can stand on the metrics page."""
    metrics = Metrics()
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix
        for family in metrics.registry.collect()
        for suffix in suffixes.get(family.type, ("",))
    }


def test_the_object_holds_the_same_rules_as_the_file() -> None:
    found = yaml.safe_load((DEPLOY / OBJECT).read_text())
    assert (found["apiVersion"], found["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert found["spec"] == yaml.safe_load((DEPLOY / RULES).read_text())


def test_alerts_are_few_and_each_has_severity_summary_and_a_section_of_the_runbook() -> None:
    """A46."""
    page = (REPO / "docs" / "how-to" / "runbook.md").read_text()
    sections = dict(
        re.findall(r"^## (Archipelago\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    )
    assert 1 <= len(rules()) <= 10
    assert [rule["alert"] for rule in rules()] == list(sections)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert len(rule["annotations"]["summary"]) >= 20
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"
        for part in ("**What it means.**", "**How to look.**", "**What to do.**"):
            assert part in sections[rule["alert"]], (rule["alert"], part)


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    for alert in ALERTS:
        mine = [[case for case in test["alert_rule_test"] if case["alertname"] == alert["alert"]]
                for test in tests]  # fmt: skip
        mine = [cases for cases in mine if cases]
        assert len(mine) >= 2, alert["alert"]
        assert sum(any("exp_alerts" in case for case in cases) for cases in mine) >= 1
        assert sum(all("exp_alerts" not in case for case in cases) for cases in mine) >= 1


def test_prometheus_reads_the_rules_and_finds_every_case_true(promtool: Path) -> None:
    assert told(promtool, "check", "rules", DEPLOY / RULES)[0] == 0
    assert told(promtool, "test", "rules", CASES) == (
        0, f"Unit Testing:  {CASES}\n  SUCCESS\n\n"
    )  # fmt: skip


@pytest.mark.parametrize("alert", [alert["alert"] for alert in ALERTS])
@pytest.mark.parametrize("change", ["never", "at once", "always"])
@pytest.mark.slow
def test_a_rule_that_is_wrong_fails_its_cases(
    alert: str, change: str, promtool: Path, tmp_path: Path
) -> None:
    """The cases can fail: of a rule that never fires, does not wait, or fires on everything."""
    found = yaml.safe_load((DEPLOY / RULES).read_text())
    (rule,) = [rule for rule in found["groups"][0]["rules"] if rule["alert"] == alert]
    rule |= {
        "never": {"expr": f"({rule['expr']}) and absent(vector(1))"},
        "at once": {"for": "0s"},
        "always": {"expr": re.sub(r" *(<|>|==).*", "", rule["expr"])},
    }[change]
    if change == "always" and rule["expr"] == next(
        a["expr"] for a in ALERTS if a["alert"] == alert
    ):
        rule["expr"] = "vector(1)"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(found))
    (tmp_path / "cases.yaml").write_text(CASES.read_text())
    status, words = told(promtool, "test", "rules", tmp_path / "cases.yaml")
    assert status == 1, words
    assert alert in words


def test_every_expression_of_the_dashboard_is_one_that_prometheus_reads(
    promtool: Path, tmp_path: Path
) -> None:
    """A47, by the parser that will read them."""

    def file(*found: str) -> Path:
        recorded = [{"record": f"a:{n}", "expr": text} for n, text in enumerate(found)]
        path = tmp_path / "rules.yaml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
        return path

    assert len(expressions()) >= 25
    status, words = told(promtool, "check", "rules", file(*expressions()))
    assert (status, f"{len(expressions())} rules found" in words) == (0, True), words
    assert told(promtool, "check", "rules", file("sum by (a rate(b[5m])"))[0] == 1


def test_every_name_in_alerts_and_dashboard_is_on_the_metrics_page() -> None:
    """A47."""
    texts = [*expressions(), *(alert["expr"] for alert in ALERTS)]
    texts += [variable.get("query", "") for variable in dashboard()["templating"]["list"]]
    used = {name for text in texts for name in re.findall(r"archipelago_\w+", text)}
    assert len(used) >= 25
    assert used - names() == set()


def test_every_label_that_the_dashboard_groups_and_names_by_is_one_of_ours() -> None:
    known = {label for found in labels_of(Metrics()).values() for label in found} | {"le"}
    legends = [
        query["legendFormat"]
        for panel in dashboard()["panels"]
        for query in panel.get("targets", ())
    ]
    used = {word for legend in legends for word in re.findall(r"{{(\w+)}}", legend)}
    groups = re.findall(r"by \(([\w, ]+)\)", " ".join(expressions()))
    used |= {word for group in groups for word in group.split(", ")}
    assert used >= {"namespace", "plan", "level", "trigger", "source", "le"}
    assert used - known == set()


def test_panels_have_a_place_of_their_own_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or len(panel["description"]) >= 15
