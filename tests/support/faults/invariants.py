"""I1 to I9 of docs/explanation/architecture.md, checked on everything that was ever stored.

``check_invariants`` looks at each version, not at the end alone: a table that was wrong for a
moment was wrong. It returns what it found and how many checks it made, by invariant.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.table.validate import validate_table
from tests.support.faults import expected
from tests.support.faults.history import DELETED, EVENT, PLAN, TABLE, TABLE_KEY, History, Version

WRITES: Final = 3  # early status, table, final status
MOST_EVENTS: Final = 10  # of one plan and one process,
WINDOW: Final = 600.0  # in so many seconds
NOTE_BYTES: Final = 1024
OURS: Final = ("app.kubernetes.io/", "archipelago.dev/")  # labels and annotations


@dataclass(frozen=True)
class Allowance:
    """What a fault may cost. ``retries``: writes beyond three for each change."""

    retries: int = 0
    operators: int = 1


@dataclass
class Report:
    """Checks made and what they found."""

    checks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def check(self, invariant: str, holds: object, what: str, version: Version) -> None:
        """Count one check; keep what it found."""
        self.checks[invariant] += 1
        if not holds:
            where = f"{version.kind} {version.name} at {version.number}"
            self.violations.append(f"{invariant}: {where}: {what}")


def check_invariants(history: History, allowance: Allowance | None = None) -> Report:
    """Check everything that can be told from what was stored."""
    report, allowed = Report(), allowance or Allowance()
    _eventually_stable(history, report)
    _tables_are_valid(history, report)
    check_stored(history, report)
    _writes_are_few(history, report, allowed)
    _good_content_stays(history, report)
    return report


def check_stored(history: History, report: Report) -> None:
    """What holds of any plan, whatever its tables should be."""
    _status_is_not_ahead(history, report)
    _nothing_goes_back(history, report)
    report.checks["I6"] += 1  # no end that nobody asked for
    report.violations += [f"I6: {end}" for end in history.exits]
    _others_are_left_alone(history, report)
    _events_are_few(history, report)


def _lives(history: History) -> Iterator[list[Version]]:
    """Versions of each plan, a namesake apart from its predecessor."""
    plans = history.ordered(PLAN)
    for uid in dict.fromkeys(version.uid for version in plans):
        yield [version for version in plans if version.uid == uid]


def _tables_of(history: History, uid: str) -> list[Version]:
    """Tables that the operator wrote for the plan with that uid."""
    return [
        version
        for version in history.ordered(TABLE)
        if history.is_operators(version) and _identity(version).get("uid") == uid
    ]


def _identity(version: Version) -> dict[str, Any]:
    table = version.table
    return table["identity"] if table else {}


def _spec(life: list[Version], generation: int) -> dict[str, Any] | None:
    return next((v.body["spec"] for v in life if v.generation == generation), None)


def _eventually_stable(history: History, report: Report) -> None:
    """I1: at the end the content is plan(inputs), the status says so, and nothing follows."""
    for life in _lives(history):
        end = life[-1]
        if end.change == DELETED:
            continue
        report.check("I1", end.observed == end.generation, "its change was not seen", end)
        table = history.last(TABLE, end.plan)
        wanted = expected.content(end.body["spec"])
        foreign = table is not None and _identity(table).get("uid") != end.uid
        if wanted is None or foreign or end.body["spec"].get("suspend"):
            report.check("I1", end.ready[0] == "False", f"Ready is {end.ready}", end)
            continue
        report.check("I1", end.ready == ("True", "Published", end.generation), f"{end.ready}", end)
        stored = table.table if table else None
        same = stored is not None and canonical_bytes(stored["content"]) == wanted
        report.check("I1", same, "the stored content is not plan(inputs)", end)
    for start, stop in history.rest:
        for version in history.versions:
            if version.kind != EVENT and history.is_operators(version):
                report.check("I1", not start < version.at < stop, "written at rest", version)


def _tables_are_valid(history: History, report: Report) -> None:
    """I2: each table is sound, has pools of its inputs, and is what planning its inputs gives."""
    for life in _lives(history):
        for version in _tables_of(history, life[0].uid):
            table = version.table or {}
            report.check("I2", not (wrong := validate_table(table)), "; ".join(wrong), version)
            spec = _spec(life, table["identity"]["generation"])
            report.check("I2", spec is not None, "of a generation that never was", version)
            if spec is None:
                continue
            pools = _pools(table) - {pool["name"] for pool in spec["pools"]}
            report.check("I2", not pools, f"pools of other inputs: {pools}", version)
            same = canonical_bytes(table["content"]) == expected.content(spec)
            report.check("I2", same, "the content is not plan(inputs)", version)
    for version in history.ordered(TABLE):
        if history.is_operators(version) and version.is_owned:
            report.check("I2", version.table is not None, "no table can be read", version)


def _pools(table: dict[str, Any]) -> set[str]:
    """Pools that islands of a table stand on; one across several names each."""
    islands = table["content"]["islands"]
    parts = [part["pool"] for island in islands for part in island.get("parts") or ()]
    return {*parts, *(island["pool"] for island in islands if not island.get("parts"))}


def _status_is_not_ahead(history: History, report: Report) -> None:
    """I3: Ready at a generation, and a content hash, mean a table that was stored before."""
    for life in _lives(history):
        tables = _tables_of(history, life[0].uid)
        for version in life:
            earlier = [_described(table) for table in tables if table.number < version.number]
            status, _, generation = version.ready
            if status == "True":
                there = any(known >= generation for known, _ in earlier)
                report.check("I3", there, f"Ready at {generation} before its table", version)
            told = version.status.get("summary", {}).get("contentHash")
            if told:
                there = any(known == told for _, known in earlier)
                report.check("I3", there, "describes a table that was not stored", version)


def _described(version: Version) -> tuple[int, str]:
    table = version.table or {}
    digest = hashlib.sha256(canonical_bytes(table["content"])).hexdigest()
    return table["identity"]["generation"], digest


def _nothing_goes_back(history: History, report: Report) -> None:
    """I4: for one uid, sequences grow, generations and what was observed never shrink."""
    for life in _lives(history):
        for before, after in pairwise(_tables_of(history, life[0].uid)):
            old, new = _identity(before), _identity(after)
            grows = new["sequence"] > old["sequence"]
            report.check("I4", grows, f"sequence {old} then {new}", after)
            keeps = new["generation"] >= old["generation"]
            report.check("I4", keeps, f"generation {old} then {new}", after)
        for first, then in pairwise(life):
            back = f"observed {first.observed} then {then.observed}"
            report.check("I4", then.observed >= first.observed, back, then)
            ahead = f"observed {then.observed} of {then.generation}"
            report.check("I4", then.observed <= then.generation, ahead, then)


def _writes_are_few(history: History, report: Report, allowed: Allowance) -> None:
    """I5: three writes a change, and what the fault may cost."""
    for life in _lives(history):
        uid, end = life[0].uid, life[-1]
        statuses = sum(history.is_operators(version) for version in life)
        tables = _tables_of(history, uid)
        touched = [v for v in history.ordered(TABLE) if v.plan == end.plan and v not in tables]
        # A deletion while the API server was away is told to nobody: the table's next uid shows it.
        taken_away = len({table.uid for table in tables}) - 1
        changes = end.generation + max(len(touched), taken_away)
        most = WRITES * changes * allowed.operators + allowed.retries
        made = statuses + len(tables)
        report.check("I5", made <= most, f"{made} writes for {changes} changes", end)


def _good_content_stays(history: History, report: Report) -> None:
    """I8: no table is written for inputs without a plan, and none is taken away."""
    for life in _lives(history):
        alive = {v.number for v in life if v.change != DELETED}
        tables = _tables_of(history, life[0].uid)
        for version in tables:
            spec = _spec(life, _identity(version)["generation"])
            good = spec is not None and expected.content(spec) is not None
            report.check("I8", good, "a table of inputs that have no plan", version)
        ours = {table.uid for table in tables}
        gone = [v for v in history.ordered(TABLE) if v.change == DELETED and v.uid in ours]
        for version in gone:
            wanted = version.uid in history.deleted or life[0].uid in history.deleted
            report.check("I8", wanted or not alive, "taken away from a living plan", version)


def _others_are_left_alone(history: History, report: Report) -> None:
    """I9: specs, strangers' ConfigMaps, and others' keys, labels and annotations stay."""
    for life in _lives(history):
        for before, after in pairwise(life):
            if history.is_operators(after):
                report.check("I9", _theirs(before) == _theirs(after), "changed by us", after)
    tables = history.ordered(TABLE)
    for uid in dict.fromkeys(version.uid for version in tables):
        for before, after in pairwise(v for v in tables if v.uid == uid):
            if history.is_operators(after):
                lost = _added(before) - _added(after)
                report.check("I9", not lost, f"others' parts are gone: {lost}", after)
                report.check("I9", before.is_owned, "a stranger's ConfigMap was changed", after)


def _theirs(version: Version) -> dict[str, Any]:
    """What of a plan is its user's."""
    meta = version.body["metadata"]
    parts = ("labels", "annotations", "finalizers", "ownerReferences")
    return {"spec": version.body["spec"], **{part: meta.get(part) for part in parts}}


