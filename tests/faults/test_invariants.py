"""The checks can fail: a good history passes, and each kind of wrong one is found."""

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.e2e.operators import resource, small
from tests.support.faults import expected
from tests.support.faults.history import DELETED, EVENT, PLAN, TABLE, History, Version
from tests.support.faults.invariants import Allowance, check_invariants

UID = "plan-uid"


def spec(budget: str) -> dict[str, Any]:
    return small(budgetPerHour=budget)


def plan(number: int, generation: int, said: int, ready: tuple[str, str, int]) -> Version:
    """A plan whose status describes the table of ``said`` (0: none)."""
    status, reason, at = ready
    body = resource("chat", spec("8" if generation == 1 else "10"))
    body["metadata"] |= {"uid": UID, "generation": generation}
    if reason:
        condition = {"type": "Ready", "status": status, "reason": reason, "observedGeneration": at}
        body["status"] = {"observedGeneration": generation, "conditions": [condition]}
        if said:
            body["status"]["summary"] = {"contentHash": digest(said)}
    return Version(PLAN, "MODIFIED", number, float(number), body)


def table(number: int, generation: int, sequence: int) -> Version:
    content = expected.content(spec("8" if generation == 1 else "10"))
    assert content is not None
    whole = {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "RoutingTable",
        "content": json.loads(content),
        "identity": {
            "uid": UID,
            "generation": generation,
            "sequence": sequence,
            "time": "2026-01-01T00:00:00Z",
        },
    }
    meta = {
        "name": "chat-routing",
        "uid": "table-uid",
        "ownerReferences": [{"kind": "ServingPlan", "uid": UID}],
        "labels": {"team": "theirs"},
    }
    body = {"metadata": meta, "data": {"table.json": json.dumps(whole), "mine": "kept"}}
    return Version(TABLE, "MODIFIED", number, float(number), body)


def digest(generation: int) -> str:
    content = expected.content(spec("8" if generation == 1 else "10"))
    return hashlib.sha256(content or b"").hexdigest()


def told(number: int) -> Version:
    body = {
        "metadata": {"name": f"event-{number}", "uid": f"event-{number}"},
        "regarding": {"name": "chat", "uid": UID},
        "type": "Normal",
        "reason": "Published",
        "note": "fine",
    }
    return Version(EVENT, "ADDED", number, float(number), body)


PUBLISHED = ("True", "Published")


def good() -> list[Version]:
    """Created and edited once, three writes each."""
    return [
        plan(1, 1, 0, ("", "", 0)),
        plan(2, 1, 0, ("Unknown", "Planning", 1)),
        table(3, 1, 1),
        plan(4, 1, 1, (*PUBLISHED, 1)),
        told(5),
        plan(6, 2, 1, (*PUBLISHED, 1)),
        plan(7, 2, 1, (*PUBLISHED, 1)),
        table(8, 2, 2),
        plan(9, 2, 2, (*PUBLISHED, 2)),
    ]


def history(versions: list[Version]) -> History:
    versions = copy.deepcopy(versions)
    versions[5].body["status"]["observedGeneration"] = 1  # the user's edit changes no status
    return History(versions=versions, users={1, 6})


def test_a_good_history_passes() -> None:
    report = check_invariants(history(good()))

    assert report.violations == []
    assert report.checks.total() > 30


def _break_table(versions: list[Version], change: Callable[[dict[str, Any]], object]) -> None:
    data = versions[7].body["data"]
    whole = json.loads(data["table.json"])
    change(whole)
    data["table.json"] = json.dumps(whole)


def wrong_end(h: History) -> None:
    h.versions[8].body["spec"]["budgetPerHour"] = "16"


def unseen_end(h: History) -> None:
    h.versions[8].body["metadata"]["generation"] = 3


def write_at_rest(h: History) -> None:
    h.rest.append((8.5, 9.5))


def weights_that_do_not_sum(h: History) -> None:
    def change(whole: dict[str, Any]) -> None:
        whole["content"]["models"][0]["routes"][0]["pairs"][0]["weight"] = 1

    _break_table(h.versions, change)


