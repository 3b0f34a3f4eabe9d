"""A day of traffic on pods of the operator's own: every request is counted, and every dollar.

On nodes that KWOK plays, or, with ``KIND=1``, on those of a real cluster. The day is short: an hour
of it is a minute and a half, a window of traffic five seconds. ``DAY_SEED`` draws other moments at
which the operator is killed; with ``DAY_HOUR=60`` an hour has as many windows as one on a cluster,
and the cost is judged.
"""

import copy
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.resources.objects import read_islands
from archipelago.planner.documents import canonical_text
from archipelago.planner.plan import Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import headroom_of
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.plan_of_table import plan_of
from tests.e2e import test_islands, test_kind_islands
from tests.e2e.test_islands import owner as owner  # noqa: PLC0414  # a fixture
from tests.e2e.test_kind_islands import islands_of, served
from tests.e2e.test_kind_islands import proxy as proxy  # noqa: PLC0414
from tests.e2e.test_kind_islands import workers as workers  # noqa: PLC0414
from tests.e2e.test_kwok import begin
from tests.e2e.test_kwok import kubelets as kubelets  # noqa: PLC0414
from tests.e2e.test_kwok import nodes as nodes  # noqa: PLC0414
from tests.e2e.test_live import LIVE, event_reasons
from tests.e2e.test_nodes import state
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import Operator, Plans, resource, running, seconds_until
from tests.support.e2e.users import (
    PROGRAM,
    TIMEOUT,
    Lengths,
    PlayedEngines,
    PodEngines,
    Users,
)
from tests.support.operator.nodes import H100, L40S
from tests.support.prometheus.pages import Pages
from tests.support.prometheus.server import Prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SEED = int(os.environ.get("DAY_SEED", "1"))
PRICE = 2.0
"""Of a GPU [$/h]."""
WINDOW = 5
"""Seconds of a window of observed traffic."""
HOUR = int(os.environ.get("DAY_HOUR", "18")) * WINDOW
"""Seconds for which the users keep to a rate."""
TRUE_HOUR = 60 * WINDOW
"""Of the default window of a minute: savings need several windows, so short hours cost more."""
SETTLED = 240.0
"""Seconds for a change of traffic to be seen, decided, and carried out on two nodes."""
LENGTHS = Lengths(median=100, longest=2048, output=20)
"""Short: few GPUs serve many requests, and seconds of them tell as much as a minute of others."""
MORNING, NOON, NIGHT = 480, 880, 96
"""Rates of the day [requests/s], as 60 to 110 to 12."""
LONG = Lengths(median=1020, longest=7000, output=211)
"""What the plan of the flips is made for."""
ENOUGH = 1.1
"""Least headroom of a table [times the rate]: minHeadroom without the tolerance of 5 %, and without
the noise of short windows."""
BAR = 1.10
"""Most that the day may cost, as a multiple of its cost if every rate is known beforehand."""


@pytest.fixture
def owning(
    prepared: Operator, owner: Path, source: dict[str, Any], tmp_path: Path
) -> Iterator[Operator]:
    """An operator that may own Deployments, with a source of metrics."""
    limit = {"namespaces": ["*"], "maxIslands": 40}
    file = tmp_path / "admin.yaml"
    file.write_text(yaml.safe_dump({"sources": [source], "startedIslands": [limit]}))
    more = {"ARCHIPELAGO_ISLANDS": "Deployments", "ARCHIPELAGO_ADMIN_FILE": str(file)}
    settings = {**prepared.settings, **more}
    with running(replace(prepared, kubeconfig=owner, settings=settings)) as operator:
        yield operator


