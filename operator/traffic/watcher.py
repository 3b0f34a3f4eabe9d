"""Prometheus -> the traffic of each live plan in its last window.

Imports ``inventory``, ``metrics``, ``resources`` and the planner's ``demand``. Other folders use
``TrafficWatcher`` and ``MetricSources``. It connects only to configured sources and decides
nothing.

``TrafficWatcher`` scrapes each plan's source several times per window and counts the window. A
window restarts if the islands of the stored table or the source change: counters of other islands
do not continue each other. A plan that is suspended, or whose table cannot be read, is not watched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.demand.faults import Fault, FaultReason
from archipelago.planner.demand.window import ModelWindow, ObservedWindow, rounded_times
from archipelago.planner.kubernetes.labels import label_value
from archipelago.planner.problem import Phase

from ..resources.live import Traffic
from ..resources.names import Key
from ..resources.status import Finding
from .client import Client, QueryFailed, read
from .config import MetricSource, SourcesFile
from .queries import ModelFacts, PlanFacts
from .report import metrics_finding, unknown_source
from .samples import Sample, Samples, Scrape, SeriesSelector
from .signals import Scope, adapters
from .window import WindowKey, Windows, share_labels

if TYPE_CHECKING:
    from ..metrics import Metrics
    from ..resources.cache import Cache
    from ..resources.objects import PlanObject, TableObject


class UnknownSource(LookupError):  # noqa: N818  # a consequence, not a suffix
    """No source of that name is configured; ``configured`` has the names that are."""

    def __init__(self, name: str, configured: tuple[str, ...]) -> None:
        super().__init__(name)
        self.configured = configured


class MetricSources:
    """Scrapes the configured sources; belongs to one event loop. Close it at the end."""

    def __init__(self, file: SourcesFile, wall: Callable[[], float] = time.time) -> None:
        self._file = file
        self._wall = wall
        self._clients: dict[str, tuple[object, Client]] = {}
        self.skew: dict[str, float] = {}
        """By source: how far its clock was ahead of ours [s], including the network's delay."""

    def known(self) -> tuple[str, ...]:
        """Return the names of the sources that are configured now."""
        return tuple(sorted(self._file.current()))

    def configured(self, name: str) -> MetricSource | None:
        """Return the source of that name, if it is configured now."""
        return self._file.current().get(name)

    async def ask(self, name: str, plan: PlanFacts) -> dict[str, Scrape]:
        """Return one scrape of each model of a plan, within the source's time limit.

        Every failure of the source gives a scrape with a named fault. ``Scrape.at`` is the source's
        clock.

        Raises:
            UnknownSource: no source of that name is configured.
        """
        configured = self._file.current()
        source = configured.get(name)
        if source is None:
            raise UnknownSource(name, tuple(sorted(configured)))
        names = sorted({model.adapter for model in plan.models.values()})
        try:
            client = await self._client(source)
        except QueryFailed as error:
            bad = Scrape(self._wall(), (), (error.fault,))
            return dict.fromkeys(plan.models, bad)
        by_name = adapters()
        readings = await asyncio.gather(
            *(read(client, by_name[engine], plan, self._wall) for engine in names)
        )
        by_adapter = dict(zip(names, readings, strict=True))
        self._note_skew(name, readings)
        return await asyncio.to_thread(_by_model, by_adapter, plan, source)

    async def close(self) -> None:
        """End all connections."""
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _client(self, source: MetricSource) -> Client:
        """Return the connections; new ones if the entry or one of its files has changed."""
        version = (source, *map(_stamp, (source.ca_file, source.client_cert_file)))
        before = self._clients.get(source.name)
        if before and before[0] == version:
            return before[1]
        client = Client(source)
        self._clients[source.name] = (version, client)
        if before:
            await before[1].close()
        return client

    def _note_skew(self, name: str, readings: list[Scrape]) -> None:
        good = [scrape.at for scrape in readings if not scrape.faults]
        if good:
            self.skew[name] = good[-1] - self._wall()


