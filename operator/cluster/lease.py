"""The Lease by which one of several replicas leads, as a frozen value.

Anybody with rights in the operator's namespace can write it, so it is read from any JSON. A field
that cannot be used counts as absent, and a holder that is no text as somebody unknown. The next
owner writes all fields anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ..resources.names import GROUP, OURS, Key, Manifest

LEASES: Final = "leases"
LEASE_GROUP: Final = "coordination.k8s.io"
NOBODY: Final = ""
UNREADABLE: Final = "unreadable"
"""Holder of a Lease whose ``holderIdentity`` is no text."""
LONGEST: Final = 60.0
"""Most that a Lease may last [s]: nobody keeps the lead for longer by a large number in it."""
MOST_TRANSITIONS: Final = 2**31 - 1
STRATEGIES: Final = f"{GROUP}/strategies"
"""Annotation: the strategies that the last leader has, separated by commas."""


@dataclass(frozen=True)
class Lease:
    """What a Lease says.

    Attributes:
        holder: Identity of the leader; empty: nobody.
        seconds: How long the others wait after its last change [s]; None: not said.
        transitions: How often the holder has changed.
        acquired: Since when the holder has it, as written; None: not said.
        renewed: When the holder wrote last, as written; None: not said. Its clock is another one.
        body: The object as read; empty before it is stored. Others may add labels to it.
    """

    holder: str = NOBODY
    seconds: float | None = None
    transitions: int = 0
    acquired: str | None = None
    renewed: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict, compare=False)


def read_lease(body: object) -> Lease:
    """Read a Lease, whatever it holds."""
    stored = _mapping(body)
    spec = _mapping(stored.get("spec"))
    holder = spec.get("holderIdentity")
    seconds, transitions = (
        value if isinstance(value, int) and 0 < value <= MOST_TRANSITIONS else None
        for value in (spec.get("leaseDurationSeconds"), spec.get("leaseTransitions"))
    )
    acquired, renewed = (
        text if isinstance(text, str) else None
        for text in (spec.get("acquireTime"), spec.get("renewTime"))
    )
    return Lease(
        holder=holder if isinstance(holder, str) else NOBODY if holder is None else UNREADABLE,
        seconds=None if seconds is None else min(float(seconds), LONGEST),
        transitions=transitions or 0,
        acquired=acquired,
        renewed=renewed,
        body=stored,
    )


def lease_name(namespaces: tuple[str, ...]) -> str:
    """Return the name of the Lease: operators that serve other namespaces do not compete."""
    served = hashlib.sha256(",".join(namespaces).encode()).hexdigest()[:8]
    return f"{OURS}-operator-{served}" if namespaces else f"{OURS}-operator"


def read_strategies(lease: Lease) -> tuple[str, ...]:
    """Return the strategies that the last leader has; empty: not said."""
    said = _mapping(_mapping(lease.body.get("metadata")).get("annotations")).get(STRATEGIES)
    return tuple(filter(None, said.split(","))) if isinstance(said, str) else ()


def _mapping(value: object) -> Mapping[str, Any]:
    """Return it, or nothing if it is something else."""
    return value if isinstance(value, Mapping) else {}


def lease_manifest(
    key: Key, lease: Lease, before: Lease | None, strategies: Sequence[str] = ()
) -> Manifest:
    """Return the object to store: over the one that was read, or a new one."""
    stored = _mapping(before.body.get("metadata")) if before else {}
    meta = {"namespace": key.namespace, "name": key.name, **stored}
    if strategies:
        annotations = _mapping(meta.get("annotations"))
        meta["annotations"] = {**annotations, STRATEGIES: ",".join(strategies)}
    spec = {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": max(1, round(lease.seconds or 1)),
        "leaseTransitions": lease.transitions,
        "acquireTime": lease.acquired,
        "renewTime": lease.renewed,
    }
    return {"apiVersion": f"{LEASE_GROUP}/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def micro_time(time: datetime) -> str:
    """Return a time as Leases have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