def spec(selector: dict[str, str], rate: float = MORNING) -> dict[str, Any]:
    """The plan of the day."""
    model = {
        "name": "llama",
        "architecture": "Llama-3.1-8B",
        "requestsPerSecond": str(rate),
        "workload": LENGTHS.workload(),
        "slo": {"ttftMilliseconds": 1000, "tpotMilliseconds": 40},
    }
    pool = {
        "name": "h100",
        "accelerator": "H100",
        "nodeSelector": selector,
        "gpusPerNode": 8,
        "pricePerGPUHour": str(PRICE),
    }
    return {
        "models": [model],
        "pools": [pool],
        "objective": "MinimiseCost",
        "minHeadroom": "1.2",
        "replanning": {
            "mode": "Auto",
            "source": "main",
            "windowSeconds": WINDOW,
            "coolDownSeconds": WINDOW,
            "dwellSeconds": WINDOW,
            "drainSeconds": WINDOW,
            "maxPerHour": 60,
        },
        "islands": {"manage": "Deployments", "template": {"configMap": "pods"}, "readySeconds": 40},
    }


def problem_at(rate: float) -> PlanningProblem:
    """The day's problem at a rate, on two nodes."""
    stated = spec({}, rate)
    del stated["pools"][0]["nodeSelector"]
    stated["pools"][0]["count"] = 16
    return to_problem("chat", load_resource(yaml.safe_dump(resource("chat", stated))).spec)


def least(rate: float) -> float:
    """Cost of the cheapest plan for a rate [$/h]."""
    outcome = strategy("exact").plan(problem_at(rate))
    assert isinstance(outcome, Planned)
    return float(outcome.plan.cost_per_hour)


def carried(content: dict[str, Any], rate: float) -> float:
    """How many times a rate the islands carry that the table sends requests to."""
    problem = replace(problem_at(rate), min_headroom=None, minimise_cost=False)
    return headroom_of(deployed_islands(problem, plan_of(content, problem, of_it=False)))


@dataclass
class Day:
    """The day as it is lived. ``template`` stores one whose pods start, or never do."""

    users: Users
    operator: Operator
    report: Callable[..., None]
    template: Callable[[bool], None]
    drawn: random.Random
    known: float = 0.0

    def hour(
        self, rate: float, *, killed: Callable[[], None] | None = None, above: float = PRICE
    ) -> None:
        """Keep to a rate, until the table is one for it, and at least for an hour.

        ``killed``: waits for the moment at which the operator is. ``above``: what the table may
        cost more than the cheapest [$/h].
        """
        users, began = self.users, time.monotonic()
        cost, users.rate = least(rate), rate
        if killed:
            killed()
            self.operator.end(signal.SIGKILL)
            self.operator.start()

        def settled() -> bool:
            enough = carried(dict(users.seen.content), rate) >= ENOUGH
            return enough and users.cost <= cost + above and served(users.plans)

        name = f"{rate:g} requests/s{' and a kill' if killed else ''}"
        self.until(f"{name} to its pods", settled, began)
        time.sleep(max(0.0, began + HOUR - time.monotonic()))
        self.known += cost * (time.monotonic() - began) / 3600

    def at_any_moment(self) -> None:
        """Wait for one that the seed draws."""
        time.sleep(self.drawn.uniform(0, 6 * WINDOW))

    def in_the_change(self) -> None:
        """Wait until pods start that the table lists and sends no requests to."""
        eventually(lambda: self.unused() != set(), SETTLED)

    def unused(self) -> set[str]:
        """Islands of the table that get no requests."""
        content = canonical_text(self.users.plans.table("chat")["content"])
        return {name for name, island in read_islands(content).items() if not island.routed}

    def until(self, what: str, condition: Callable[[], bool], began: float | None = None) -> None:
        """Wait, and report how long it took; a failure says how the plan stands."""
        began = time.monotonic() if began is None else began
        try:
            eventually(condition, SETTLED)
            self.report(what, time.monotonic() - began)
        except AssertionError as error:
            status = self.users.plans.plan("chat")["status"]
            said = [f"{c['type']}={c['status']}: {c['message']}" for c in status["conditions"]]
            facts = {"$/h": self.users.cost, **status.get("lastDecision", {})}
            raise AssertionError("\n".join([f"{what}: {error}", *said, str(facts)])) from None

    def burst(self, rate: float) -> None:
        """Eight seconds of much more; what is bought for them is given back."""
        users = self.users
        usual, before, began = users.rate, users.cost, time.monotonic()
        users.rate = rate
        time.sleep(8)
        users.rate = usual
        time.sleep(HOUR - 8)
        bought = max(before, least(usual)) + PRICE
        self.until("a burst to the plan before", lambda: users.cost <= bought, began)
        self.known += least(usual) * (time.monotonic() - began) / 3600

    def pods_that_never_start(self, rate: float) -> None:
        """The change to a rate is taken back, and made once pods start again."""
        users = self.users
        self.template(False)
        users.rate = rate

        def taken_back() -> bool:
            return "RolledBack" in event_reasons(users.plans)

        self.until("pods that never start to the table before", taken_back)
        self.template(True)

    def lose(self, node: str, gone: Callable[[str], None]) -> None:
        """Requests fail until the cluster says so, and none after the table without the node."""
        users = self.users
        assert users.failed == []
        gone(node)

        def repaired() -> bool:
            listed = {name for island in users.seen.content["islands"] for name in island["nodes"]}
            return node not in listed and served(users.plans)

        self.until("a lost node to a whole table", repaired)
        time.sleep(TIMEOUT + 1)  # for what was under way
        failed = len(users.failed)
        self.report("failed before the cluster knew", users.weight * failed, "requests")
        time.sleep(4 * WINDOW)
        assert len(users.failed) == failed


