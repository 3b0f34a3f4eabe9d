"""Sources by name: one reading of a plan's models, from the configuration as it is now."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from archipelago.operator.prometheus import Client, Unanswered, read
from archipelago.operator.samples import Samples, Scrape
from archipelago.operator.series import Source
from archipelago.operator.signals import Scope, adapters
from archipelago.planner.livedemand.faults import Fault, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from archipelago.operator.promql import ModelFacts, PlanFacts
    from archipelago.operator.samples import Sample
    from archipelago.operator.sources import MetricSource, SourcesFile


class UnknownSource(LookupError):  # noqa: N818  # a consequence, not a suffix
    """No source of that name is configured; ``configured`` has the names that are."""

    def __init__(self, name: str, configured: tuple[str, ...]) -> None:
        super().__init__(name)
        self.configured = configured


class Sources:
    """Asks the configured sources; belongs to one event loop. Close it at the end."""

    def __init__(self, file: SourcesFile, wall: Callable[[], float] = time.time) -> None:
        self._file = file
        self._wall = wall
        self._clients: dict[str, tuple[object, Client]] = {}
        self.skew: dict[str, float] = {}
        """By source: how far its clock is ahead of ours [s], as last seen; includes the way."""

    def known(self) -> tuple[str, ...]:
        """Names of the configured sources, as the file says now."""
        return tuple(sorted(self._file.current()))

    def configured(self, name: str) -> MetricSource | None:
        """The source of that name, as the file says now."""
        return self._file.current().get(name)

    async def ask(self, name: str, plan: PlanFacts) -> dict[str, Scrape]:
        """One scrape of each model of a plan; takes at most the source's time limit.

        Whatever the source does, the answer is a scrape, which may be a named fault and nothing
        else. ``Scrape.at`` is the source's own clock.

        Raises:
            UnknownSource: no source of that name is configured.
        """
        configured = self._file.current()
        source = configured.get(name)
        if source is None:
            raise UnknownSource(name, tuple(sorted(configured)))
        wanted = sorted({model.adapter for model in plan.models.values()})
        try:
            client = await self._client(source)
        except Unanswered as error:
            bad = Scrape(self._wall(), (), (error.fault,))
            return dict.fromkeys(plan.models, bad)
        known = adapters()
        readings = await asyncio.gather(
            *(read(client, known[one], plan, self._wall) for one in wanted)
        )
        by_adapter = dict(zip(wanted, readings, strict=True))
        self._note_skew(name, readings)
        return await asyncio.to_thread(_by_model, by_adapter, plan, source)

    async def close(self) -> None:
        """End all connections."""
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _client(self, source: MetricSource) -> Client:
        """Connections as configured now; new ones where the entry or one of its files changed."""
        wanted = (source, *map(_stamp, (source.ca_file, source.client_cert_file)))
        before = self._clients.get(source.name)
        if before and before[0] == wanted:
            return before[1]
        client = Client(source)
        self._clients[source.name] = (wanted, client)
        if before:
            await before[1].close()
        return client

    def _note_skew(self, name: str, readings: list[Scrape]) -> None:
        good = [scrape.at for scrape in readings if not scrape.faults]
        if good:
            self.skew[name] = good[-1] - self._wall()


def series_source(facts: ModelFacts, source: MetricSource) -> Source:
    """Whose series count for a model, for ``scraped``."""
    return Source(
        adapters()[facts.adapter], facts.islands, facts.served, island_label=source.island_label
    )


def _by_model(
    scrapes: Mapping[str, Scrape], plan: PlanFacts, source: MetricSource
) -> dict[str, Scrape]:
    return {
        model: _of_model(scrapes[facts.adapter], facts, plan, source)
        for model, facts in plan.models.items()
    }


def _of_model(scrape: Scrape, facts: ModelFacts, plan: PlanFacts, source: MetricSource) -> Scrape:
    """Without the islands of the plan's other models."""
    if adapters()[facts.adapter].scope is Scope.ROUTER or scrape.faults:
        return scrape
    others = {
        island
        for other in plan.models.values()
        for island in other.islands
        if island not in facts.islands
    }
    if not others:
        return scrape
    kept = Samples(s for s in scrape.samples if _island(s, source.island_label) not in others)
    return replace(scrape, samples=kept, faults=() if kept else (Fault(Reason.NO_SAMPLES),))


def _island(sample: Sample, label: str) -> str:
    return next((value for name, value in sample.labels if name == label), "")


def _stamp(path: Path | None) -> tuple[int, ...]:
    try:
        seen = path.stat() if path else None
    except OSError:
        return ()
    return (seen.st_mtime_ns, seen.st_ino) if seen else ()