def series_source(facts: ModelFacts, source: MetricSource) -> SeriesSelector:
    """Return the selector of a model's series, for ``count_window``."""
    return SeriesSelector(
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
    """Return the scrape without the islands of the plan's other models."""
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
    own = Samples(s for s in scrape.samples if _island(s, source.island_label) not in others)
    return replace(scrape, samples=own, faults=() if own else (Fault(FaultReason.NO_SAMPLES),))


def _island(sample: Sample, label: str) -> str:
    return next((value for name, value in sample.labels if name == label), "")


def _stamp(path: Path | None) -> tuple[int, ...]:
    try:
        seen = path.stat() if path else None
    except OSError:
        return ()
    return (seen.st_mtime_ns, seen.st_ino) if seen else ()


WINDOW: Final = 60.0
"""Default of ``windowSeconds`` [s]."""
PARTS: Final = 4
"""Scrapes of a window: enough to detect a restart in the middle."""
TURN: Final = 0.5
AT_ONCE: Final = 8
"""Plans that are scraped at the same time."""
LARGE: Final = 5_000
"""Samples above which a scrape is stored by a thread: it takes 10 ms and more."""
_SHARE: Final = 0.9
"""Share of its length after which a window ends: turns are coarse."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchedPlan:
    """A plan that is watched. Times are monotonic [s]."""

    source: str
    facts: PlanFacts
    since: float
    due: float
    traffic: Traffic | None = None
    finding: Finding | None = None


class TrafficWatcher:
    """Watches the traffic of plans; belongs to the operator's event loop."""

    def __init__(
        self,
        cache: Cache,
        sources: MetricSources,
        windows: Windows,
        *,
        metrics: Metrics,
        enqueue: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._windows = windows
        self._metrics = metrics
        self._enqueue = enqueue
        self._clock = clock
        self._watching: dict[Key, WatchedPlan] = {}
        self._active: set[Key] = set()
        self._room = asyncio.Semaphore(AT_ONCE)

    def traffic(self, key: Key) -> Traffic | None:
        """Return the last complete window; None before the first, or after a change of islands."""
        known = self._watching.get(key)
        return known.traffic if known else None

    def finding(self, plan: PlanObject) -> Finding | None:
        """Return the condition ``MetricsAvailable``; None if the plan names no source."""
        name = plan.replanning.get("source")
        if not name:
            return None
        configured = self._sources.known()
        if name not in configured:
            return unknown_source(name, configured)
        known = self._watching.get(plan.key)
        return known.finding if known and known.source == name else None

    def forget(self, key: Key) -> None:
        """Remove a plan."""
        self._watching.pop(key, None)
        self._windows.forget(*key)

    async def run(self) -> None:
        """Scrape when it is due, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for key in self._due():
                        self._active.add(key)
                        group.create_task(self._look(key), name=f"traffic of {key}")
                    await asyncio.sleep(TURN)
        finally:
            await self._sources.close()

    def _due(self) -> list[Key]:
        """Update the watched plans and return those that are due."""
        now = self._clock()
        for key in self._cache.plans.keys():  # noqa: SIM118  # a store, not a dictionary
            current = self._watched_plan(key, now)
            if current is None:
                if key in self._watching:
                    self.forget(key)
            elif not _continues(self._watching.get(key), current):
                self._windows.forget(*key)
                self._watching[key] = current
        return [k for k, w in self._watching.items() if w.due <= now and k not in self._active]

    def _watched_plan(self, key: Key, now: float) -> WatchedPlan | None:
        """Return a plan as it has to be watched from now on; None: not at all."""
        seen = self._cache.observe(key)
        plan, table = seen.plan, seen.table
        if plan is None or table is None or plan.suspended or plan.deleting:
            return None
        name = plan.replanning.get("source")
        if not name or not table.islands or not table.belongs_to(plan):
            return None
        before = self._watching.get(key)
        finding = before.finding if before and before.source == name else None
        return WatchedPlan(name, plan_facts(plan, table), now, now, finding=finding)

    async def _look(self, key: Key) -> None:
        try:
            async with self._room:
                await self._ask(key)
        except Exception:  # any error: the other plans continue
            log.exception("traffic not read", extra={"plan": str(key)})
        finally:
            self._active.discard(key)

    async def _ask(self, key: Key) -> None:
        known, plan = self._watching.get(key), self._cache.plans.get(key)
        if known is None or plan is None:
            return
        seconds = window_seconds(plan)
        try:
            scrapes = await self._sources.ask(known.source, known.facts)
        except UnknownSource:
            self._put(key, known, due=self._clock() + seconds / PARTS)
            return
        for model, scrape in scrapes.items():
            await self._keep(key, known, WindowKey(*key, model), scrape)
        self._put(key, known, due=self._clock() + seconds / PARTS)
        if self._clock() - known.since >= _SHARE * seconds:
            await self._end_window(key, known, seconds)

    async def _keep(self, key: Key, known: WatchedPlan, at: WindowKey, scrape: Scrape) -> None:
        """Store a scrape; a thread shares the labels of a large one.

        Only the event loop changes the rings. The scrape is dropped if the islands have changed.
        """
        if len(scrape.samples) > LARGE:
            scrape = await asyncio.to_thread(share_labels, scrape, self._windows.last(at))
            now = self._watching.get(key)
            if now is None or not _continues(now, known):
                return
            self._windows.keep(at, scrape)
        else:
            self._windows.add(at, scrape)

    async def _end_window(self, key: Key, known: WatchedPlan, seconds: float) -> None:
        source = self._sources.configured(known.source)
        if source is None:
            return
        ended = {
            model: await asyncio.to_thread(
                self._windows.ended, WindowKey(*key, model), seconds, series_source(facts, source)
            )
            for model, facts in known.facts.models.items()
        }
        counted = {model: found.counted for model, found in ended.items()}
        finding = metrics_finding(known.source, counted)
        self._metrics.source_scraped(known.source, finding.reason)
        models = {
            model: ModelWindow(found.counted, rounded_times(found.islands))
            for model, found in ended.items()
        }
        now = self._clock()
        traffic = Traffic(now, ObservedWindow(now - known.since, models))
        self._put(key, known, traffic=traffic, finding=finding, since=now)
        self._enqueue(key)

    def _put(self, key: Key, known: WatchedPlan, **news: Any) -> None:  # noqa: ANN401
        """Update a watched plan, unless it has changed meanwhile."""
        with suppress(KeyError):
            if self._watching[key].facts is known.facts:
                self._watching[key] = replace(self._watching[key], **news)


def plan_facts(plan: PlanObject, table: TableObject) -> PlanFacts:
    """Return the islands of the stored table by model."""
    models = {model["name"]: model.get("engine") or {} for model in plan.spec["models"]}
    return PlanFacts(
        namespace=plan.key.namespace,
        label=label_value(plan.key.name),
        models={name: _model_facts(name, engine, table) for name, engine in models.items()},
    )


def window_seconds(plan: PlanObject) -> float:
    """Return the length of the plan's window [s]."""
    return float(plan.replanning.get("windowSeconds", WINDOW))


def _model_facts(name: str, engine: Mapping[str, Any], table: TableObject) -> ModelFacts:
    served = engine.get("servedName")
    return ModelFacts(
        adapter=engine.get("metrics", "vllm"),
        islands={
            label_value(island): Phase(seen.phase)
            for island, seen in table.islands.items()
            if seen.model == name
        },
        served=frozenset([served] if served else ()),
    )


def _continues(before: WatchedPlan | None, now: WatchedPlan) -> bool:
    return before is not None and before.source == now.source and before.facts == now.facts
