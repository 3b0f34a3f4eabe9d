"""kopf as the informer: a thread of its own that only tells what it saw, and is restarted.

A thread, because kopf takes over the signals of its event loop and cancels every task that was
started after it, and because a dead watch ends it. Objects are parsed in the thread; the loop of
the operator is handed small facts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import kopf

from archipelago.operator.cluster import KUBECONFIG
from archipelago.operator.credentials import Pace, server_of_pod
from archipelago.operator.errors import OperatorError
from archipelago.operator.handlers import registry
from archipelago.operator.manifests import PLURAL, Key
from archipelago.operator.nodefacts import read_versioned
from archipelago.operator.observe import SeenPlan, seen_map
from archipelago.operator.outages import Outages
from archipelago.operator.podfacts import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from random import Random
    from types import SimpleNamespace

    from archipelago.operator.cache import Cache
    from archipelago.operator.fleet import Fleet
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.settings import Settings

KINDS: Final = (PLURAL, "configmaps")
INVENTORY: Final = ("nodes", "pods")
"""Watched beside the others where it is wanted and allowed."""
MOST_FAILURES: Final = 10
FAILURE_WINDOW: Final = 600.0
FIRST_PAUSE: Final = 1.0  # s, doubled with each start that got no answer
LONGEST_PAUSE: Final = 30.0
_LONGEST_LINE: Final = 2**21  # one watch event: a table of 900 KiB, escaped

log = logging.getLogger(__name__)


class WatchFailed(OperatorError):  # noqa: N818
    """The watches do not come up however often they are started; let Kubernetes try."""


class Streams:
    """When each kind's list or watch was last answered; written by one thread, read by another."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._metrics = metrics
        self._outages = Outages(clock)
        self._started = clock()
        self._answered: dict[str, float] = {}
        self._failing: dict[str, float] = {}

    def answered(self, kind: str) -> bool:
        """A request for that kind was answered; True where the last one failed."""
        self._answered[kind] = self._clock()
        self._outages.works(f"the watch of {kind}")
        return self._failing.pop(kind, None) is not None

    def failed(self, kind: str, why: str) -> None:
        """A request for that kind failed."""
        self._failing.setdefault(kind, self._clock())
        self._metrics.stream_failures.labels(kind).inc()
        self._outages.failed(f"the watch of {kind}", why)

    def has_answered(self, kind: str) -> bool:
        """Whether a list or watch of that kind was ever answered."""
        return kind in self._answered

    def age(self, kind: str) -> float:
        """Seconds since the last answer. A healthy watch is asked for anew every 300 s."""
        return self._clock() - self._answered.get(kind, self._started)

    def failing_for(self, kind: str) -> float:
        """Seconds since requests began to fail; 0 where the last one was answered."""
        since = self._failing.get(kind)
        return 0.0 if since is None else self._clock() - since

    def ended(self, kind: str) -> None:
        """That kind is not watched any more, so that it cannot fail either."""
        self._answered.pop(kind, None)
        self._failing.pop(kind, None)

    def last_answer(self) -> float:
        """When any kind was last answered [monotonic s]; minus infinity: never."""
        return max(self._answered.values(), default=float("-inf"))


