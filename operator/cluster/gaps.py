"""Find what a watch lost for good: compare versions with a list of names and versions, often.

A watch that is alive can lack an event that something on the way has dropped, and then nothing
tells of the change until the next full list. So every half a minute the metadata of all objects is
listed, from the storage and not from a cache, and compared with what is known. Events may be on
their way: only what still differs after some seconds is a gap. A gap leads to a full list of that
kind; if a difference stays after that, it is of an object that cannot be read, and is not looked at
again until it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import ClusterError, Unreadable
from ..resources.names import PLURAL, SLICES
from ..resources.reading import Body, read_version, reading
from .handlers import INVENTORY, KINDS

if TYPE_CHECKING:
    from ..quarantine import Quarantine
    from ..resources.cache import Cache
    from .client import ApiCluster

PERIOD: Final = 30.0
"""Time between two comparisons [s]."""
GRACE: Final = 5.0
"""Time that an event has to arrive [s]."""
JITTER: Final = 0.1

Versions: TypeAlias = Mapping[tuple[str, str], int]
"""Versions of objects by namespace, which is empty for nodes, and name."""

log = logging.getLogger(__name__)


class Noted:
    """The newest known versions of what the inventory is made from, also of what it leaves out.

    kopf's thread and the event loop write it; each write is one operation of a dict.
    """

    def __init__(self) -> None:
        self._versions: dict[str, dict[tuple[str, str], int]] = {kind: {} for kind in INVENTORY}

    def of(self, kind: str) -> Versions:
        """Return a copy."""
        return dict(self._versions[kind])

    def event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Note an event of a watch."""
        key, version = read_versioned_name(event["object"])
        if event["type"] != "DELETED":
            self._versions[kind][key] = version
        elif self._versions[kind].get(key, 0) <= version:
            self._versions[kind].pop(key, None)

    def page(self, kind: str, bodies: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
        """Note the objects of a page that have a name and a version; return their names."""
        known, names = self._versions[kind], set()
        for body in bodies:
            with suppress(Unreadable):
                key, version = read_versioned_name(body)
                known[key] = max(known.get(key, 0), version)
                names.add(key)
        return names

    def listed(self, kind: str, found: set[tuple[str, str]], version: int, space: str) -> None:
        """Drop what a complete list as of that version lacks; ``space``: its namespace or ""."""
        for key, known in self.of(kind).items():
            if key not in found and known <= version and space in ("", key[0]):
                self._versions[kind].pop(key, None)


class Gaps:
    """Compares now and then; ``on_gap`` is called with a kind whose watch lost something."""

    def __init__(
        self,
        cluster: ApiCluster,
        cache: Cache,
        noted: Noted,
        namespaces: tuple[str, ...],
        *,
        random: Random,
        kinds: Callable[[], Iterable[str]],
        on_gap: Callable[[str], None],
        quarantine: Quarantine,
    ) -> None:
        self._quarantine = quarantine
        self._cluster = cluster
        self._cache = cache
        self._noted = noted
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._random = random
        self._kinds = kinds
        self._on_gap = on_gap
        self._reported: dict[tuple[str, str | None], set[tuple[tuple[str, str], int]]] = {}

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await asyncio.sleep(PERIOD * self._random.uniform(1 - JITTER, 1 + JITTER))
            await asyncio.gather(*(self._look(kind) for kind in (*KINDS, *self._kinds())))

    async def _look(self, kind: str) -> None:
        """Compare one kind; a list that fails is left to the next time."""
        looks = []
        for namespace in (None,) if kind in ("nodes", SLICES) else self._namespaces:
            with suppress(ClusterError), self._quarantine.of("Inventory", f"versions of {kind}"):
                listed, version = await self._list(kind, namespace)
                reported = self._reported.pop((kind, namespace), set())
                if differ := differences(self._known(kind), listed, version, namespace or ""):
                    looks.append((namespace, listed, version, differ, reported))
        if looks:
            await asyncio.sleep(GRACE)
        lost: set[tuple[str, str]] = set()
        for namespace, listed, version, before, reported in looks:
            differ = before & differences(self._known(kind), listed, version, namespace or "")
            self._reported[kind, namespace] = differ
            lost |= {key for key, _ in differ - reported}
        if lost:
            names = sorted("/".join(filter(None, key)) for key in lost)
            log.warning(
                "a watch lost events; the objects are listed again",
                extra={"kind": kind, "objects": len(names), "first": names[:3]},
            )
            self._on_gap(kind)

    async def _list(
        self, kind: str, namespace: str | None
    ) -> tuple[dict[tuple[str, str], int], int]:
        """Return the stored versions, and the version of the list."""
        listed: dict[tuple[str, str], int] = {}
        version = 0
        async for page in self._cluster.versions(kind, namespace):
            version = int(page["metadata"]["resourceVersion"])
            listed |= dict(map(read_versioned_name, page["items"]))
        return listed, version

    def _known(self, kind: str) -> Versions:
        if kind in INVENTORY:
            return self._noted.of(kind)
        store = self._cache.plans if kind == PLURAL else self._cache.tables
        return store.versions()


def differences(
    known: Versions, listed: Versions, version: int, namespace: str
) -> set[tuple[tuple[str, str], int]]:
    """Return names and versions of objects that are newer in the list, or that it lacks.

    ``version``: of the list; what is known of later is no difference. ``namespace``: of the list;
    empty: all.
    """
    newer = {(key, at) for key, at in listed.items() if known.get(key, 0) < at}
    gone = {
        (key, 0)
        for key, at in known.items()
        if key not in listed and at <= version and namespace in ("", key[0])
    }
    return newer | gone


def read_versioned_name(body: Body) -> tuple[tuple[str, str], int]:
    """Return namespace and name of any object, and its version.

    Raises:
        Unreadable: it has none.
    """
    with reading("PartialObjectMetadata", body) as item:
        meta = item.field("metadata")
        namespace = meta.optional("namespace")
        name = namespace.text() if namespace else "", meta.field("name").text()
        return name, int(read_version(meta))
