"""The nodes under a live plan, and a log of when each was there: tables are judged by it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.controlplane import eventually
from tests.support.e2e.nodes import Nodes, nodes_of
from tests.support.faults.bench import PATIENCE, Bench
from tests.support.faults.history import PLAN, TABLE

COUNT = 4
GPUS = 8
READY, UNREADY = "True", "False"


@dataclass
class Ground:
    """Nodes of eight H100 that one plan selects. Times are monotonic seconds.

    ``log``: when a node came to serve or ceased to. ``excused``: until when nobody could write.
    """

    bench: Bench
    plan: str
    nodes: Nodes
    log: list[tuple[float, str, bool]] = field(default_factory=list)
    excused: list[tuple[float, float]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The first nodes of the plan."""
        return self.nodes.names(COUNT)

    def come(self, *names: str) -> None:
        """These nodes join the cluster."""
        self._note(names, there=True)
        self.nodes.create(names)

    def go(self, *names: str) -> None:
        """These nodes are deleted."""
        self.nodes.delete(names)
        self._note(names, there=False)

    def flap(self, name: str, second: int, *, up: bool) -> None:
        """Its kubelet reports that it serves, or that it does not."""
        if up:
            self._note((name,), there=True)
        self.nodes.report(name, second, READY if up else UNREADY)
        if not up:
            self._note((name,), there=False)

    def there(self) -> set[str]:
        """Nodes that serve now."""
        found = {name: there for _, name, there in self.log}
        return {name for name, there in found.items() if there}

    def under(self) -> set[str]:
        """Nodes of the islands of the stored table."""
        version = self.bench.history.last(TABLE, self.plan)
        return nodes_under(version.table) if version else set()

    def tables(self) -> int:
        """How many tables were stored."""
        return len(self.bench.history.of(self.plan).ordered(TABLE))

    def mark(self) -> str:
        """How the stored table came to be, as is written beside it."""
        version = self.bench.history.last(TABLE, self.plan)
        notes = version.body["metadata"]["annotations"] if version else {}
        return str(notes.get("archipelago.dev/live", ""))

    def _is_said(self) -> bool:
        """Whether the status speaks of the table that is stored."""
        table = self.bench.history.last(TABLE, self.plan)
        plan = self.bench.history.last(PLAN, self.plan)
        if table is None or plan is None:
            return False
        stored = table.body["metadata"]["annotations"]["archipelago.dev/content-hash"]
        said: str | None = plan.status.get("summary", {}).get("contentHash")
        return said == stored and plan.ready == ("True", "Published", plan.generation)

    def begin(self, count: int = COUNT, **how: Any) -> None:  # noqa: ANN401  # of ``live_spec``
        """A plan on so many nodes, which has its table."""
        self.come(*self.nodes.names(count))
        self.bench.user.create(self.plan, live_spec(self.nodes, **how))
        self.bench.rest(self.plan, 1, within=30.0)
        self.settled(self.nodes.names(count))

    def without(self, *names: str, within: float = PATIENCE) -> float:
        """Wait until the stored table names none of them; returns the seconds that took."""
        return self.until(lambda: not self.under() & set(names), within, f"no {names}")

    def until(self, holds: Callable[[], object], within: float, what: str) -> float:
        """Wait for something about the stored table."""
        started = time.monotonic()
        self.bench.history.wait(lambda _history: holds(), within, f"{self.plan}: {what}")
        return time.monotonic() - started

    def settled(self, nodes: Iterable[str], generation: int = 1, within: float = 90.0) -> None:
        """Wait until the planner's whole answer for exactly these nodes is stored and said."""
        wanted = set(nodes)

        def is_whole() -> bool:
            return self.under() == wanted and self.mark() == "planned" and self._is_said()

        self.until(is_whole, within, f"planned on {sorted(wanted)}, not {sorted(self.under())}")
        self.bench.rest(self.plan, generation)

    @contextmanager
    def excuse(self) -> Iterator[None]:
        """Nobody can store a table meanwhile."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.excused.append((started, time.monotonic()))

    def _note(self, names: Iterable[str], *, there: bool) -> None:
        self.log += [(time.monotonic(), name, there) for name in names]


@contextmanager
def ground(bench: Bench, plan: str) -> Iterator[Ground]:
    """Nodes of a plan; both are deleted at the end."""
    with nodes_of(bench.user.api, f"{bench.user.namespace}-{plan}"[-50:].strip("-")) as nodes:
        yield Ground(bench, plan, nodes)


def live_spec(nodes: Nodes, median: int = 1020, **replanning: object) -> dict[str, Any]:
    """Llama-3.1-8B on whatever H100 nodes there are, at a rate that two of four carry.

    From a median of 1020 to one of 200 one island changes its phase: three tables.
    """
    return {
        "models": [_model(median)],
        "pools": [
            {
                "name": "h100",
                "accelerator": "H100",
                "nodeSelector": nodes.labels,
                "gpusPerNode": GPUS,
                "islandSizes": [4, 8],
                "pricePerGPUHour": "3.00",
            }
        ],
        "replanning": {"drainSeconds": 1, **replanning},
    }


def _model(median: int) -> dict[str, Any]:
    return {
        "name": "llama-8b",
        "architecture": "Llama-3.1-8B",
        "requestsPerSecond": "40",
        "workload": {
            "logNormal": {"median": median, "sigma": "0.9", "max": 16384},
            "outputTokens": {"mean": "211", "meanSquare": "71100"},
            "ranges": {"count": 8},
        },
        "slo": {"tpotMilliseconds": 40},
    }


SHORTER = {"models": [_model(200)]}
"""An edit that is rolled out in three tables."""


def nodes_under(table: dict[str, Any] | None) -> set[str]:
    """Nodes of the islands of a table."""
    islands = table["content"]["islands"] if table else []
    return {node for island in islands for node in island["nodes"]}


def ready_again(bench: Bench) -> None:
    """Wait for an operator that was just started."""
    eventually(bench.operator.is_ready, within=PATIENCE)
