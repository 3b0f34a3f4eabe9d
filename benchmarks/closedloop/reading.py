"""Pages of pods as the operator reads them, with the names and labels of every line parsed once.

A pod repeats its lines in every scrape with other values. Two thirds of a play went into parsing
labels that had been parsed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from archipelago.operator.traffic.samples import Sample, Samples, Scrape
from archipelago.planner.demand.faults import Fault, FaultReason

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Pod


Lines: TypeAlias = "tuple[str, ...]"


@dataclass
class Reader:
    """``pages``: by pod, the lines of its page without their values, and the samples of them."""

    pages: dict[str, tuple[Lines, tuple[Sample, ...]]] = field(default_factory=dict)

    def __call__(self, pod: Pod, now: float) -> Scrape:
        """Return what ``from_exposition`` says of the page."""
        assert pod.page is not None
        cells = [line.rpartition(" ") for line in pod.page.splitlines() if line[0] != "#"]
        lines = tuple(line for line, _, _ in cells)
        if pod.name in self.pages and self.pages[pod.name][0] == lines:
            rows = zip(self.pages[pod.name][1], cells, strict=True)
            samples = tuple(
                Sample(sample.name, sample.labels, float(row[2])) for sample, row in rows
            )
            return Scrape(now, samples)
        labels = {"pod": pod.name, "archipelago_dev_island": pod.island}
        scrape = from_exposition(pod.page.encode(), now, labels)
        self.pages[pod.name] = lines, tuple(scrape.samples)
        return scrape


def from_exposition(body: bytes, at: float, labels: dict[str, str] | None = None) -> Scrape:
    """Return the samples of a page; ``labels`` name the pod and win over the page's own."""
    samples = Samples(
        Sample(
            line.name, tuple(sorted({**line.labels, **(labels or {})}.items())), float(line.value)
        )
        for family in text_string_to_metric_families(body.decode())
        for line in family.samples
    )
    return Scrape(at, samples, () if samples else (Fault(FaultReason.NO_SAMPLES),))
