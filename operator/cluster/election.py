"""Who of several replicas leads: Lease, memory and time -> claim or wait; pure.

The semantics are those of client-go (``k8s.io/client-go/tools/leaderelection``). A replica never
compares its clock with that of another: it waits for as long as the Lease says after it has *seen*
it change. The holder stops earlier than that, ``renew_deadline`` after it *sent* the last renewal
that succeeded. So two never lead at once if their monotonic clocks run equally fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime

from ..errors import SettingsError
from .lease import LONGEST, MOST_TRANSITIONS, NOBODY, Lease, micro_time


@dataclass(frozen=True)
class Terms:
    """Times of the election [s], as in client-go.

    Attributes:
        lease_duration: How long the others wait after the last renewal that they saw.
        renew_deadline: How long the holder leads after the last renewal that it sent.
        retry_period: Between two looks of the others.

    Raises:
        SettingsError: they do not fit together.
    """

    lease_duration: float = 10.0
    renew_deadline: float = 7.0
    retry_period: float = 1.0

    @property
    def renewal(self) -> float:
        """Time between two renewals: three fit into the deadline, and the server has less to do."""
        return max(self.retry_period, self.renew_deadline / 3)

    def __post_init__(self) -> None:
        """Refuse times that do not fit together."""
        if not self.retry_period < self.renew_deadline < self.lease_duration <= LONGEST:
            raise SettingsError(
                "use times with LEADER_RETRY_PERIOD < LEADER_RENEW_DEADLINE < "
                f"LEADER_LEASE_DURATION <= {LONGEST:g} s"
            )


@dataclass(frozen=True)
class Candidate:
    """What a replica knows. Times are monotonic [s].

    Attributes:
        identity: Its own. A process with the identity of the holder has the Lease again at once: a
            container that was started again in the same pod does not wait.
        terms: Of the election.
        seen: The Lease as last read or written; None: there is none.
        seen_at: When it was first seen like that.
        leads_until: Until when this replica leads; in the past: it does not.
    """

    identity: str
    terms: Terms = Terms()
    seen: Lease | None = None
    seen_at: float = -math.inf
    leads_until: float = -math.inf

    def leads(self, now: float) -> bool:
        """Return whether this replica leads."""
        return now < self.leads_until

    @property
    def expires(self) -> float:
        """When the Lease is free if it does not change [monotonic s]."""
        if self.seen is None or self.seen.holder == NOBODY:
            return -math.inf
        return self.seen_at + (self.seen.seconds or self.terms.lease_duration)


def decide(
    lease: Lease | None, before: Candidate, now: float, wall: datetime
) -> tuple[Lease | None, Candidate]:
    """Return what to write, and the memory after a look at the Lease; nothing to write: wait.

    Args:
        lease: As stored; None if there is none.
        before: Memory of the replica.
        now: Monotonic time [s].
        wall: The time to write down.
    """
    candidate = before
    if lease is None or lease != before.seen:
        candidate = replace(before, seen_at=now)
    candidate = replace(candidate, seen=lease)
    mine = lease is not None and lease.holder == candidate.identity
    if not mine:
        candidate = replace(candidate, leads_until=-math.inf)  # another one has it, or may have
        if now < candidate.expires:
            return None, candidate
    return claim(candidate, wall), candidate


def claim(candidate: Candidate, wall: datetime) -> Lease:
    """Return the Lease that makes this replica the holder, or keeps it that."""
    seen, written = candidate.seen or Lease(), micro_time(wall)
    mine = seen.holder == candidate.identity
    transitions = seen.transitions + (not mine and candidate.seen is not None)
    return Lease(
        holder=candidate.identity,
        seconds=candidate.terms.lease_duration,
        transitions=transitions if transitions <= MOST_TRANSITIONS else 0,
        acquired=(seen.acquired if mine else None) or written,
        renewed=written,
    )


def claimed(candidate: Candidate, stored: Lease, sent: float, now: float) -> Candidate:
    """Return the memory after the claim was stored. ``sent``: just before that [monotonic s]."""
    until = sent + candidate.terms.renew_deadline
    return replace(candidate, seen=stored, seen_at=now, leads_until=until)


def released(candidate: Candidate, wall: datetime) -> Lease:
    """Return the Lease that gives the lead away: its holder is nobody, for a second."""
    written = micro_time(wall)
    transitions = candidate.seen.transitions if candidate.seen else 0
    return Lease(NOBODY, 1.0, transitions, acquired=written, renewed=written)