class Feed:
    """What the handlers tell; carries it from the thread of kopf to the operator's loop."""

    def __init__(
        self,
        cache: Cache,
        look_again: Callable[[Key], None],
        streams: Streams,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        *,
        on_refusal: Callable[[], None],
        on_gap: Callable[[str], None],
    ) -> None:
        self._cache = cache
        self._look_again = look_again
        self._streams = streams
        self._loop = loop
        self._fleet = fleet
        self._pods: set[str] = set()  # uids that were told; of kopf's thread alone
        self._on_refusal = on_refusal
        self._on_gap = on_gap
        self._pace = Pace(streams.last_answer)

    def plan(self, event: dict[str, Any]) -> None:
        """A ServingPlan, parsed here and now."""
        seen = SeenPlan.from_body(event["object"])
        if event["type"] == "DELETED":
            self._hand_over(self._cache.drop_plan, seen.key, seen.uid)
        else:
            self._hand_over(self._cache.see_plan, seen)

    def table(self, event: dict[str, Any]) -> None:
        """A ConfigMap, parsed here and now."""
        seen = seen_map(event["object"])
        if event["type"] == "DELETED":
            self._hand_over(self._cache.drop_table, seen.key, seen.uid)
        else:
            self._hand_over(self._cache.see_table, seen)

    def node(self, event: dict[str, Any]) -> None:
        """A node, read here and now: of 7 kB a few facts go on."""
        node, version = read_versioned(event["object"])
        if event["type"] == "DELETED":
            self._loop.call_soon_threadsafe(self._fleet.drop_node, node.name, version)
        else:
            self._loop.call_soon_threadsafe(self._fleet.see_node, node, version)

    def pod(self, event: dict[str, Any]) -> None:
        """A pod; nothing is told of one that has no GPUs and is no plan's."""
        meta = event["object"]["metadata"]
        pod = None if event["type"] == "DELETED" else read_pod(event["object"])
        if pod is not None:
            self._pods.add(pod.uid)
            self._loop.call_soon_threadsafe(self._fleet.see_pod, pod)
        elif meta["uid"] in self._pods:
            self._pods.discard(meta["uid"])
            version = int(meta["resourceVersion"])
            self._loop.call_soon_threadsafe(self._fleet.drop_pod, meta["uid"], version)

    async def login(self, settings: kopf.OperatorSettings) -> Any:  # noqa: ANN401
        """Credentials of KUBECONFIG or else of the pod, in a session that we can watch.

        Asked for by name: kopf on its own would prefer a file in HOME to the pod's. In a pod it
        would also ask the cluster's DNS where the API server is, which the kubelet told us.
        """
        await asyncio.sleep(self._pace.pause())
        self._pace.logged_in()
        by_file = bool(os.environ.get(KUBECONFIG))
        log_in = kopf.login_with_kubeconfig if by_file else kopf.login_with_service_account
        found = log_in(settings=settings)
        if found is None:
            raise kopf.PermanentError("neither KUBECONFIG nor a service account is there")
        return kopf.AiohttpSession(
            server=found.server if by_file else server_of_pod(os.environ),
            default_namespace=found.default_namespace,
            aiohttp_session=aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
                headers=found.as_http_headers(),
                read_bufsize=_LONGEST_LINE,
                trace_configs=[_trace(self._streams, self._refused, self._may_have_missed)],
                trust_env=False,
            ),
        )

    def _refused(self, status: int) -> None:
        if status == HTTPStatus.UNAUTHORIZED:
            self._pace.denied()
        self._loop.call_soon_threadsafe(self._on_refusal)

    def _may_have_missed(self, kind: str) -> None:
        """Kopf has listed a kind, or reached the API server again: nobody told what went."""
        self._loop.call_soon_threadsafe(self._on_gap, kind)

    def _hand_over(self, take: Callable[..., Key | None], *facts: object) -> None:
        self._loop.call_soon_threadsafe(self._take, take, facts)

    def _take(self, take: Callable[..., Key | None], facts: tuple[object, ...]) -> None:
        key = take(*facts)
        if key is not None:
            self._look_again(key)


