"""What kopf calls: the handlers of its events, its login, and the trace of its requests.

Only ``on.event`` handlers: they never patch, add no finalizer and no annotation, and keep no state
per object. They are coroutines, which kopf does not run in threads. They parse objects and hand
small facts to the operator's event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp

from ..errors import Backoff
from ..inventory.devices import read_claim, read_device_slice
from ..inventory.nodes import read_versioned
from ..inventory.pods import read_pod
from ..logs import Outages
from ..quarantine import Quarantine
from ..resources.names import CLAIMS, DEVICES_GROUP, GROUP, PLURAL, SLICES, VERSION, Key
from ..resources.objects import OurObject, PlanObject, read_config_map
from .client import KUBECONFIG
from .libraries import kopf

if TYPE_CHECKING:
    from ..inventory.cluster_inventory import ClusterInventory
    from ..metrics import Metrics
    from ..resources.cache import Cache

S = TypeVar("S", PlanObject, OurObject)

RESTART: Final = Backoff(1.0, 30.0)
"""Before a login or a start after failures."""
KINDS: Final = (PLURAL, "configmaps")
INVENTORY: Final = ("nodes", "pods", SLICES, CLAIMS)
"""Watched as well if the inventory is on and permitted, and those of devices if they are served."""
STREAM: Final = "watcher for "  # kopf's name of a task that lists and watches
_LONGEST_LINE: Final = 2**21  # one watch event: a table of 900 KiB, escaped


def server_of_pod(environment: Mapping[str, str]) -> str:
    """Return the API server's address from the pod's environment; it needs no DNS."""
    host, port = (environment[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class LoginBackoff:
    """How long to wait before the credentials are read again.

    After a 401 kopf reads them again and repeats the request at once. That is right if a token
    expired and the kubelet has written the next. If the account was deleted, it would repeat the
    request dozens of times a second, as long as the pod lives.
    """

    def __init__(
        self, last_answer: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._last_answer = last_answer
        self._clock = clock
        self._logged_in = float("-inf")
        self._denied = False
        self._failures = 0

    def denied(self) -> None:
        """Note that the API server refused the credentials."""
        self._denied = True

    def pause(self) -> float:
        """Return the wait before this login [s]; 0 if the last credentials worked once."""
        failed = self._denied and self._last_answer() <= self._logged_in
        self._failures = self._failures + 1 if failed else 0
        self._denied = False
        return RESTART.delay(self._failures)

    def logged_in(self) -> None:
        """Note that the credentials were read."""
        self._logged_in = self._clock()


class WatchHealth:
    """Time of the last answer to each kind's list or watch; written and read by two threads."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._metrics = metrics
        self._outages = Outages(clock)
        self._started = clock()
        self._answered: dict[str, float] = {}
        self._failing: dict[str, float] = {}

    def answered(self, kind: str) -> bool:
        """Note an answer; return whether the request before had failed."""
        self._answered[kind] = self._clock()
        self._outages.works(f"the watch of {kind}")
        return self._failing.pop(kind, None) is not None

    def failed(self, kind: str, why: str) -> None:
        """Note a failed request."""
        self._failing.setdefault(kind, self._clock())
        self._metrics.stream_failures.labels(kind).inc()
        self._outages.failed(f"the watch of {kind}", why)

    def has_answered(self, kind: str) -> bool:
        """Return whether a list or watch of that kind was ever answered."""
        return kind in self._answered

    def age(self, kind: str) -> float:
        """Return the time since the last answer [s]. A healthy watch is renewed every 300 s."""
        return self._clock() - self._answered.get(kind, self._started)

    def failing_for(self, kind: str) -> float:
        """Return the time since requests began to fail [s]; 0 if the last one succeeded."""
        since = self._failing.get(kind)
        return 0.0 if since is None else self._clock() - since

    def ended(self, kind: str) -> None:
        """Forget a kind that is not watched any more."""
        self._answered.pop(kind, None)
        self._failing.pop(kind, None)

    def last_answer(self) -> float:
        """Return the time of the last answer for any kind [monotonic s]; -infinity without one."""
        return max(self._answered.values(), default=float("-inf"))


