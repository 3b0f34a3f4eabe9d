"""Watches the traffic of live plans: asks their source now and then, and ends their windows.

A window begins anew where the islands of the stored table, or the source, are others: counters of
other islands do not continue each other. Nothing is asked about a plan that is suspended, or whose
table cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.asking import UnknownSource, series_source
from archipelago.operator.islandtimes import times_document
from archipelago.operator.livefacts import Traffic
from archipelago.operator.manifests import label_value
from archipelago.operator.metricsreport import metrics_finding, unknown_source
from archipelago.operator.promql import ModelFacts, PlanFacts
from archipelago.operator.windowdoc import ISLANDS, to_document
from archipelago.operator.windows import WindowKey, shared
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from archipelago.operator.asking import Sources
    from archipelago.operator.cache import Cache
    from archipelago.operator.conditions import Finding
    from archipelago.operator.manifests import Key
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.observe import SeenPlan, SeenTable
    from archipelago.operator.samples import Scrape
    from archipelago.operator.windows import Windows

WINDOW: Final = 60.0
"""Seconds of a window where ``windowSeconds`` says nothing else."""
PARTS: Final = 4
"""Times that a source is asked in a window: a restart in the middle is seen."""
TURN: Final = 0.5
AT_ONCE: Final = 8
"""Plans whose sources are asked at one time."""
LARGE: Final = 5_000
"""Samples of a scrape above which it is kept with the help of a thread: 10 ms and more."""
_SHARE: Final = 0.9
"""Of its length after which a window is over: the clock of a turn is coarse."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watching:
    """What is under way for one plan. Times are monotonic seconds."""

    source: str
    facts: PlanFacts
    since: float
    due: float
    traffic: Traffic | None = None
    finding: Finding | None = None


class Observer:
    """The traffic of plans; belongs to the operator's loop."""

    def __init__(
        self,
        cache: Cache,
        sources: Sources,
        windows: Windows,
        *,
        metrics: Metrics,
        look_again: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._windows = windows
        self._metrics = metrics
        self._look_again = look_again
        self._clock = clock
        self._watching: dict[Key, Watching] = {}
        self._asked: set[Key] = set()
        self._room = asyncio.Semaphore(AT_ONCE)

    def traffic(self, key: Key) -> Traffic | None:
        """The last window that is over; None before the first, or since the islands are others."""
        known = self._watching.get(key)
        return known.traffic if known else None

    def finding(self, plan: SeenPlan) -> Finding | None:
        """What ``MetricsAvailable`` says of it; None where the plan names no source."""
        name = plan.replanning.get("source")
        if not name:
            return None
        configured = self._sources.known()
        if name not in configured:
            return unknown_source(name, configured)
        known = self._watching.get(plan.key)
        return known.finding if known and known.source == name else None

    def forget(self, key: Key) -> None:
        """The plan is gone."""
        self._watching.pop(key, None)
        self._windows.forget(*key)

    async def run(self) -> None:
        """Ask when it is time, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for key in self._due():
                        self._asked.add(key)
                        group.create_task(self._look(key), name=f"traffic of {key}")
                    await asyncio.sleep(TURN)
        finally:
            await self._sources.close()

    def _due(self) -> list[Key]:
        """Plans that are to be asked about now; what is watched is brought up to date."""
        now = self._clock()
        for key in self._cache.plans.keys():  # noqa: SIM118  # a store, not a dictionary
            wanted = self._wanted(key, now)
            if wanted is None:
                if key in self._watching:
                    self.forget(key)
            elif not _continues(self._watching.get(key), wanted):
                self._windows.forget(*key)
                self._watching[key] = wanted
        return [k for k, w in self._watching.items() if w.due <= now and k not in self._asked]

    def _wanted(self, key: Key, now: float) -> Watching | None:
        """What is to be watched of a plan from now on; None: nothing."""
        seen = self._cache.observe(key)
        plan, table = seen.plan, seen.table
        if plan is None or table is None or plan.suspended or plan.deleting:
            return None
        name = plan.replanning.get("source")
        if not name or not table.islands or not table.belongs_to(plan):
            return None
        before = self._watching.get(key)
        kept = before.finding if before and before.source == name else None
        return Watching(name, plan_facts(plan, table), now, now, finding=kept)

    async def _look(self, key: Key) -> None:
        try:
            async with self._room:
                await self._ask(key)
        except Exception:  # whatever it is, the others are watched on
            log.exception("traffic not read", extra={"plan": str(key)})
        finally:
            self._asked.discard(key)

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

    async def _keep(self, key: Key, known: Watching, at: WindowKey, scrape: Scrape) -> None:
        """Keep a scrape; a large one takes its labels from the last one in a thread.

        The rings themselves are touched on the loop only. Of other islands by now, it is dropped.
        """
        if len(scrape.samples) > LARGE:
            scrape = await asyncio.to_thread(shared, scrape, self._windows.last(at))
            now = self._watching.get(key)
            if now is None or not _continues(now, known):
                return
            self._windows.keep(at, scrape)
        else:
            self._windows.add(at, scrape)

    async def _end_window(self, key: Key, known: Watching, seconds: float) -> None:
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
        self._metrics.source_asked(known.source, finding.reason)
        documents = {
            model: to_document(found.counted) | {ISLANDS: times_document(found.islands)}
            for model, found in ended.items()
        }
        now = self._clock()
        traffic = Traffic(now, {"seconds": now - known.since, "models": documents})
        self._put(key, known, traffic=traffic, finding=finding, since=now)
        self._look_again(key)

    def _put(self, key: Key, known: Watching, **news: Any) -> None:  # noqa: ANN401
        """Unless the plan is watched otherwise by now."""
        with suppress(KeyError):
            if self._watching[key].facts is known.facts:
                self._watching[key] = replace(self._watching[key], **news)


def plan_facts(plan: SeenPlan, table: SeenTable) -> PlanFacts:
    """Whose series count: the islands of the stored table, by model."""
    models = {model["name"]: model.get("engine") or {} for model in plan.spec["models"]}
    return PlanFacts(
        namespace=plan.key.namespace,
        label=label_value(plan.key.name),
        models={name: _model_facts(name, engine, table) for name, engine in models.items()},
    )


def window_seconds(plan: SeenPlan) -> float:
    """How long a window of the plan is [s]."""
    return float(plan.replanning.get("windowSeconds", WINDOW))


def _model_facts(name: str, engine: Mapping[str, Any], table: SeenTable) -> ModelFacts:
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


def _continues(before: Watching | None, wanted: Watching) -> bool:
    return before is not None and before.source == wanted.source and before.facts == wanted.facts