def live(day: Day, selector: dict[str, str], gone: Callable[[str], None]) -> None:
    """Growth, a burst, a night and a morning with kills; pods that never start; a lost node."""
    users, plans = day.users, day.users.plans
    foreign = stranger(plans)
    day.template(True)
    plans.apply("chat", spec(selector))
    day.until("plan to pods", lambda: served(plans))
    with users.at_work():
        day.hour(MORNING)
        day.hour(NOON, killed=day.in_the_change)
        day.burst(3 * NOON)
        day.hour(NIGHT, killed=day.at_any_moment)
        day.hour(MORNING)
        dollars = users.dollars
        day.report("cost of the day", dollars / day.known, "of a day whose rates are known")
        day.pods_that_never_start(NOON)
        day.hour(NOON, above=3 * PRICE)  # the cheapest is not tried again so soon
        assert users.failed == []
        assert users.unready == []
        day.hour(MORNING)
        day.lose(next(pod.node for pod in users.seen.pods.values()), gone)
    day.report("sent", users.sent, "requests")
    assert HOUR < TRUE_HOUR or dollars <= BAR * day.known
    assert plans.get("deployment", "foreign") == foreign
    assert day.operator.is_running()


def test_a_day_on_nodes_that_kwok_plays(  # noqa: PLR0917  # fixtures
    plans: Plans,
    nodes: Nodes,
    owning: Operator,
    prometheus: Prometheus,
    pages: Pages,
    report: Callable[..., None],
) -> None:
    """Kubernetes' controllers place, start and end pods; their engines are in this process."""
    begin(nodes, nodes.names(2))
    eventually(lambda: state(owning, "usable") == 2)
    engines = PlayedEngines(pages)

    def template(starts: bool) -> None:
        test_islands.store_template(plans, "1s" if starts else "1h")

    def gone(node: str) -> None:
        engines.gone.add(node)
        nodes.delete([node])

    users = Users(plans, engines, MORNING, LENGTHS, 100, prometheus, PRICE)
    day = Day(users, owning, report, template, random.Random(SEED))  # noqa: S311
    live(day, nodes.labels, gone)
    for node in engines.gone:  # no kubelet ends its pods
        on_node = f"--field-selector=spec.nodeName={node}"
        plans.kubectl("delete", "pods", on_node, "--force", "--grace-period=0")