class EventHandler:
    """Parse the events of kopf's thread and hand them to the operator's event loop."""

    def __init__(
        self,
        cache: Cache,
        enqueue: Callable[[Key], None],
        health: WatchHealth,
        loop: asyncio.AbstractEventLoop,
        inventory: ClusterInventory,
        *,
        on_refusal: Callable[[], None],
        on_gap: Callable[[str], None],
        quarantine: Quarantine,
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._on_event = on_event
        self._cache = cache
        self._enqueue = enqueue
        self._health = health
        self._loop = loop
        self._inventory = inventory
        self._pods: set[str] = set()  # uids that the inventory has; only kopf's thread uses it
        self._on_refusal = on_refusal
        self._on_gap = on_gap
        self._quarantine = quarantine
        self._backoff = LoginBackoff(health.last_answer)

    async def plan(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a ServingPlan."""
        with self._quarantine.of("ServingPlan", name_of(event["object"])):
            plan = PlanObject.from_body(event["object"])
            self._hand_over(event, plan, self._cache.update_plan, self._cache.delete_plan)

    async def table(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a ConfigMap with our label; without the label it counts as deleted."""
        with self._quarantine.of("ConfigMap", name_of(event["object"])):
            table = read_config_map(event["object"])
            self._hand_over(event, table, self._cache.update_table, self._cache.delete_table)

    async def node(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a node."""
        name = name_of(event["object"])
        with self._quarantine.of("Node", name):
            self._on_event("nodes", event)
            node, version = read_versioned(event["object"])
            if event["type"] == "DELETED":
                self._soon("Node", name, self._inventory.delete_node, node.name, version)
            else:
                self._soon("Node", name, self._inventory.update_node, node, version)

    async def pod(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a pod; one without GPUs and without a plan is ignored."""
        name = name_of(event["object"])
        with self._quarantine.of("Pod", name):
            self._on_event("pods", event)
            meta = event["object"]["metadata"]
            pod = None if event["type"] == "DELETED" else read_pod(event["object"])
            if pod is not None:
                self._pods.add(pod.uid)
                self._soon("Pod", name, self._inventory.update_pod, pod)
            elif meta["uid"] in self._pods:
                self._pods.discard(meta["uid"])
                version = int(meta["resourceVersion"])
                self._soon("Pod", name, self._inventory.delete_pod, meta["uid"], version)

    async def device_slice(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a ResourceSlice; one without GPUs is ignored."""
        name, inventory = name_of(event["object"]), self._inventory
        with self._quarantine.of("ResourceSlice", name):
            self._on_event(SLICES, event)
            facts = read_device_slice(event["object"])
            if facts is None:
                return
            if event["type"] == "DELETED":
                self._soon("ResourceSlice", name, inventory.delete_slice, name, facts.version)
            else:
                self._soon("ResourceSlice", name, inventory.update_slice, facts)

    async def claim(self, event: Any, **_: Any) -> None:  # noqa: ANN401
        """Handle an event of a ResourceClaim; one without a GPU counts as deleted."""
        name = name_of(event["object"])
        with self._quarantine.of("ResourceClaim", name):
            self._on_event(CLAIMS, event)
            meta = event["object"]["metadata"]
            claim = None if event["type"] == "DELETED" else read_claim(event["object"])
            if claim is not None:
                self._soon("ResourceClaim", name, self._inventory.update_claim, claim)
            else:
                uid, version = meta["uid"], int(meta["resourceVersion"])
                self._soon("ResourceClaim", name, self._inventory.delete_claim, uid, version)

    async def login(self, settings: kopf.OperatorSettings, **_: Any) -> Any:  # noqa: ANN401
        """Return a traced session with the credentials of KUBECONFIG, else of the pod.

        kopf by itself would prefer a file in HOME to the pod's credentials, and would need the
        cluster's DNS to find the API server.
        """
        await asyncio.sleep(self._backoff.pause())
        self._backoff.logged_in()
        by_file = bool(os.environ.get(KUBECONFIG))
        read = kopf.login_with_kubeconfig if by_file else kopf.login_with_service_account
        credentials = read(settings=settings)
        if credentials is None:
            raise kopf.PermanentError("neither KUBECONFIG nor a service account is there")
        return kopf.AiohttpSession(
            server=credentials.server if by_file else server_of_pod(os.environ),
            default_namespace=credentials.default_namespace,
            aiohttp_session=aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=credentials.as_ssl_context()),
                headers=credentials.as_http_headers(),
                read_bufsize=_LONGEST_LINE,
                trace_configs=[self._trace()],
                trust_env=False,
            ),
        )

    def _trace(self) -> aiohttp.TraceConfig:
        """Return a trace that notes every answer and failure of kopf's requests."""

        async def ended(
            _session: object, _context: object, params: aiohttp.TraceRequestEndParams
        ) -> None:
            status, kind = params.response.status, _kind(params.url.path)
            if status == HTTPStatus.UNAUTHORIZED:
                self._backoff.denied()
            if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                self._loop.call_soon_threadsafe(self._on_refusal)
            if kind and status < 400:  # noqa: PLR2004  # client and server errors
                # kopf listed or reconnected: it does not report deletions.
                # Later pages of a list have the version of its first.
                listed = not {"watch", "continue"} & params.url.query.keys()
                if self._health.answered(kind) or listed:
                    self._loop.call_soon_threadsafe(self._on_gap, kind)
            elif kind:
                self._health.failed(kind, f"{status} {params.response.reason}")

        async def broke(
            _session: object, _context: object, params: aiohttp.TraceRequestExceptionParams
        ) -> None:
            if kind := _kind(params.url.path):
                cause = f"{type(params.exception).__name__}: {params.exception}"
                self._health.failed(kind, cause)

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(ended)
        trace.on_request_exception.append(broke)
        return trace

    def _hand_over(
        self,
        event: Any,  # noqa: ANN401
        item: S,
        update: Callable[[S], Key | None],
        delete: Callable[[Key, str, str], Key | None],
    ) -> None:
        """Update the cache in the operator's event loop, and enqueue the plan of the object."""

        def take() -> None:
            gone = event["type"] == "DELETED"
            key = delete(item.key, item.uid, item.resource_version) if gone else update(item)
            if key is not None:
                self._enqueue(key)

        kind = "ServingPlan" if isinstance(item, PlanObject) else "ConfigMap"
        self._soon(kind, str(item.key), take)

    def _soon(self, kind: str, name: str, take: Callable[..., object], *facts: object) -> None:
        """Hand facts about one object over to the operator's event loop."""

        def safely() -> None:
            with self._quarantine.of(kind, name):
                take(*facts)

        self._loop.call_soon_threadsafe(safely)


def name_of(body: object) -> str:
    """Return namespace and name of any object, to name it in a log line."""
    meta = body.get("metadata") if isinstance(body, Mapping) else None
    parts = (meta.get("namespace"), meta.get("name")) if isinstance(meta, Mapping) else ()
    return "/".join(str(part) for part in parts if part) or "without a name"


def _kind(path: str) -> str | None:
    """Return the kind that a request lists or watches; None for other requests of kopf."""
    kind = path.rsplit("/", 1)[-1]
    return kind if kind in (*KINDS, *INVENTORY) else None


def registry(
    handler: EventHandler, inventory_kinds: Collection[str], stop: threading.Event
) -> kopf.OperatorRegistry:
    """Return the handlers of plans, of tables and of these kinds of the inventory."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(handler.login)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)(handler.plan)
    kopf.on.event("", "v1", "configmaps", registry=handlers)(handler.table)
    if "nodes" in inventory_kinds:
        kopf.on.event("", "v1", "nodes", registry=handlers)(handler.node)
    if "pods" in inventory_kinds:
        kopf.on.event("", "v1", "pods", registry=handlers)(handler.pod)
    if SLICES in inventory_kinds:
        kopf.on.event(DEVICES_GROUP, "v1", SLICES, registry=handlers)(handler.device_slice)
    if CLAIMS in inventory_kinds:
        kopf.on.event(DEVICES_GROUP, "v1", CLAIMS, registry=handlers)(handler.claim)

    @kopf.on.cleanup(registry=handlers)
    async def cleanup(**_: Any) -> None:  # noqa: ANN401
        """Cancel the watching tasks until all have ended.

        If one watch dies, kopf cancels the others together with the task that pauses them, mistakes
        this for a pause, and continues: it would never return, and end the process after a while.
        """
        streams = {task for task in asyncio.all_tasks() if task.get_name().startswith(STREAM)}
        while streams:
            for task in streams:
                task.cancel()
            streams = (await asyncio.wait(streams, timeout=1.0))[1]
        stop.set()

    return handlers
