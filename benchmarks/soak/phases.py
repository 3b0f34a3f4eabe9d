"""What is done to the operator, each phase with its bar; ``load`` says how much of it."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.soak.api import Administrator, ready
from tests.support.controlplane import ControlPlane, eventually
from tests.support.e2e.operators import USER, Operator, small

RATE = 500 / 12  # plans created in a second


@dataclass(frozen=True)
class Place:
    """Where the operator works, and for whom."""

    api: Administrator
    plane: ControlPlane
    operator: Operator
    namespace: str
    other: str


@dataclass(frozen=True)
class Burst:
    """Many plans at once. Seconds from a plan's creation until it was seen Ready."""

    plans: int
    created_in: float
    all_ready: float
    planning: float  # seconds of all planner processes together
    cpu: float  # seconds of the operator's own process
    p50: float
    p99: float


def burst(place: Place, count: int) -> Burst:
    """Create plans at the rate of 500 in 12 s, all different, and wait for all of them."""
    api, operator = place.api, place.operator
    before, started = operator.metric("planning_seconds_sum"), time.monotonic()
    worked = operator.metric("process_cpu_seconds_total")
    created: dict[str, float] = {}
    served: dict[str, float] = {}
    for n in range(count):
        time.sleep(max(0.0, started + n / RATE - time.monotonic()))
        name = f"plan-{n:03d}"
        api.create(place.namespace, name, small(budgetPerHour=f"{16 + n % 7}.{n:03d}"))
        created[name] = time.monotonic()
    created_in = time.monotonic() - started
    while len(served) < count:
        now = time.monotonic()
        assert now - started < 300, f"only {len(served)} of {count} are ready"
        for plan in api.plans(place.namespace):
            if ready(plan)[0] == "True":
                served.setdefault(plan["metadata"]["name"], now)
        time.sleep(0.2)
    waits = [served[name] - created[name] for name in served if name in created]
    return Burst(
        plans=count,
        created_in=created_in,
        all_ready=max(served.values()) - started,
        planning=operator.metric("planning_seconds_sum") - before,
        cpu=operator.metric("process_cpu_seconds_total") - worked,
        p50=median(waits),
        p99=_percentile(waits, 99),
    )


@dataclass(frozen=True)
class Idle:
    """Nothing to do."""

    seconds: float
    writes: float
    requests_per_second: float


def idle(place: Place, seconds: float) -> Idle:
    """Look on; the audit log counts requests."""
    writes, before = place.operator.metric("writes_total"), _requests(place)
    time.sleep(seconds)
    sent = _requests(place) - before
    return Idle(seconds, place.operator.metric("writes_total") - writes, sent / seconds)


def _requests(place: Place) -> int:
    """Return how many were sent, without the heartbeat of the Lease."""
    events = place.plane.audit_events(USER)
    return len({(event.time, event.uri) for event in events if "/leases/" not in event.uri})


@dataclass(frozen=True)
class Attack:
    """Hostile plans in one namespace, a small plan edited in another. Seconds to Ready."""

    plans: int
    alone: float  # median
    beside: float  # median
    p95: float  # beside
    longest: float  # planning of one hostile plan
    answered: int


def attack(place: Place, count: int, seconds: float) -> Attack:
    """Edit a small plan before and while hostile plans wait for the planner."""
    api, operator = place.api, place.operator
    api.create(place.other, "victim", small())
    alone = median(_edits(place, lambda n: n >= 6))
    for n in range(count):
        api.create(place.namespace, f"hostile-{n:03d}", hostile(n))
    until = time.monotonic() + seconds
    beside = _edits(place, lambda n: n >= 6 and time.monotonic() > until)
    hostiles = [
        plan for plan in api.plans(place.namespace) if plan["metadata"]["name"].startswith("host")
    ]
    answered = [plan for plan in hostiles if ready(plan)[0] in ("True", "False")]
    longest = max(
        (float(plan["status"]["lastPlan"]["planSeconds"]) for plan in answered), default=0.0
    )
    for plan in hostiles:
        api.delete(place.namespace, plan["metadata"]["name"])
    assert operator.is_running()
    p95 = _percentile(beside, 95)
    return Attack(count, alone, median(beside), p95, longest, len(answered))


def _edits(place: Place, enough: Callable[[int], bool]) -> list[float]:
    durations: list[float] = []
    while not enough(len(durations)):
        budget = f"{random.randint(4, 15)}.{random.randint(0, 999999):06d}"  # noqa: S311
        started = time.monotonic()
        place.api.patch(place.other, "victim", {"budgetPerHour": budget})
        eventually(lambda: ready(place.api.plans(place.other)[0])[0] == "True", within=60)
        durations.append(time.monotonic() - started)
        time.sleep(0.5)
    return durations


def hostile(n: int) -> dict[str, Any]:
    """As much work as the schema allows in a small resource, each time another."""
    workload = {
        "logNormal": {"median": 2000 + n, "sigma": "1.5", "max": 131072},
        "outputTokens": {"mean": "300"},
        "ranges": {"count": 64, "spacing": ("Loss", "Width", "Probability")[n % 3]},
    }
    models = [
        {"name": f"m{i}", "architecture": name, "serving": "Either", "workload": workload}
        for i, name in enumerate(("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "DeepSeek-V3"))
    ]
    kinds = ("H100", "H200", "L40S", "H20", "A100-80GB", "MI300X")
    pools = [
        {"name": f"p{i}", "accelerator": kind, "count": 1024 + 8 * n, "gpusPerNode": 8}
        for i, kind in enumerate(kinds)
    ]
    planner = {"timeLimitSeconds": 1, "gapPartsPerMillion": 1}
    return {"models": models, "pools": pools, "planner": planner}


@dataclass(frozen=True)
class Unrest:
    """Changes and faults."""

    seconds: float
    changes: int
    faults: int


def unrest(place: Place, seconds: float, seed: int = 1) -> Unrest:
    """Edit, delete, make, delete tables; stop the operator's process and the server for moments."""
    dice, until = random.Random(seed), time.monotonic() + seconds  # noqa: S311
    started, changes, faults = time.monotonic(), 0, 0
    names = [plan["metadata"]["name"] for plan in place.api.plans(place.namespace)]
    while time.monotonic() < until:
        name, budget = dice.choice(names), f"{dice.randint(2, 40)}"
        what = dice.random()
        if what < 0.8:
            place.api.patch(place.namespace, name, {"budgetPerHour": budget})
        elif what < 0.9:
            place.api.delete(place.namespace, name)
            place.api.create(place.namespace, name, small(budgetPerHour=budget))
        else:
            command = (f"-n={place.namespace}", "delete", "configmap", f"{name}-routing")
            place.plane.kubectl(*command, "--ignore-not-found", "--wait=false")
        changes += 1
        if dice.random() < 0.02:
            _fault(place, dice)
            faults += 1
        time.sleep(0.25)
    answers = ("True", "False")
    eventually(lambda: all(ready(p)[0] in answers for p in place.api.plans(place.namespace)), 120)
    return Unrest(time.monotonic() - started, changes, faults)


def _fault(place: Place, dice: random.Random) -> None:
    """Stop the operator, or its API server, for a moment."""
    assert place.operator.process is not None
    if dice.random() < 0.5:
        place.operator.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        place.operator.process.send_signal(signal.SIGCONT)
    else:
        place.plane.stop_apiserver()
        time.sleep(2)
        place.plane.start_apiserver()


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]