@pytest.fixture
def labelled(kind: Cluster, workers: list[str]) -> Iterator[None]:
    """The workers say that their GPUs are H100, as GPU feature discovery does."""
    (label,) = H100
    kind.kubectl("label", "node", *workers, f"{label}={H100[label]}")
    yield
    kind.kubectl("label", "node", *workers, f"{label}-")


@pytest.mark.usefixtures("labelled")
def test_a_day_on_nodes_that_run_pods(  # noqa: PLR0917  # fixtures
    plans: Plans,
    owning: Operator,
    image: str,
    proxy: str,
    prometheus: Prometheus,
    report: Callable[..., None],
) -> None:
    """Engines in pods answer over HTTP; the lost node is frozen."""
    frozen: list[str] = []

    def template(starts: bool) -> None:
        program = PROGRAM if starts else "raise SystemExit('never')"
        test_kind_islands.store_template(plans, image, program)

    def gone(node: str) -> None:
        subprocess.run(["docker", "pause", node], check=True)
        frozen.append(node)

    engines = PodEngines(proxy, plans.namespace)
    users = Users(plans, engines, MORNING, LENGTHS, 100, prometheus, PRICE)
    day = Day(users, owning, report, template, random.Random(SEED))  # noqa: S311
    try:
        live(day, {"kubernetes.io/os": "linux"}, gone)
    finally:
        for node in frozen:
            subprocess.run(["docker", "unpause", node], check=True)


def stranger(plans: Plans) -> dict[str, Any]:
    """A workload that is nobody's concern."""
    plans.kubectl("create", "deployment", "foreign", "--image=foreign", "--replicas=0")
    eventually(lambda: "observedGeneration" in plans.get("deployment", "foreign")["status"])
    return plans.get("deployment", "foreign")


def test_engines_that_serve_either_phase_are_flipped_without_a_restart(  # noqa: PLR0917  # fixtures
    plans: Plans,
    nodes: Nodes,
    owning: Operator,
    prometheus: Prometheus,
    pages: Pages,
    report: Callable[..., None],
) -> None:
    """Answers become a tenth as long: islands become prefill, with the pods that they have."""
    names = nodes.names(4)
    begin(nodes, names[:2], on="h100")
    begin(nodes, names[2:], **L40S, on="l40s")
    eventually(lambda: state(owning, "usable") == 4)
    test_islands.store_template(plans)
    users = Users(plans, PlayedEngines(pages), 60, LONG, prometheus=prometheus)
    plans.apply("chat", flipping(nodes.labels))
    report("plan to pods", seconds_until(lambda: served(plans), SETTLED))
    first = islands_of(plans)
    with users.at_work():
        time.sleep(4 * WINDOW)
        pods = {name: pod.uid for name, pod in users.seen.pods.items()}
        users.lengths, users.rate = replace(LONG, output=18), 112

        def flipped() -> bool:
            now = islands_of(plans)
            return now.keys() == first.keys() and now != first and served(plans)

        report("shorter answers to flipped islands", seconds_until(flipped, SETTLED))
        time.sleep(2 * WINDOW)
        assert {name: pod.uid for name, pod in users.seen.pods.items()} == pods
    assert users.failed == []
    assert users.unready == []


def flipping(labels: dict[str, str]) -> dict[str, Any]:
    """The plan of `test_live`, whose GPUs may not move, on nodes whose pods are the operator's."""
    found = copy.deepcopy(LIVE)
    for pool in found["pools"]:
        del pool["count"]
        pool["nodeSelector"] = {**labels, "on": pool["name"]}
    found["replanning"] |= {"windowSeconds": WINDOW, "coolDownSeconds": WINDOW}
    found["islands"] = {"manage": "Deployments", "template": {"configMap": "pods"}}
    return found
