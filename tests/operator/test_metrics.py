"""Metrics: one prefix, few families, few series, nothing left of a plan that is gone."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.operator.metrics import OTHER, PREFIX, Metrics
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.resources.status import ConditionStatus, ConditionType, Reason
from tests.support.operator.situations import KEY, plan, ready, stored

SERIES_PER_PLAN = 15
DECIDED = {
    "headroom": "0.91",
    "headroomLow": "0.84",
    "regret": "0.173",
    "degraded": "0.91",
    "levels": [
        {"level": "Keep", "theta": "0.91"},
        {"level": "Reroute", "theta": "1.02"},
        {"level": "Flip", "theta": "1.09"},
        {"level": "Reshape", "theta": "1.31"},
    ],
    "proposal": {"hash": "ab" * 32, "level": "Reshape", "trigger": "Gain", "message": "more"},
    "demand": {
        "llama": {"requestsPerSecond": "10.5", "meanInput": "900"},
        "qwen": {"requestsPerSecond": "2.25", "meanInput": "100"},
    },
}


def labels_of(metrics: Metrics) -> dict[str, tuple[str, ...]]:
    """Names of the labels of every family, by its name without a suffix."""
    return {
        family.name: tuple(getattr(collector, "_labelnames", ()))
        for collector in metrics.registry._collector_to_names
        for family in collector.collect()
    }


def families(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in metrics.registry.collect()
    }


def series(metrics: Metrics, name: str = KEY.name) -> dict[str, float]:
    """Series of one plan, by name without the prefix and level."""
    return {
        f"{family.removeprefix(f'{PREFIX}_plan_')}{labels.get('level', '')}": value
        for family, samples in families(metrics).items()
        for labels, value in samples
        if labels.get("plan") == name
    }


def plan_with_figures(key: Key = KEY, **summary: str) -> PlanObject:
    """A served plan with every figure that a status can have, whose traffic is observed."""
    bare = plan()
    served = with_true(ready(bare, stored(bare)), ConditionType.METRICS_AVAILABLE)
    figures = {"throughput": "123.5", "bound": "130.25", "costPerHour": "64", "gap": "0.05"}
    status = replace(served.status, summary={**served.status.summary, **figures, **summary})
    return replace(served, key=key, status=status)


def with_true(plan: PlanObject, kind: ConditionType) -> PlanObject:
    """The same plan with that condition True."""
    conditions = tuple(
        replace(item, status=ConditionStatus.TRUE) if item.type is kind else item
        for item in plan.status.conditions
    )
    return replace(plan, status=replace(plan.status, conditions=conditions))


def test_families_are_few_have_one_prefix_and_a_help() -> None:
    metrics = Metrics()
    collected = list(metrics.registry.collect())

    assert 30 <= len(collected) <= 48
    assert all(family.name.startswith(f"{PREFIX}_") for family in collected)
    assert all(len(family.documentation) >= 10 for family in collected)


def test_names_have_no_scaled_unit_and_counters_end_in_total() -> None:
    metrics = Metrics()
    crooked = re.compile(r"(milli|micro|nano|kilo|mega|mebi|percent|minutes|_ms|_mib)")
    for family in metrics.registry.collect():
        assert not crooked.search(family.name)
        if family.type == "counter":
            assert f"{family.name}_total" in metrics.exposition().decode()


def test_the_series_of_a_plan_are_removed_with_it() -> None:
    metrics = Metrics()
    metrics.show(plan_with_figures())
    metrics.decided(KEY, DECIDED, lost=2)

    assert series(metrics) == {
        "ready": 1.0,
        "metrics_available": 1.0,
        "throughput_requests_per_second": 123.5,
        "bound": 130.25,
        "cost_dollars_per_hour": 64.0,
        "headroom": 0.91,
        "headroom_low": 0.84,
        "regret": 0.173,
        "degraded_share": 0.91,
        "level_headroomReroute": 1.02,
        "level_headroomFlip": 1.09,
        "level_headroomReshape": 1.31,
        "lost_islands": 2.0,
        "proposal_pending": 1.0,
        "observed_requests_per_second": 12.75,
    }
    assert len(series(metrics)) == SERIES_PER_PLAN
    metrics.forget(KEY)
    assert KEY.name not in metrics.exposition().decode()


def test_a_decision_about_a_deleted_plan_sets_no_figure() -> None:
    metrics = Metrics()
    metrics.show(plan_with_figures())
    metrics.forget(KEY)
    metrics.decided(KEY, DECIDED)
    assert series(metrics) == {}


def test_without_traffic_figures_of_decisions_are_removed() -> None:
    """The last headroom of a source that is down would look like the present one."""
    metrics = Metrics()
    metrics.show(plan_with_figures())
    metrics.decided(KEY, DECIDED)
    metrics.decided(KEY, {})
    names = set(series(metrics))
    assert names & {"headroom", "headroom_low", "regret", "degraded_share"} == set()
    assert not any(name.startswith(("level_headroom", "observed")) for name in names)
    metrics.decided(KEY, {"demand": {"llama": {"requestsPerSecond": "0"}}})
    assert series(metrics)["observed_requests_per_second"] == 0.0


def test_200_plans_with_every_figure_have_at_most_5000_series() -> None:
    """B43."""
    metrics = Metrics()
    for number in range(200):
        key = Key("team", f"plan-{number}")
        metrics.show(plan_with_figures(key))
        metrics.decided(key, DECIDED, lost=1)
    for reason in Reason:
        metrics.events.labels(reason).inc()
        metrics.planned(reason, 1.0)
        for source in ("one", "two", "three"):
            metrics.source_scraped(source, reason)
    for trigger in ("None", "Repair", "Safety", "Gain"):
        for level in ("Keep", "Reroute", "Flip", "Reshape"):
            for kind in ("window", "repair", "solve"):
                metrics.replanned(trigger, level, 0.1, kind)
    metrics.set_nodes({})
    lines = metrics.exposition().decode().splitlines()
    total = sum(not line.startswith("#") for line in lines)
    assert total == sum(len(samples) for samples in families(metrics).values())
    assert 200 * SERIES_PER_PLAN < total <= 5000


def test_only_changes_of_a_table_count_as_replans_but_all_decisions_are_timed() -> None:
    metrics = Metrics()
    metrics.replanned("None", "Keep", 0.04, "window")
    metrics.replanned("Gain", "Flip", 0.2, "window")
    metrics.replanned("Repair", "Keep", 0.02, "repair")
    metrics.replanned("Gain", "Keep", 0.2, "window")  # it is proposed
    replans = {
        (labels["trigger"], labels["level"]): value
        for labels, value in families(metrics)["archipelago_replans"]
    }
    assert replans == {("Gain", "Flip"): 1.0, ("Repair", "Keep"): 1.0}
    counts = [
        (labels["kind"], value)
        for labels, value in families(metrics)["archipelago_replan_seconds"]
        if labels.get("le") == "+Inf"
    ]
    assert counts == [("window", 3.0), ("repair", 1.0)]


@pytest.mark.parametrize("text", ["http://10.0.0.1:9090/?token=abc", "Bearer eyJhbGciOi", "a\nb"])
def test_no_address_credential_or_free_text_becomes_a_label(text: str) -> None:
    """B43: whatever the rest of the operator says, labels are closed words."""
    metrics = Metrics()
    metrics.show(plan_with_figures(note=text, table=text))
    levels = [{"level": text, "theta": "1", "note": text}]
    metrics.decided(KEY, {**DECIDED, "message": text, "levels": levels, "reasons": [text]})
    metrics.replanned(text, text, 1.0, text)
    metrics.set_nodes({text: 3})
    metrics.source_scraped("main", Reason.PLANNING)
    page = metrics.exposition().decode()
    assert text not in page
    assert not re.search(r"https?:|Bearer|token", page)
    assert f'archipelago_replans_total{{level="{OTHER}",trigger="{OTHER}"}} 1.0' in page
    assert f'{{outcome="{OTHER}",source="main"}} 1.0' in page


def test_a_suspended_plan_is_neither_ready_nor_not() -> None:
    """Nobody wants to be woken by what somebody put to sleep."""
    metrics = Metrics()
    metrics.show(plan_with_figures())
    assert series(metrics)["ready"] == 1.0
    metrics.show(with_true(plan_with_figures(), ConditionType.SUSPENDED))
    assert "ready" not in series(metrics)


def test_nodes_and_the_clock_have_figures() -> None:
    metrics = Metrics()
    metrics.set_nodes({"usable": 5, "lost": 2})
    metrics.clock_skew.set(-12.5)
    states = {labels["state"]: n for labels, n in families(metrics)["archipelago_nodes"]}
    assert states == {"usable": 5.0, "lost": 2.0, "excluded": 0.0}
    assert families(metrics)["archipelago_clock_skew_seconds"] == [({}, -12.5)]


def test_the_page_of_metrics_names_every_family_with_its_type_and_labels_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| `(archipelago_\w+)` \| (\w+) \| ([^|]*) \| ([\w, ]*) ?\| ([^|]+) \|$",
        page,
        re.MULTILINE,
    )
    metrics = Metrics()
    labels = labels_of(metrics)
    families = {
        family.name + "_total" * (family.type == "counter"): (family.type, labels[family.name])
        for family in metrics.registry.collect()
    }
    documented = {
        name: (kind, tuple(word for word in label_names.strip().split(", ") if word))
        for name, kind, _, label_names, _ in rows
    }
    assert documented == families
    assert all(unit and len(meaning) >= 10 for _, _, unit, _, meaning in rows)
    assert f"{len(families)} families" in page


def test_promtool_finds_nothing_to_complain_about(promtool: Path) -> None:
    """A45, with every family having series; the page of a real process: tests/e2e."""
    metrics = Metrics()
    metrics.show(plan_with_figures())
    metrics.decided(KEY, DECIDED, lost=2)
    metrics.replanned("Gain", "Flip", 1.0, "window")
    metrics.source_scraped("main", Reason.OBSERVED)
    metrics.set_nodes({})
    assert linted(promtool, metrics.exposition()) == ""
    assert "counter metrics" in linted(promtool, b"# HELP a b\n# TYPE a counter\na 1\n")


def linted(promtool: Path, page: bytes) -> str:
    """What promtool says of a metrics page."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode()