class Watch:
    """Starts kopf again whenever it ends, until told to stop.

    ``beside``: which of ``INVENTORY`` to watch, asked at each start.
    """

    def __init__(
        self,
        feed: Feed,
        streams: Streams,
        settings: Settings,
        metrics: Metrics,
        installed: Callable[[], Coroutine[Any, Any, None]],
        *,
        beside: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._feed = feed
        self._streams = streams
        self._settings = settings
        self._metrics = metrics
        self._installed = installed
        self._beside = beside
        self._stop = threading.Event()
        self._stopping = asyncio.Event()
        self._stop_kopf = threading.Event()

    def stop(self) -> None:
        """End the thread; ``run`` then returns."""
        self._stop.set()
        self._stopping.set()
        self._stop_kopf.set()

    def again(self) -> None:
        """End the watches; they are started again with the kinds that are wanted then."""
        self._stop_kopf.set()

    async def run(self, random: Random, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep the watches up.

        Raises:
            WatchFailed: ten starts in ten minutes without a single answer.
        """
        failures: list[float] = []
        while await self._may_start():
            try:
                await asyncio.to_thread(self._kopf)
            except Exception as error:  # noqa: BLE001  # whatever it is, they are started again
                _tell_of_end(error)
            if self._stop.is_set():
                return
            self._metrics.watch_restarts.inc()
            failures = still_counting(failures, clock(), self._streams.last_answer())
            if len(failures) >= MOST_FAILURES:
                raise WatchFailed(f"no answer to {len(failures)} starts of the watches")
            longest = min(FIRST_PAUSE * 2.0 ** (len(failures) - 1), LONGEST_PAUSE)
            await self._pause(longest * random.uniform(0.5, 1.0))

    async def _may_start(self) -> bool:
        """Wait for the kind: kopf looks once which kinds there are. False where told to stop."""
        waiting = asyncio.create_task(self._installed(), name="wait for the kind")
        stopping = asyncio.create_task(self._stopping.wait(), name="wait for the end")
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()
        return not self._stop.is_set()

    async def _pause(self, seconds: float) -> None:
        await asyncio.to_thread(self._stop.wait, seconds)

    def _kopf(self) -> None:
        # One for each start: kopf waits for it in a thread, and for that thread at its own end.
        self._stop_kopf = stop = threading.Event()
        if self._stop.is_set():
            return
        beside = self._beside()
        for kind in INVENTORY:
            if kind not in beside:
                self._streams.ended(kind)
        kopf.run(
            registry=registry(beside),
            memo=kopf.Memo(
                feed=self._feed, stop=stop, silence=self._settings.watch_silence_seconds
            ),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            identity=kopf_identity(),
            stop_flag=stop,
        )


def _tell_of_end(error: Exception) -> None:
    """One line for what the API server said, a traceback for everything else."""
    expected = type(error).__module__.startswith("kopf.")
    log.warning(
        "the watches ended and are started again",
        extra={"error": f"{type(error).__name__}: {error}"},
        exc_info=None if expected else error,
    )


def still_counting(failures: list[float], now: float, last_answer: float) -> list[float]:
    """Failures of the window with the one of now; an answer since the first wipes those before."""
    recent = [when for when in failures if when > now - FAILURE_WINDOW and when > last_answer]
    return [*recent, now]


def kopf_identity() -> Any:  # noqa: ANN401  # kopf's own type
    """A fixed name: kopf would ask for the user's, which an arbitrary uid does not have."""
    return "archipelago"


def _trace(
    streams: Streams, on_refusal: Callable[[int], None], on_gap: Callable[[str], None]
) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def ended(
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        params: aiohttp.TraceRequestEndParams,
    ) -> None:
        status = params.response.status
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            on_refusal(status)
        kind = _kind(params.url.path)
        if kind and status < 400:  # noqa: PLR2004  # client and server errors
            # Later pages of a list are of the version of its first.
            if streams.answered(kind) or not {"watch", "continue"} & params.url.query.keys():
                on_gap(kind)
        elif kind:
            streams.failed(kind, f"{status} {params.response.reason}")

    async def broke(
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        params: aiohttp.TraceRequestExceptionParams,
    ) -> None:
        if kind := _kind(params.url.path):
            streams.failed(kind, f"{type(params.exception).__name__}: {params.exception}")

    trace.on_request_end.append(ended)
    trace.on_request_exception.append(broke)
    return trace


def _kind(path: str) -> str | None:
    """The kind that a request lists or watches; None for what kopf asks besides."""
    kind = path.rsplit("/", 1)[-1]
    return kind if kind in (*KINDS, *INVENTORY) else None
