"""The faults, one row each; tests, ``make faults`` and the page recovery.md read the same list."""

from tests.support.controlplane import ControlPlane
from tests.support.faults import faults
from tests.support.faults.rules import delay, drop, hang, lose, refuse, twice
from tests.support.faults.stage import NO_DELETION, Phase, Scenario

RESYNC = {"ARCHIPELAGO_RESYNC_SECONDS": "3"}
SILENCE = {"ARCHIPELAGO_WATCH_SILENCE_SECONDS": "5"}
EDIT = (Phase.EDIT,)
STATUS, TABLE, FINAL = 1, 2, 3  # writes of a change, in their order

KILLS = (
    Scenario("killed-at-rest", "B1", "`kill -9` while idle, changes before the restart",
        faults.killed_at_rest),
    Scenario("killed-before-table", "B1", "`kill -9` just before the table is stored",
        faults.killed_before(TABLE), phases=EDIT, scaled=False),
    Scenario("killed-after-table", "B1", "`kill -9` just after the table is stored",
        faults.killed_after(TABLE), phases=EDIT, scaled=False),
    Scenario("killed-after-same-table", "B1",
        "`kill -9` just after a deleted table is stored again",
        faults.killed_after(TABLE), phases=(Phase.RESTORE,)),
)  # fmt: skip

# One write of an edit; test_writes.py spoils every write of a life in these ways.
SPOILT = {
    "dropped": ("connection cut before the server acts", drop),
    "lost": ("reply lost after the server acted", lose),
    "twice": ("request arrives twice", twice),
    "409": ("409 Conflict", refuse(409)),
    "422": ("422 Invalid", refuse(422)),
    "429": ("429, Retry-After 1 s", refuse(429, retry_after=1)),
    "500": ("500", refuse(500)),
    "503": ("503", refuse(503)),
    "504": ("504", refuse(504)),
    "late": ("reply after 3 s", delay(3.0)),
    "unanswered": ("no reply for 5 s, then cut", hang(5.0)),
}
WRITES = tuple(
    Scenario(f"table-{name}", "B2", f"write of the table: {words}",
        faults.one_write(TABLE, action), phases=EDIT, bar=10.0, scaled=False)
    for name, (words, action) in SPOILT.items()
)  # fmt: skip

OUTAGES = (
    Scenario("apiserver-down", "B3", "API server down for {} s",
        faults.without(ControlPlane.apiserver_stopped), 15, full=75, bar=15.0, own_plane=True),
    Scenario("apiserver-down-long", "B3", "API server down for {} s",
        faults.without(ControlPlane.apiserver_stopped), 600, bar=15.0, own_plane=True,
        scaled=False),
    Scenario("apiserver-frozen", "B3", "API server frozen for {} s (no replies)",
        faults.without(ControlPlane.apiserver_paused), 10, full=60, own_plane=True, scaled=False),
    Scenario("etcd-down", "B3", "etcd killed, back after {} s",
        faults.without(ControlPlane.etcd_stopped), 5, full=60, own_plane=True),
    Scenario("all-503", "B3", "every reply is 503 for {} s",
        faults.every_request(refuse(503)), 5, full=60),
    Scenario("all-429", "B3", "every reply is 429, Retry-After 1 s, for {} s",
        faults.every_request(refuse(429, retry_after=1)), 5, full=60, scaled=False),
    Scenario("all-late", "B3", "every reply 1 s late for {} s",
        faults.every_request(delay(1.0)), 5, full=60),
)  # fmt: skip

WATCHES = (
    Scenario("watches-cut", "B4", "both watches cut", faults.watches_cut),
    Scenario("watches-410", "B4", "every watch ends in 410 for {} s",
        faults.watches_end_in(410), 8, full=60),
    Scenario("watches-429", "B4", "every watch ends in 429 for {} s",
        faults.watches_end_in(429), 5, full=60, bar=40.0, scaled=False),
    Scenario("watches-500", "B4", "every watch ends in 500 for {} s",
        faults.watches_end_in(500), 5, full=60, bar=40.0, scaled=False),
    Scenario("watches-504", "B4", "every watch ends in 504 for {} s",
        faults.watches_end_in(504), 5, full=60, bar=40.0),
    Scenario("watches-silent", "B5", "open watches silent (renewed after 5 s; 70 by default)",
        faults.watches_silent, bar=75.0, settings=SILENCE, full_settings={}),
    Scenario("watches-silent-long", "B5", "all watches silent for {} s",
        faults.watches_silent_for_a_while, 8, full=300, settings=SILENCE, full_settings={}),
    Scenario("events-late", "B6", "events {} s late",
        faults.events_late, 5, full=30, bar=60.0, settings=RESYNC),
    Scenario("events-repeated", "B6", "events sent three times", faults.events_repeated),
    Scenario("events-missing", "B6", "events about a plan never come (resync 3 s)",
        faults.events_missing, bar=33.0, settings=RESYNC),
    Scenario("lists-stale", "B7", "restart with lists {} s old and watches silent",
        faults.lists_stale, 3, full=60, phases=NO_DELETION, retries=6),
)  # fmt: skip

PROCESSES = (
    Scenario("two-replicas", "B8", "leader and standby, an edit a second for {} s",
        faults.two_replicas, 10, full=600, phases=NO_DELETION),
    Scenario("replicas-killed", "B9", "either replica killed at any moment, edits for {} s",
        faults.replicas_killed(1), 30, full=300, retries=30, operators=2, phases=NO_DELETION),
    Scenario("partitioned", "B9", "the leader alone is cut off; the standby takes over",
        faults.partitioned, phases=NO_DELETION),
    *(
        Scenario(f"frozen-at-{name}", "B9", f"leader frozen with the {words} on its way, "
            "continued after the standby took over", faults.superseded(number), phases=EDIT,
            scaled=number == TABLE)
        for number, name, words in ((STATUS, "status", "early status"), (TABLE, "table", "table"),
            (FINAL, "final", "final status"))
    ),
    Scenario("frozen", "B11", "SIGSTOP for {} s, then SIGCONT", faults.frozen, 10, full=120),
)  # fmt: skip

SCENARIOS = (*KILLS, *WRITES, *OUTAGES, *WATCHES, *PROCESSES)
