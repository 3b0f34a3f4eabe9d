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
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from archipelago.perfmodel.catalogue.accelerators import accelerators
from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.demand.faults import Fault, FaultReason
from archipelago.planner.demand.plausible import ANY_PLAN, Ceilings, ceilings
from archipelago.planner.demand.window import ModelWindow, ObservedWindow
from archipelago.planner.kubernetes.labels import label_value
from archipelago.planner.problem import Phase
from archipelago.planner.servingplan.own import (
    ModelConfig,
    OwnAccelerator,
    accelerator_of,
    architecture_of,
)

from ..metrics import Metrics
from ..quarantine import Quarantine
from ..resources.cache import Cache
from ..resources.live import Traffic
from ..resources.names import Key
from ..resources.objects import PlanObject, TableObject
from ..resources.status import Finding
from .client import Client, QueryFailed, read
from .config import MetricSource, file_version
from .queries import ModelFacts, PlanFacts
from .report import metrics_report, unknown_source
from .samples import Sample, Samples, Scrape, SeriesSelector
from .signals import Scope, adapters
from .trust import UNKNOWN, Trust
from .window import UNSTEADY, WindowKey, Windows, share_labels


class MetricSources:
    """Scrapes the configured sources; belongs to one event loop. Close it at the end."""

    def __init__(
        self,
        sources: Callable[[], Mapping[str, MetricSource]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin without connections. ``sources``: those that are configured now, by name."""
        self._sources = sources
        self._wall = wall
        self._clients: dict[str, tuple[object, Client]] = {}

    def permitted(self, namespace: str) -> dict[str, MetricSource]:
        """Return the sources that plans of a namespace may use now, by name."""
        return {n: entry for n, entry in self._sources().items() if entry.permits(namespace)}

    async def ask(self, name: str, plan: PlanFacts) -> dict[str, Scrape]:
        """Return one scrape of each model of a plan, within the source's time limit.

        Every failure of the source gives a scrape with a named fault; there are none if the plan's
        namespace may use no source of that name. ``Scrape.at`` is the source's clock.
        """
        source = self.permitted(plan.namespace).get(name)
        if source is None:
            return {}
        try:
            client = await self._client(source)
        except QueryFailed as error:
            return dict.fromkeys(plan.models, Scrape(self._wall(), (), (error.fault,)))
        engines = sorted({model.adapter for model in plan.models.values()})
        scrapes = await asyncio.gather(
            *(read(client, adapters()[engine], plan, self._wall) for engine in engines)
        )
        by_adapter = dict(zip(engines, scrapes, strict=True))
        return await asyncio.to_thread(_by_model, by_adapter, plan, source)

    async def close(self) -> None:
        """End all connections."""
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _client(self, source: MetricSource) -> Client:
        """Return the connections; new ones if the entry or one of its files has changed."""
        version = (source, *map(file_version, (source.ca_file, source.client_cert_file)))
        before = self._clients.get(source.name)
        if before and before[0] == version:
            return before[1]
        client = Client(source)
        self._clients[source.name] = (version, client)
        if before:
            await before[1].close()
        return client


def series_source(facts: ModelFacts, source: MetricSource) -> SeriesSelector:
    """Return the selector of a model's series, for ``count_window``."""
    return SeriesSelector(
        adapters()[facts.adapter],
        facts.islands,
        facts.served,
        island_label=source.island_label,
        most=facts.most,
    )


def _by_model(
    scrapes: Mapping[str, Scrape], plan: PlanFacts, source: MetricSource
) -> dict[str, Scrape]:
    """Return the scrape of each model, without the islands of the plan's other models."""

    def island_of(sample: Sample) -> str:
        return next((value for name, value in sample.labels if name == source.island_label), "")

    planned = {island for facts in plan.models.values() for island in facts.islands}
    by_model = {}
    for model, facts in plan.models.items():
        scrape, others = scrapes[facts.adapter], planned - facts.islands.keys()
        if others and not scrape.faults and adapters()[facts.adapter].scope is Scope.ISLAND:
            own = Samples(s for s in scrape.samples if island_of(s) not in others)
            faults = () if own else (Fault(FaultReason.NO_SAMPLES),)
            scrape = replace(scrape, samples=own, faults=faults)
        by_model[model] = scrape
    return by_model


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


@dataclass(frozen=True)
class WatchedPlan:
    """A plan that is watched. Times are monotonic [s]."""

    source: str
    facts: PlanFacts
    since: float
    due: float
    traffic: Traffic | None = None
    trust: Trust = UNKNOWN


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
        quarantine: Quarantine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._windows = windows
        self._metrics = metrics
        self._enqueue = enqueue
        self._quarantine = quarantine or Quarantine()
        self._clock = clock
        self._watching: dict[Key, WatchedPlan] = {}
        self._active: set[Key] = set()
        self._room = asyncio.Semaphore(AT_ONCE)

    def traffic(self, key: Key) -> Traffic | None:
        """Return the last complete window; None before the first, or after a change of islands."""
        watched = self._watching.get(key)
        return watched.traffic if watched else None

    def finding(self, plan: PlanObject) -> Finding | None:
        """Return the condition ``MetricsAvailable``; None if the plan names no source."""
        name = plan.replanning.get("source")
        if not name:
            return None
        permitted = self._sources.permitted(plan.key.namespace)
        if name not in permitted:
            return unknown_source(name, permitted)
        watched = self._watching.get(plan.key)
        return watched.trust.finding if watched and watched.source == name else None

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
                        group.create_task(self._scrape(key), name=f"traffic of {key}")
                    await asyncio.sleep(TURN)
        finally:
            await self._sources.close()

    def _due(self) -> list[Key]:
        """Update the watched plans and return those that are due."""
        now = self._clock()
        for key in self._cache.plans.keys():  # noqa: SIM118  # a store, not a dictionary
            before, current = self._watching.get(key), None
            with self._quarantine.of("Traffic", key):
                current = self._watched_plan(key, now)
            if current is None and before is not None:
                self.forget(key)
            elif current is not None and not _continues(before, current):
                self._windows.forget(*key)
                self._watching[key] = current
        return [k for k, w in self._watching.items() if w.due <= now and k not in self._active]

    def _watched_plan(self, key: Key, now: float) -> WatchedPlan | None:
        """Return a plan as it has to be watched from now on; None: not at all."""
        observation = self._cache.observe(key)
        plan, table = observation.plan, observation.table
        if plan is None or table is None or plan.suspended or plan.deleting:
            return None
        name = plan.replanning.get("source")
        if not name or not table.islands or not table.belongs_to(plan):
            return None
        before = self._watching.get(key)
        trust = before.trust if before and before.source == name else UNKNOWN
        return WatchedPlan(name, plan_facts(plan, table), now, now, trust=trust)

    async def _scrape(self, key: Key) -> None:
        """Scrape a plan, and end its window if that is long enough."""
        try:
            with self._quarantine.of("Traffic", key):
                async with self._room:
                    await self._read(key)
        finally:
            self._active.discard(key)

    async def _read(self, key: Key) -> None:
        watched, plan = self._watching.get(key), self._cache.plans.get(key)
        if watched is None or plan is None:
            return
        seconds = float(plan.replanning.get("windowSeconds", WINDOW))
        try:
            scrapes = await self._sources.ask(watched.source, watched.facts)
            for model, scrape in scrapes.items():
                await self._keep(key, watched, WindowKey(*key, model), scrape)
        finally:
            self._put(key, watched, due=self._clock() + seconds / PARTS)
        if scrapes and self._clock() - watched.since >= _SHARE * seconds:
            await self._end_window(key, watched, seconds)

    async def _keep(self, key: Key, watched: WatchedPlan, at: WindowKey, scrape: Scrape) -> None:
        """Store a scrape; a thread shares the labels of a large one.

        Only the event loop changes the rings. The scrape is dropped if the islands have changed.
        """
        if len(scrape.samples) <= LARGE:
            return self._windows.add(at, scrape)
        scrape = await asyncio.to_thread(share_labels, scrape, self._windows.last(at))
        now = self._watching.get(key)
        if now is not None and _continues(watched, now):
            self._windows.keep(at, scrape)
        return None

    async def _end_window(self, key: Key, watched: WatchedPlan, seconds: float) -> None:
        source = self._sources.permitted(key.namespace).get(watched.source)
        if source is None:
            return
        counts = {
            model: await asyncio.to_thread(
                self._windows.ended, WindowKey(*key, model), seconds, series_source(facts, source)
            )
            for model, facts in watched.facts.models.items()
        }
        report = metrics_report(watched.source, {n: count.counted for n, count in counts.items()})
        self._metrics.source_scraped(watched.source, report.finding.reason)
        trust = watched.trust.after(report)
        models = {model: ModelWindow(*count) for model, count in counts.items()}
        if report.usable and not trust.is_believed:
            models = dict.fromkeys(models, UNSTEADY)
        now = self._clock()
        traffic = Traffic(now, ObservedWindow(now - watched.since, models))
        self._put(key, watched, traffic=traffic, trust=trust, since=now)
        self._enqueue(key)

    def _put(self, key: Key, watched: WatchedPlan, **news: Any) -> None:  # noqa: ANN401
        """Update a watched plan, unless it has changed meanwhile."""
        with suppress(KeyError):
            if self._watching[key].facts is watched.facts:
                self._watching[key] = replace(self._watching[key], **news)


def plan_facts(plan: PlanObject, table: TableObject) -> PlanFacts:
    """Return the islands of the stored table by model."""
    models = {}
    pools = tuple(pool.get("accelerator") or "" for pool in plan.spec.get("pools") or ())
    own = _text(plan.spec.get("accelerators") or [])
    for model in plan.spec.get("models") or ():
        engine = model.get("engine") or {}
        named = {
            name: model[name] for name in ("architecture", "config", "precision") if name in model
        }
        gpus = sum(i.gpus for i in table.islands.values() if i.model == model["name"])
        models[model["name"]] = ModelFacts(
            adapter=engine.get("metrics", "vllm"),
            islands={
                label_value(name): Phase(island.phase)
                for name, island in table.islands.items()
                if island.model == model["name"]
            },
            served=frozenset(filter(None, [engine.get("servedName")])),
            most=_ceilings(_text(named), pools, own, gpus),
        )
    return PlanFacts(plan.key.namespace, label_value(plan.key.name), models)


def _text(part: object) -> str:
    """Return a part of a spec as something that can be the key of a cache."""
    return json.dumps(part, sort_keys=True)


@lru_cache(maxsize=4096)
def _ceilings(model: str, pools: tuple[str, ...], own: str, gpus: int) -> Ceilings:
    """Return what islands of so many GPUs can do; unknown accelerators count as the fastest.

    Args:
        model: Architecture, config and precision of the model, as JSON.
        pools: Accelerators of the pools.
        own: Accelerators that the plan brings along, as JSON.
        gpus: GPUs of all islands [GPUs].
    """
    stated = json.loads(model)
    try:
        config = ModelConfig.model_validate(stated["config"]) if stated.get("config") else None
        shape = architecture_of(stated["architecture"], config, stated.get("precision"))
    except (KeyError, PerfModelError):
        return ANY_PLAN
    try:
        mine = [OwnAccelerator.model_validate(each) for each in json.loads(own)]
        return ceilings(shape, [accelerator_of(name, mine) for name in pools], gpus)
    except (PerfModelError, ValueError):
        return ceilings(shape, accelerators(), gpus)


def _continues(before: WatchedPlan | None, now: WatchedPlan) -> bool:
    return before is not None and before.source == now.source and before.facts == now.facts