def _added(version: Version) -> set[tuple[str, str, str]]:
    """What others put into a table's ConfigMap."""
    meta = version.body["metadata"]
    parts = {"labels": meta.get("labels"), "annotations": meta.get("annotations")}
    notes = {
        (part, key, value)
        for part, found in parts.items()
        for key, value in (found or {}).items()
        if not key.startswith(OURS)
    }
    data = version.body.get("data") or {}
    return notes | {("data", key, value) for key, value in data.items() if key != TABLE_KEY}


def _events_are_few(history: History, report: Report) -> None:
    """At most ten per plan and process in ten minutes, in words of a closed vocabulary."""
    events = [version for version in history.ordered(EVENT) if version.change == "ADDED"]
    for version in events:
        body = version.body
        sound = (
            body["type"] in ("Normal", "Warning")
            and re.fullmatch(r"[A-Z][A-Za-z]{2,40}", body["reason"])
            and len(body["note"].encode()) <= NOTE_BYTES
        )
        report.check("events", sound, f"{body['type']} {body['reason']}", version)
    most = MOST_EVENTS * history.processes
    for uid in dict.fromkeys(event.body["regarding"]["uid"] for event in events):
        mine = [event for event in events if event.body["regarding"]["uid"] == uid]
        for last in mine:
            lately = sum(last.at - WINDOW < event.at <= last.at for event in mine)
            report.check("events", lately <= most, f"{lately} events of one plan", last)
