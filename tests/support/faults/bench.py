"""One operator behind a proxy, a user, and a recorder of everything: where scenarios are played."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.error import URLError

from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.e2e.operators import Operator, running
from tests.support.faults.api import User
from tests.support.faults.history import EVENT, PLAN, TABLE, History
from tests.support.faults.invariants import Allowance, Report, check_invariants
from tests.support.faults.proxy import Proxy, proxied
from tests.support.faults.recorder import recorded

QUIET = 3.0  # seconds without a write that count as rest in the default run
PATIENCE = 60.0
STARTING = threading.Lock()  # scenarios are played beside each other; a start takes a processor


@dataclass
class Bench:
    """``operator`` is the process that faults are done to; ``direct`` leads round the proxy."""

    cluster: Cluster
    operator: Operator
    proxy: Proxy
    user: User
    history: History
    direct: Path
    killed: list[float] = field(default_factory=list)  # when [monotonic s]

    def kill(self) -> None:
        """``kill -9``, from a request's thread as well."""
        self.operator.end(signal.SIGKILL)
        self.killed.append(time.monotonic())

    def begin(self) -> None:
        """Start the operator again, as Kubernetes does."""
        self.history.processes += 1
        self.operator.begin()

    def stop(self) -> None:
        """Freeze the process."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a frozen process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.operator.process is not None
        self.operator.process.send_signal(number)

    def rest(self, name: str, generation: int, *reasons: str, within: float = PATIENCE) -> float:
        """Wait until the status answers that generation; returns when it was stored.

        ``reasons``: of Ready; none given means Published.
        """
        wanted = reasons or ("Published",)

        def reached(history: History) -> float:
            plan = history.last(PLAN, name)
            if plan is None or plan.observed != generation or plan.ready[2] != generation:
                return 0.0
            return plan.at if plan.ready[1] in wanted else 0.0

        return self.history.wait(reached, within, f"{name} at {generation} {wanted}")

    def gone(self, name: str, within: float = PATIENCE) -> None:
        """Wait until plan and table are gone."""
        self.history.wait(
            lambda history: not (history.last(PLAN, name) or history.last(TABLE, name)),
            within,
            f"{name} is gone",
        )

    def forgotten(self, name: str, within: float = PATIENCE) -> float:
        """Wait until the operator shows nothing of a plan; returns when [s] that was found.

        One that is just starting knows nothing yet.
        """
        with suppress(StopIteration, URLError, ConnectionError):
            eventually(lambda: f'plan="{name}"' not in self.operator.get("/metrics"), within)
        return time.monotonic()

    def restored(self, name: str, within: float = PATIENCE) -> float:
        """Wait for a second table, and for what is said of it; returns when that was stored."""

        def second(history: History) -> float:
            table, plan = history.last(TABLE, name), history.last(PLAN, name)
            found = table.table if table else None
            if not (plan and table and found and found["identity"]["sequence"] > 1):
                return 0.0
            return plan.at if plan.number > table.number and plan.ready[0] == "True" else 0.0

        return self.history.wait(second, within, f"the table of {name} is back")

    def told(self, name: str) -> None:
        """Wait for the event that ends a change."""
        self.history.wait(lambda history: history.last(EVENT, name), PATIENCE, f"event of {name}")

    def quiet(self, seconds: float = QUIET) -> None:
        """Let nothing happen for so long; a write of the operator in that time is a violation."""
        started = time.monotonic()
        time.sleep(seconds)
        self.history.rest.append((started, time.monotonic()))

    def judge(self, *names: str, allowance: Allowance | None = None) -> Report:
        """Check every invariant on the history of these plans; fails where one is broken."""
        if not self.operator.is_running():
            self.history.exits.append(f"ended: {self.operator.log.read_text()[-1000:]}")
        report = check_invariants(self.history.of(*names), allowance)
        assert not report.violations, "\n".join(report.violations)
        assert report.checks.total() > 0
        return report


@contextmanager
def prepared(
    cluster: Cluster, kubeconfig: Path, directory: Path, settings: dict[str, str] | None = None
) -> Iterator[Bench]:
    """A bench with a namespace of its own; its operator is not started yet."""
    with (
        cluster.namespace() as namespace,
        proxied(cluster, kubeconfig, directory) as (proxy, through),
    ):
        given = {"ARCHIPELAGO_NAMESPACES": namespace, **(settings or {})}
        operator = Operator(through, directory / "operator.log", given)
        api, history = Api.of(cluster), History()
        with recorded(api, namespace, history):
            bench = Bench(
                cluster, operator, proxy, User(api, namespace, history), history, kubeconfig
            )
            try:
                yield bench
            finally:
                if operator.is_running():
                    bench.go_on()
                    operator.end(signal.SIGKILL)


@contextmanager
def started(
    cluster: Cluster, kubeconfig: Path, directory: Path, settings: dict[str, str] | None = None
) -> Iterator[Bench]:
    """A bench whose operator is ready."""
    with prepared(cluster, kubeconfig, directory, settings) as bench:
        with STARTING:
            bench.operator.start()
        yield bench


@contextmanager
def second(bench: Bench) -> Iterator[Operator]:
    """Another replica, which stands by; it reaches the API server round the proxy."""
    eventually(lambda: bench.operator.metric("leader") == 1, within=PATIENCE)
    log = bench.operator.log.with_name("second.log")
    other = replace(bench.operator, kubeconfig=bench.direct, log=log, process=None)
    bench.history.processes += 1
    with running(other):
        yield other


def steady(bench: Bench) -> None:
    """Wait until the operator is ready; it may just have been started."""
    eventually(bench.operator.is_ready, within=PATIENCE)
