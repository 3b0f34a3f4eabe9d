"""Metrics: one prefix, few families, nothing left of a plan that is gone."""

from archipelago.operator.metrics import PREFIX, Metrics
from tests.operator.situations import KEY, plan, ready, stored


def families(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in metrics.registry.collect()
    }


def test_families_are_few_have_one_prefix_and_a_help() -> None:
    metrics = Metrics()
    found = list(metrics.registry.collect())

    assert len(found) <= 40
    assert all(family.name.startswith(f"{PREFIX}_") for family in found)
    assert all(family.documentation for family in found)


def test_a_plan_has_few_series_and_takes_them_along() -> None:
    metrics = Metrics()
    seen = plan()
    metrics.show(ready(seen, stored(seen)))
    mine = [
        (name, value)
        for name, samples in families(metrics).items()
        for labels, value in samples
        if labels.get("plan") == KEY.name
    ]

    assert ("archipelago_plan_ready", 1.0) in mine
    assert ("archipelago_plan_islands", 2.0) in mine
    assert len(mine) <= 15
    metrics.forget(KEY)
    assert KEY.name not in metrics.exposition().decode()