def a_pool_of_other_inputs(h: History) -> None:
    def change(whole: dict[str, Any]) -> None:
        whole["content"]["islands"][0]["pool"] = "rented"

    _break_table(h.versions, change)


def an_empty_table(h: History) -> None:
    h.versions[7].body["data"]["table.json"] = "{}"


def status_before_table(h: History) -> None:
    h.versions[6] = plan(7, 2, 1, (*PUBLISHED, 2))


def describes_nothing_stored(h: History) -> None:
    h.versions[6].body["status"]["summary"] = {"contentHash": digest(2)}


def the_same_sequence_twice(h: History) -> None:
    _break_table(h.versions, lambda whole: whole["identity"].update(sequence=1))


def a_generation_that_goes_back(h: History) -> None:
    h.versions.append(table(10, 1, 3))


def observed_goes_back(h: History) -> None:
    h.versions[6].body["status"]["observedGeneration"] = 0


def observed_too_early(h: History) -> None:
    h.versions[3].body["status"]["observedGeneration"] = 2


def too_many_writes(h: History) -> None:
    h.versions.insert(7, plan(7, 2, 1, (*PUBLISHED, 1)))


def an_end_nobody_asked_for(h: History) -> None:
    h.exits.append("ended with 1")


def a_table_for_bad_input(h: History) -> None:
    h.versions[8].body["spec"] = h.versions[5].body["spec"] = h.versions[6].body["spec"] = {
        **spec("8"),
        "budgetPerHour": "0.01",
    }


def a_table_taken_away(h: History) -> None:
    gone = table(10, 2, 2)
    h.versions.append(Version(TABLE, DELETED, 10, 10.0, gone.body))


def another_spec(h: History) -> None:
    h.versions[1].body["spec"]["budgetPerHour"] = "9"


def a_finalizer(h: History) -> None:
    h.versions[1].body["metadata"]["finalizers"] = ["ours"]


def another_key_lost(h: History) -> None:
    del h.versions[7].body["data"]["mine"]


def another_label_lost(h: History) -> None:
    del h.versions[7].body["metadata"]["labels"]["team"]


def a_strangers_table_changed(h: History) -> None:
    h.versions[2].body["metadata"]["ownerReferences"] = []
    h.users.add(3)


def too_many_events(h: History) -> None:
    h.versions += [told(number) for number in range(20, 30)]


def an_event_without_a_reason(h: History) -> None:
    h.versions[4].body["reason"] = "not one word"


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("I1", wrong_end),
        ("I1", unseen_end),
        ("I1", write_at_rest),
        ("I2", weights_that_do_not_sum),
        ("I2", a_pool_of_other_inputs),
        ("I2", an_empty_table),
        ("I3", status_before_table),
        ("I3", describes_nothing_stored),
        ("I4", the_same_sequence_twice),
        ("I4", a_generation_that_goes_back),
        ("I4", observed_goes_back),
        ("I4", observed_too_early),
        ("I5", too_many_writes),
        ("I6", an_end_nobody_asked_for),
        ("I8", a_table_for_bad_input),
        ("I8", a_table_taken_away),
        ("I9", another_spec),
        ("I9", a_finalizer),
        ("I9", another_key_lost),
        ("I9", another_label_lost),
        ("I9", a_strangers_table_changed),
        ("events", too_many_events),
        ("events", an_event_without_a_reason),
    ],
)
def test_what_is_wrong_is_found(invariant: str, damage: Callable[[History], None]) -> None:
    broken = history(good())
    damage(broken)

    found = check_invariants(broken).violations

    assert [line for line in found if line.startswith(invariant)], found


def test_retries_that_a_fault_may_cost_are_allowed() -> None:
    broken = history(good())
    too_many_writes(broken)

    report = check_invariants(broken, Allowance(retries=1))

    assert [line for line in report.violations if line.startswith("I5")] == []
