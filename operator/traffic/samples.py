"""A source's answer, as it came, to samples: the exposition text of a pod or a Prometheus answer.

Whatever comes is answered with samples or with a named fault, never with an exception: a proxy's
error page, half a document and a hundred megabytes are ordinary.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families

from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST: Final = 5_000_000
"""Bytes of an answer that are read. One metric of 1,000 islands, a histogram of 17 series each, is
about 4 MB: ask for one metric of some islands at a time and put the answers ``together``."""
_SHOWN: Final = 80
"""Characters of a bad answer that are shown: enough to know it, too few to carry a secret far."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series; labels sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Samples(Collection[Sample]):
    """Samples in columns: 60 bytes each beside what they share, and no object each.

    Objects that are kept are looked at by every collection of garbage (``garbage``).
    """

    __slots__ = ("_labels", "_names", "_values")

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        names, labels, values = [], [], array("d")
        for sample in samples:
            names.append(sample.name)
            labels.append(sample.labels)
            values.append(sample.value)
        self._names: tuple[str, ...] = tuple(names)
        self._labels: tuple[tuple[tuple[str, str], ...], ...] = tuple(labels)
        self._values = values

    def __len__(self) -> int:
        """How many."""
        return len(self._values)

    def __iter__(self) -> Iterator[Sample]:
        """Each of them, made anew."""
        return map(Sample, self._names, self._labels, self._values)

    def __contains__(self, sample: object) -> bool:
        """Whether it is one of them."""
        return any(sample == one for one in self)

    def __eq__(self, other: object) -> bool:
        """The same samples in the same order, in columns or not."""
        return isinstance(other, Collection) and tuple(self) == tuple(other)

    def share(self, before: Collection[Sample]) -> None:
        """Keep the labels and names of samples before where they are equal.

        One after the other: freed at once, 200,000 labels would hold everything up for 0.05 s.
        """
        known = {sample.labels: sample.labels for sample in before}
        names = {sample.name: sample.name for sample in before}
        self._names = tuple(names.get(name, name) for name in self._names)
        column, self._labels = list(self._labels), ()
        for place, labels in enumerate(column):
            column[place] = known.get(labels, labels)
        self._labels = tuple(column)

    __hash__ = None  # type: ignore[assignment]  # nobody looks them up


@dataclass(frozen=True)
class Scrape:
    """What a source said at one time [s, monotonic], and what was wrong with it."""

    at: float
    samples: Collection[Sample]
    faults: tuple[Fault, ...] = ()


def together(parts: Iterable[Scrape], at: float) -> Scrape:
    """Answers of one time as one. What is wrong with one is wrong with all: sums would lack it."""
    listed = tuple(parts)
    return Scrape(
        at,
        Samples(sample for part in listed for sample in part.samples),
        tuple(fault for part in listed for fault in part.faults),
    )


def failed(at: float, detail: str) -> Scrape:
    """A source that did not answer, or not in time."""
    return Scrape(at, (), (Fault(Reason.SOURCE_FAILED, "", detail),))


def from_exposition(body: bytes, at: float, labels: dict[str, str] | None = None) -> Scrape:
    """Samples of a ``/metrics`` page; ``labels`` say whose it is and win over its own."""
    if len(body) > LARGEST:
        return _too_large(body, at)
    try:
        text = body.decode()
        found = Samples(_exposed(text, labels or {})) if not text.lstrip().startswith("<") else None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return _not_metrics(body, at, f"{type(error).__name__}: ")
    return _not_metrics(body, at) if found is None else _scrape(found, at)


def from_prometheus(body: bytes, at: float) -> Scrape:
    """Samples of the answer to an instant query (``/api/v1/query``)."""
    if len(body) > LARGEST:
        return _too_large(body, at)
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            return failed(at, _cut(f"{answer.get('errorType')}: {answer.get('error')}"))
        if answer["data"]["resultType"] != "vector":
            return _not_metrics(body, at, "not a vector: ")
        pairs: dict[tuple[str, str], tuple[str, str]] = {}
        found = Samples(_queried(one, pairs) for one in answer["data"]["result"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        return _not_metrics(body, at, f"{type(error).__name__}: ")
    return _scrape(found, at)


def _exposed(text: str, labels: dict[str, str]) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Sample(sample.name, _sorted({**sample.labels, **labels}), float(sample.value))


def _queried(one: dict[str, Any], pairs: dict[tuple[str, str], tuple[str, str]]) -> Sample:
    """One series; ``pairs``: labels that were seen, kept once for all series that have them."""
    listed = [(key, str(value)) for key, value in one["metric"].items()]
    found = [pairs.setdefault(pair, pair) for pair in listed]
    (name,) = (value for key, value in found if key == "__name__")
    kept = tuple(sorted(pair for pair in found if pair[0] != "__name__"))
    return Sample(name, kept, float(one["value"][1]))


def _sorted(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _scrape(found: Samples, at: float) -> Scrape:
    return Scrape(at, found, () if found else (Fault(Reason.NO_SAMPLES),))


def _too_large(body: bytes, at: float) -> Scrape:
    return Scrape(at, (), (Fault(Reason.TOO_LARGE, "", f"{len(body)} of {LARGEST} bytes"),))


def _not_metrics(body: bytes, at: float, why: str = "") -> Scrape:
    start = body[:_SHOWN].decode(errors="replace")
    return Scrape(at, (), (Fault(Reason.NOT_METRICS, "", _cut(f"{why}{start!r}")),))


def _cut(text: str) -> str:
    return text[: 2 * _SHOWN]
